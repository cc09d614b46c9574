"""Code that runs with a blocking client and with one on an event loop: generators of the calls to be made.

A generator yields each call as a function without arguments and is resumed with what the call has returned,
or with the error that it has raised. ``drive`` makes the calls of a blocking client, ``adrive`` awaits those
of a client on an event loop. Nothing else differs between the two.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

from glidemq_orchestrate.foundation.importing import importing

T = TypeVar("T")

Step: TypeAlias = Callable[[], "T | Awaitable[T]"]


@dataclass(frozen=True, slots=True)
class Rest:
    """A wait, in place of a call."""

    seconds: float


Steps: TypeAlias = Generator["Step[Any] | Rest", Any, T]


def drive(steps: Steps[T]) -> T:
    """Run steps to their end with a blocking client."""
    try:
        step = next(steps)
        while True:
            try:
                found = _rest(step.seconds) if isinstance(step, Rest) else step()
            except Exception as exc:  # noqa: BLE001  the steps decide
                step = steps.throw(exc)
            else:
                step = steps.send(found)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def adrive(steps: Steps[T]) -> T:
    """Run steps to their end with a client on an event loop."""
    with importing():
        import asyncio  # noqa: PLC0415  slow, and a blocking client does without

    try:
        step = next(steps)
        while True:
            try:
                found = asyncio.sleep(step.seconds) if isinstance(step, Rest) else step()
                if isawaitable(found):
                    found = await found
            except Exception as exc:  # noqa: BLE001  the steps decide
                step = steps.throw(exc)
            else:
                step = steps.send(found)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _rest(seconds: float) -> Any:
    time.sleep(seconds)
