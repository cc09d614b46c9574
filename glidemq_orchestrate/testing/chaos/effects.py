"""Effects: what a handler does to other systems, marked by the user so that a repeat is found.

A mark is written only in the workers of ``run_chaos``; elsewhere it costs a comparison.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.foundation.names import named_function, with_directory
from glidemq_orchestrate.testing.chaos.digests import digest
from glidemq_orchestrate.testing.chaos.inherited import inherit
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.testing.chaos.striker import Striker
from glidemq_orchestrate.testing.chaos.strikes import Moment
from glidemq_orchestrate.worker.handlers.context import Context


@dataclass(slots=True)
class Marker:
    """Writes the effects of the handlers of this process, and triggers the strikes at them."""

    ledger: Ledger
    striker: Striker
    salt: str = ""


@dataclass(slots=True)
class RunningStep:
    """The running handler: its job, the worker's process, and its effects and calls so far."""

    context: Context
    owner: int
    effects: int = 0
    calls: int = 0


_RUNNING: Final[ContextVar[RunningStep | None]] = ContextVar("running", default=None)
_marker: Marker | None = None


def effect(name: str, key: object = "", *, ctx: Context | None = None) -> None:
    """Mark an effect of the running handler: call this right after the effect.

    ``run_chaos`` reports a mark if two attempts of a node made it with the same name and key, and whether the
    older attempt made it last. Elsewhere this does nothing.

    Args:
        name: The kind of effect, such as ``charge``.
        key: The target, such as the number of an order; its text is shown in the report.
        ctx: The job: required in batch handlers, and in processes that a handler starts.
    """
    if _marker is not None:
        if (found := _running(_marker, ctx)) is None:
            _marker.ledger.write("unknown", name=name)
        else:
            _write(_marker, found, name, str(key), time.monotonic_ns())


def install(marker: Marker, functions: Sequence[str] = ()) -> None:
    """Make marks count in this process, and mark every call of these functions, ``module:function``.

    Modules that are imported later get the wrapped functions.

    Raises:
        ConfigurationError: There is no such function.
    """
    global _marker  # noqa: PLW0603  one for the process
    _marker = marker
    inherit()
    for name in functions:
        _wrap(marker, name)


@contextmanager
def running(context: Context, owner: int) -> Iterator[None]:
    """Run the handler of a job in this block: in this thread or task, and those that it starts."""
    token = _RUNNING.set(RunningStep(context, owner))
    try:
        yield
    finally:
        _RUNNING.reset(token)


class InProcess:
    """A handler with ``process=True`` whose marks count: pickled by name, like the handler itself."""

    def __init__(self, function: Callable[[Context], Any]) -> None:
        self.function, self.owner = function, os.getpid()

    def __call__(self, ctx: Context) -> Any:
        """Run the handler, in the process that the worker started for it."""
        with running(ctx, self.owner):
            return self.function(ctx)


def _running(marker: Marker, ctx: Context | None) -> RunningStep | None:
    found = _RUNNING.get()
    if ctx is None or (found is not None and found.context is ctx):
        return found
    return RunningStep(ctx, marker.striker.owner)


def _write(marker: Marker, found: RunningStep, name: str, key: str, at: int) -> None:
    context = found.context
    found.effects += 1
    marker.ledger.write(
        "effect", flow=context.flow_id, node=context.node, queue=context.queue, job=context.job_id,
        owner=found.owner, name=name, key=key, began=at,
    )  # fmt: skip
    marker.striker.strike(context, Moment.AFTER_EFFECT, found.effects, owner=found.owner)


def _wrap(marker: Marker, name: str) -> None:
    with_directory()
    found = named_function(name, "effect")
    made: Any = _wrapped(marker, found.function, name.partition(":")[2])
    kind = type(inspect.getattr_static(found.holder, found.name))
    if kind is classmethod:
        made = classmethod(_wrapped(marker, found.function.__func__, name.partition(":")[2]))  # type: ignore[attr-defined]
    elif kind is staticmethod:
        made = staticmethod(made)
    setattr(found.holder, found.name, made)


def _wrapped(marker: Marker, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def begin() -> int:
        if (found := _RUNNING.get()) is None:
            marker.ledger.write("unknown", name=name)
        else:
            found.calls += 1
            marker.striker.strike(found.context, Moment.BEFORE_EFFECT, found.calls, owner=found.owner)
            marker.ledger.write("call", flow=found.context.flow_id, node=found.context.node, name=name)
        return time.monotonic_ns()

    def end(args: tuple[Any, ...], kwargs: dict[str, Any], at: int) -> None:
        if (found := _RUNNING.get()) is not None:
            _write(marker, found, name, digest((args, kwargs), marker.salt), at)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            at = begin()
            value = await function(*args, **kwargs)
            end(args, kwargs, at)
            return value

        return awaiting

    @functools.wraps(function)
    def calling(*args: Any, **kwargs: Any) -> Any:
        at = begin()
        value = function(*args, **kwargs)
        end(args, kwargs, at)
        return value

    return calling
