"""Handlers that report to Dagster; those in processes import this module by name."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from glidemq_orchestrate import Context, Handlers, Worker
from glidemq_orchestrate.pipes import open_pipes


def clean(ctx: Context) -> dict[str, Any]:
    """Log a line and report one asset, with what its data asks for."""
    data: Any = ctx.data
    with open_pipes(ctx) as pipes:
        pipes.log.info("cleaning for %s", pipes.get_extra("who") if pipes.extras else "nobody")
        pipes.report_asset_materialization(
            asset_key=data.get("asset"), metadata={"rows": data.get("rows", 3)}
        )
    return {"unused": True}


async def clean_async(ctx: Context) -> dict[str, Any]:
    """The same on the loop."""
    return clean(ctx)


def report_slowly(ctx: Context) -> dict[str, Any]:
    """Report; where ``PIPES_WHO`` is ``killed``, wait for the end after that."""
    who = os.environ.get("PIPES_WHO", "second")
    with open_pipes(ctx) as pipes:
        pipes.report_asset_materialization(metadata={"by": who})
        pipes.log.info("reported by %s", who)
        while who == "killed" and not ctx.cancelled.wait(0.05):
            pass
    return {}


handlers = Handlers()
handlers.handler("clean")(report_slowly)


def serve(url: str) -> None:
    """A worker process whose jobs are soon taken over when it is killed."""
    Worker(url, queues=["etl"], handlers=handlers, lease=timedelta(seconds=1)).run()
