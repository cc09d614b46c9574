"""The worker's handlers for the system test."""

from __future__ import annotations

import time
from typing import Any

from glidemq_orchestrate import Context, Handlers, Unrecoverable

handlers = Handlers()
_tried: set[tuple[str | None, int]] = set()


@handlers.handler("echo")
def echo(ctx: Context) -> Any:
    return ctx.data


@handlers.handler("add")
def add(ctx: Context) -> Any:
    time.sleep(0.02)
    own = ctx.data if isinstance(ctx.data, int) else 0
    return own + sum(value for value in ctx.inputs.values() if isinstance(value, int))


@handlers.handler("fail")
def fail(ctx: Context) -> Any:
    raise Unrecoverable("month 13 does not exist")


@handlers.handler("stamp")
def stamp(ctx: Context) -> int:
    """No two runs return the same."""
    return time.time_ns()


@handlers.handler("second time lucky")
def second_time_lucky(ctx: Context) -> int:
    run = (ctx.flow_id, ctx.generation)
    if run not in _tried:
        _tried.add(run)
        raise Unrecoverable("not the first time")
    return ctx.generation


@handlers.handler("wait")
def wait(ctx: Context) -> Any:
    while not ctx.cancelled.wait(0.05):
        pass
    return None
