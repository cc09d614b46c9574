"""Handlers that run in processes of their own: these import them by name."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from glidemq_orchestrate import RetryLater, Skip, Suspend, Unrecoverable
from glidemq_orchestrate.errors import LeaseLost
from tests.raw_client import client_of


def measure(ctx: Any) -> Any:
    ctx.progress({"half": True})
    ctx.log("measured")
    return {"pid": os.getpid(), "data": ctx.data, "attempt": ctx.attempt}


def write(ctx: Any) -> None:
    for number in range(ctx.data):
        ctx.write_message(str(number))


def disown(ctx: Any) -> None:
    """Let the server believe that the attempt is another's."""
    with client_of(ctx.data["url"]) as client:
        before = client.hget(ctx.data["key"], ctx.data["field"])
        client.hset(ctx.data["key"], mapping={ctx.data["field"]: ctx.data["value"], "before": before or "0"})


def restore(ctx: Any) -> None:
    """Undo ``disown``."""
    with client_of(ctx.data["url"]) as client:
        client.hset(ctx.data["key"], ctx.data["field"], str(client.hget(ctx.data["key"], "before")))


def check(ctx: Any) -> str:
    ctx.check_owner()
    disown(ctx)
    try:
        ctx.check_owner()
    except LeaseLost as exc:
        restore(ctx)
        return str(exc)
    return "not told"


def note(ctx: Any) -> None:
    with Path(ctx.data["path"]).open("a") as file:
        file.write(f"{ctx.epoch} {ctx.token}\n")
    if ctx.attempt <= ctx.data["fails"]:
        raise ValueError


def hang(ctx: Any) -> None:
    Path(ctx.data).write_text(str(os.getpid()))
    time.sleep(600)


def die(ctx: Any) -> None:
    os._exit(3)


class Odd(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Sealed(Exception):
    """Cannot be sent to another process at all."""

    def __reduce__(self) -> Any:
        raise RuntimeError("sealed")


class Foul(BaseException):
    """Not an Exception, and it fails wherever it is made again."""

    def __reduce__(self) -> Any:
        return (_explode, ())


class Liar(Exception):
    """Fails when its text is asked for."""

    def __str__(self) -> str:
        raise SystemExit(7)


def _explode() -> None:
    raise KeyboardInterrupt("made again")


class Worse(dict[str, Any]):
    """A result whose encoding breaks everything."""

    def items(self) -> Any:
        raise SystemExit(9)


# The connection to the worker has the number that it had in the worker, which may have many files open.
MAX_FILES: Final = 1024

ENDS: dict[str, Callable[[], Any]] = {
    "exit": lambda: sys.exit(0),
    "exit-with-code": lambda: sys.exit(2),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "generator-exit": lambda: _raise(GeneratorExit()),
    "stop-iteration": lambda: next(iter([])),
    "base": lambda: _raise(Foul()),
    "odd": lambda: _raise(Odd("this", "that")),
    "sealed": lambda: _raise(Sealed("x")),
    "liar": lambda: _raise(Liar()),
    "no-json": object,
    "bad-result": lambda: Worse(a=1),
    "quick-exit": lambda: os._exit(0),
    "quick-exit-with-code": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "big": lambda: "x" * 2_000_000,
    "talks": lambda: sys.stdout.write("hello") and None,
    "forks": lambda: os.fork() and "parent",
    "forks-for-good": lambda: _fork_and_sleep(600),
    "pool": lambda: _in_pool(2),
    "writes-everywhere": lambda: _write_everywhere(MAX_FILES),
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "closes-everything": lambda: os.closerange(3, MAX_FILES),
}


def _write_everywhere(files: int) -> None:
    for number in range(3, files):
        with contextlib.suppress(OSError):
            os.write(number, b"\xff" * 64)
    time.sleep(600)


def _fork_and_sleep(seconds: float) -> int:
    """Leave a process behind."""
    if (pid := os.fork()) == 0:
        time.sleep(seconds)
    return pid


def _in_pool(size: int) -> list[int]:
    with multiprocessing.get_context("fork").Pool(size) as pool:
        return pool.map(abs, [-1, -2])


def _raise(error: BaseException) -> None:
    raise error


def end(ctx: Any) -> Any:
    """End as the data asks for."""
    return ENDS[ctx.data]()


def steer(ctx: Any) -> None:
    """Raise a signal to the worker, with all its fields."""
    kinds = {
        "later": RetryLater(timedelta(hours=1), "not now", counts=False),
        "never": Unrecoverable("never again"),
        "park": Suspend("wait", timedelta(hours=2)),
        "skip": Skip("not needed"),
    }
    raise kinds[ctx.data]


def spin(ctx: Any) -> None:
    """Keep the interpreter to itself, in C, and start a process that does the same."""
    below = subprocess.Popen([sys.executable, "-c", "sum(range(10**12))"])
    Path(ctx.data).write_text(f"{os.getpid()} {below.pid}")
    sum(range(10**12))


def allowed(ctx: Any) -> list[str]:
    return list(ctx.allow_import)


def refuse_with_data(ctx: Any) -> None:
    raise ValueError(ctx.data)
