"""The worker's handlers for the system test."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from glidemq_orchestrate import Context, Handlers, Skip, Unrecoverable
from glidemq_orchestrate.python import handlers as python_handlers

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


@handlers.handler("hold")
def hold(ctx: Context) -> Any:
    """Logs, waits until the file of the name in its data is there, and logs again."""
    for number in range(3):
        ctx.log(f"before {number}")
    opened = Path(os.environ["GATES"]) / str(ctx.data)
    while not opened.exists():
        if ctx.cancelled.wait(0.05):
            return None
    ctx.log("after")
    return ctx.data


@handlers.handler("wait")
def wait(ctx: Context) -> Any:
    while not ctx.cancelled.wait(0.05):
        pass
    return None


@handlers.handler("gate")
def gate(ctx: Context) -> Any:
    """Returns its data once a file is there."""
    while not Path(os.environ["GATE_FILE"]).exists():
        time.sleep(0.1)
    return ctx.data


def hang_and_tell_who() -> dict[str, Any]:
    """A flow that hangs; the process that makes it, that of the task, writes down its id."""
    Path(os.environ["TASK_PID_FILE"]).write_text(str(os.getpid()))
    return {"name": "hang", "nodes": [{"name": "slow", "queue": "system", "job": "wait"}]}


def steps() -> dict[str, Any]:
    """Four steps of some seconds, one after the other."""
    names = [f"step{number}" for number in range(4)]
    after = dict(zip(names, [[], *([name] for name in names)], strict=False))
    options = {"attempts": 1, "lease": 3}
    return {
        "name": "steps",
        "nodes": [
            {"name": name, "queue": "system", "job": "step", "after": after[name], "options": options}
            for name in names
        ],
    }


@handlers.handler("step")
def step(ctx: Context) -> list[Any]:
    """Takes some seconds and tells which process has done it."""
    with Path(os.environ["STEPS_FILE"]).open("a") as file:
        file.write(f"{ctx.node} {os.getpid()}\n")
    time.sleep(4)
    return [*(one for of_one in ctx.inputs.values() for one in of_one), ctx.node]


@handlers.handler("skips")
def skips(ctx: Context) -> Any:
    raise Skip("nothing to do")


handlers.include(python_handlers)
