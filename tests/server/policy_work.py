"""Nodes whose names set how they end, for the tests of what that means to others."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import Skip, Unrecoverable

if TYPE_CHECKING:
    from tests.conftest import RunningWorker

LONG = timedelta(seconds=60)


class Work:
    """Ends each node as its name or the test asks for.

    ``worker`` calls it. Stop that one before you compare two dumps of the server: it has chores of its own.
    """

    worker: RunningWorker

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}
        self.ran: list[str] = []
        self.inputs: dict[str, dict[str, Any]] = {}
        self.held: dict[str, threading.Event] = {}

    def __call__(self, ctx: Any) -> str:
        name = str(ctx.node)
        self.ran.append(name)
        self.inputs[name] = dict(ctx.inputs)
        if name in self.held:
            assert self.held[name].wait(30)
        end = self.ends.get(name) or name.split(".", maxsplit=1)[0]
        if end == "failed":
            raise Unrecoverable("broken")
        if end == "skipped":
            raise Skip("nothing to do")
        return f"{name}!"


def states(flow: Any) -> dict[str, str]:
    return {one.name: str(one.state) for one in flow.nodes()}


def reasons(flow: Any) -> dict[str, str]:
    return {one.name: one.reason for one in flow.nodes()}
