"""The handlers of the code location ``dagster_location``: what they do is asked for by files of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glidemq_orchestrate import Context, Handlers

handlers = Handlers()


@handlers.handler("step")
def step(ctx: Context) -> Any:
    """Note the run; fail, fail once, or wait to be cancelled, where a file of the test asks for it."""
    data: Any = ctx.data
    place, name = Path(data["place"]), f"{ctx.node}{data['suffix']}"
    with (place / "runs").open("a") as runs:
        runs.write(f"{name}\n")
    if (place / f"fail-{name}").exists():
        raise ValueError(f"{name} is broken")
    if (once := place / f"fail-once-{name}").exists():
        once.unlink()
        raise ValueError(f"{name} is broken this time")
    if (place / f"hold-{name}").exists():
        ended = "cancelled" if ctx.cancelled.wait(60) else "waited in vain"
        (place / f"held-{name}").write_text(ended)
    return {"node": name, "inputs": sorted(ctx.inputs)}


@handlers.handler("echo")
def echo(ctx: Context) -> Any:
    """What it was given."""
    return ctx.data
