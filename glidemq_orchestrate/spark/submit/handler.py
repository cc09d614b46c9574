"""The handler of ``spark.submit`` jobs."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.spark.submit.application import JOB_NAME, Application
from glidemq_orchestrate.spark.submit.driver import drivers
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers, Serving

GRACE: Final = timedelta(seconds=30)
"""How long a driver that has timed out may take to end, before its next attempt may begin beside it."""

handlers = Handlers()


@handlers.handler(JOB_NAME, grace=GRACE)
def run_application(ctx: Context) -> Json:
    """Run the program that the payload names, and return its result; see ``Drivers.run``.

    Raises:
        InvalidCall: The payload names no program that this worker may run.
    """
    with ExitStack() as stack:
        return drivers.run(ctx, Application.of(ctx, stack))


@handlers.on_start
def name_server(serving: Serving) -> None:
    """Drivers of jobs on another server are none of ours, whatever their ids."""
    drivers.start(f"{serving.settings.where} {serving.settings.prefix}", serving)


handlers.on_job(drivers.on_job)
handlers.on_stop(drivers.stop)
