"""Effects: changes that a handler makes in other systems, marked by the user so that repeats are found.

A mark is written only in the workers of ``run_chaos``; elsewhere it only costs a comparison.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from glidemq_orchestrate.foundation.functions import named_function, with_directory
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.testing.chaos.strikes import Moment, Striker
from glidemq_orchestrate.worker.handlers.context import Context


@dataclass(slots=True)
class Marker:
    """Writes the effects of the handlers of this process, and triggers the strikes at them."""

    ledger: Ledger
    striker: Striker
    salt: str = ""


@dataclass(slots=True)
class RunningStep:
    """A running handler: its job, the process of its worker, and its effects and calls so far."""

    context: Context
    owner: int
    effects: int = 0
    calls: int = 0


_RUNNING: Final[ContextVar[RunningStep | None]] = ContextVar("running", default=None)
_marker: Marker | None = None


def effect(name: str, key: object = "", *, ctx: Context | None = None) -> None:
    """Mark an effect of the running handler: call this right after the effect.

    ``run_chaos`` reports a mark if two attempts of a node make it with the same name and key, and whether the
    older attempt makes it last. Elsewhere this does nothing.

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

    Modules that are imported later see the wrapped functions.

    Raises:
        ConfigurationError: There is no such function.
    """
    global _marker  # noqa: PLW0603  one marker per process
    _marker = marker
    inherit()
    for name in functions:
        _wrap(marker, name)


@contextmanager
def running(context: Context, owner: int) -> Iterator[None]:
    """Mark this block as the handler of a job, with the threads and tasks that it starts."""
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


MAX_LEAVES: Final = 1000
_BY_REPR: Final = (
    str, int, float, complex, bool, bytes, bytearray, type(None), date, time_of_day, timedelta, Decimal,
    Fraction, Enum, PurePath, UUID,
)  # fmt: skip


def digest(value: Any, salt: str) -> str:
    """The digest of a value. For objects that are no plain values, only the type counts."""
    return hashlib.blake2b(
        _text(value).encode(errors="replace"), key=salt.encode(), digest_size=6
    ).hexdigest()


def leaves(value: Any, salt: str) -> dict[str, str]:
    """Digests of the parts of a result by path; a single one for the whole if there are more than 1,000."""
    found: dict[str, str] = {}
    for path, leaf in _walk(value, "$"):
        found[path] = digest(leaf, salt)
        if len(found) > MAX_LEAVES:
            return {"$": digest(value, salt)}
    return found


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name in value:
            yield from _walk(value[name], f"{path}.{name}")
    elif isinstance(value, list | tuple) and value:
        for at, item in enumerate(value):
            yield from _walk(item, f"{path}[{at}]")
    else:
        yield path, value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{_text(name)}:{_text(item)}" for name, item in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, AbstractSet):
        return "(" + ",".join(sorted(map(_text, value))) + ")"
    return repr(value) if isinstance(value, _BY_REPR) else f"<{type(value).__qualname__}>"


def inherit() -> None:
    """Pass context variables on to new threads. Repeatable."""
    if not isinstance(threading.Thread.start, _Inheriting):
        threading.Thread.start = _Inheriting(threading.Thread.start)  # type: ignore[method-assign,assignment]
        ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]


class _Inheriting:
    """``Thread.start`` with the context variables of the caller."""

    def __init__(self, start: Callable[[threading.Thread], None]) -> None:
        self._start = start

    def __get__(self, thread: threading.Thread | None, owner: type | None = None) -> Any:
        return self if thread is None else functools.partial(self._begin, thread)

    def _begin(self, thread: threading.Thread) -> None:
        run, about = thread.run, contextvars.copy_context()
        thread.run = lambda: about.run(run)  # type: ignore[method-assign]
        self._start(thread)


def _submitting(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(submit)
    def submitting(
        pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        return submit(pool, contextvars.copy_context().run, function, *args, **kwargs)

    return submitting
