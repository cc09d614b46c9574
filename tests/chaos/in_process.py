"""What handlers do, and those that run in a child process of a worker; each child imports it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from glidemq_orchestrate import Context, Skip, Unrecoverable
from glidemq_orchestrate.lifeline.guard import processes
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from tests.chaos.plan import fate_of

FOLDER: Final = "GLIDEMQ_CHAOS_FOLDER"
"""The environment variable by which a child finds the folder of its round."""

SLEEPS: Final = 100
"""A handler that takes so many milliseconds starts a process of its own, which would sleep for a minute."""


ALONE_SECONDS: Final = 60.0
"""How long a handler whose worker is dead would go on."""


def value_of(node: str, inputs: Mapping[str, Any]) -> int:
    """The result of a node: it depends on the results of its dependencies."""
    values = sorted((name, value["value"]) for name, value in inputs.items() if value and "value" in value)
    return zlib.crc32(json.dumps([node, values]).encode())


def ledger_of(folder: Path) -> Path:
    """The file of the ledger of a round."""
    return folder / "ledger.jsonl"


def cures_of(folder: Path) -> Path:
    """A folder with a file for each flow that was retried."""
    return folder / "cures"


class Given(Protocol):
    """What a handler knows of its job, whoever runs it."""

    @property
    def data(self) -> Any:
        """Of the job."""

    @property
    def attempt(self) -> int:
        """From 1."""

    @property
    def node(self) -> str | None:
        """The name of the node."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The results of the dependencies."""


class GivenElement(Given, Protocol):
    """The same of an element of an array."""

    @property
    def index(self) -> int | None:
        """Its position."""


@dataclass(frozen=True)
class Told:
    """What a step knows of its job where its handler has no context of ours, as ``decide`` takes it."""

    data: Mapping[str, Any]
    attempt: int
    node: str | None
    inputs: Mapping[str, Any]
    index: int | None = None


def decide(ctx: Given, cures: Path) -> int:
    """End as the data of the job says."""
    data: Any = ctx.data
    if ctx.attempt <= data["fails"]:
        raise RuntimeError("an attempt that fails")
    is_cured = data["ends"] != "cure" or (cures / data["flow"]).exists()
    if data["ends"] == "fail" or not is_cured:
        raise Unrecoverable("fails for good")
    if data["ends"] == "skip":
        raise Skip("as planned")
    return value_of(str(ctx.node), ctx.inputs)


def decide_element(ctx: GivenElement, cures: Path) -> int:
    """End an element of an array as the data of its job says."""
    data: Any = ctx.data
    assert ctx.index is not None
    fate = fate_of(data, ctx.index)
    if fate == "once" and ctx.attempt == 1:
        raise RuntimeError("an attempt that fails")
    if fate == "fail" or (fate == "cure" and not (cures / data["flow"]).exists()):
        raise Unrecoverable("fails for good")
    if fate == "skip":
        raise Skip("as planned")
    return value_of_element(str(ctx.node), ctx.index, data["item"])


def value_of_element(node: str, index: int, item: Any) -> int:
    """The result of an element."""
    return value_of(f"{node}[{index}] of {item}", {})


def element(ctx: Context) -> int:
    """An element of an array."""
    _spend(ctx)
    return decide_element(ctx, cures_of(Path(os.environ[FOLDER])))


def say(ctx: Context, data: Any) -> None:
    """Write the messages of a node."""
    for number in range(data["says"]):
        ctx.write_message(f"{number + 1} of {ctx.node}")


def node(ctx: Context) -> int:
    """A node."""
    _spend(ctx)
    say(ctx, ctx.data)
    return decide(ctx, cures_of(Path(os.environ[FOLDER])))


def plain(ctx: Context) -> int:
    """A job without a flow."""
    _spend(ctx)
    return 1


def _spend(ctx: Context) -> None:
    data: Any = ctx.data
    ledger = Ledger(ledger_of(Path(os.environ[FOLDER])), "child")
    with contextlib.closing(ledger), contextlib.ExitStack() as stack:
        own, worker = os.getpid(), os.getppid()
        write_child(ledger, "handler", own, [worker])
        if data["ms"] >= SLEEPS:
            write_child(ledger, "sleeper", stack.enter_context(_sleeper()), [worker, own])
        time.sleep(data["ms"] / 1000)
        until = time.monotonic() + ALONE_SECONDS
        while os.getppid() != worker and time.monotonic() < until:  # the worker is dead: this must be ended
            time.sleep(0.1)


@contextlib.contextmanager
def _sleeper() -> Iterator[int]:
    """A process that only its end or that of its parents ends."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def write_child(ledger: Ledger, what: str, pid: int, above: list[int], **more: Any) -> None:
    """Who runs; it must end with each process above it."""
    ledger.write("child", what=what, child=pid, above=above, started=processes()[pid].started, **more)
