"""Code for blocking clients and for clients on an event loop: generators that yield the calls to make.

A generator yields each call as a function without arguments, and resumes with its result or its error.
``drive`` makes the calls of a blocking client, ``adrive`` awaits those of a client on an event loop. All
other code is shared. ``Patience`` waits out an outage of the server.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    LibraryError,
    ProtocolError,
    TransportError,
)
from glidemq_orchestrate.foundation.durations import Duration, duration, seconds
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
        import asyncio  # noqa: PLC0415  slow, and not needed by a blocking client

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


CALM_SECONDS: Final = 60.0  # a failure after this long without failures begins another outage
FIRST_PAUSE: Final = 0.2
MAX_PAUSE: Final = 15.0
_PASSING: Final = (TransportError, ConfigurationError, LibraryError, ProtocolError)


class Warns(Protocol):
    """A logger, of the standard library or of an orchestrator."""

    def warning(self, text: str, /, *args: object) -> object:
        """Log a warning."""


class TaskLog(Warns, Protocol):
    """The log of a task: a logger of the standard library, or a similar object."""

    def info(self, text: str, /, *args: object) -> object:
        """Log an event."""

    def error(self, text: str, /, *args: object) -> object:
        """Log a failure."""


class Patience:
    """Repeats calls that fail temporarily. A call must be safe to repeat.

    Errors that are answers of the server, such as ``FlowNotFound``, are raised immediately.

    Args:
        limit: How long an outage of the server may last; None: no limit.
        other: How long another error that is no answer may last: a wrong password, a missing permission, or
            a function library that does not fit.
        first: How long the server may be unreachable before its first reply, since the address may be wrong;
            None: as ``limit``.
        what: The failure, for the log.
        log: Receives a warning before each repetition; default: a logger of this package.

    Raises:
        ConfigurationError: A duration is not valid.
    """

    def __init__(
        self,
        limit: Duration | None,
        *,
        other: Duration = 0,
        first: Duration | None = None,
        what: str = "The server cannot be reached",
        log: Warns | None = None,
    ) -> None:
        self._limit = _seconds("the limit of a patience", limit)
        self._other = seconds(duration("other", other))
        self._first = self._limit if first is None else _seconds("first", first)
        self._what = what
        self._log: Warns = logging.getLogger("glidemq_orchestrate.runs") if log is None else log
        self._has_replied = False
        self._outage: _Outage | None = None

    def __call__(self, call: Callable[[], T]) -> T:
        """Return the result of the call. Each call has the full time.

        Raises:
            GlideMQError: The error is an answer, or the failure has lasted for too long.
        """
        return drive(self.steps(call))

    def steps(self, call: Step[T]) -> Steps[T]:
        """``__call__`` as steps, for blocking clients and for clients on an event loop."""
        outage = _Outage()
        while True:
            try:
                found: T = yield call
            except GlideMQError as exc:
                yield Rest(self._pause(exc, outage))
            else:
                self._has_replied = True
                return found

    def pause(self, error: GlideMQError) -> float:
        """Seconds to wait before the next try, for code with its own loop of repeats.

        All failures count as one outage until there has been none for a minute.

        Raises:
            GlideMQError: The error itself: it is an answer, or the failure has lasted for too long.
        """
        if self._outage is None or time.monotonic() - self._outage.last > CALM_SECONDS:
            self._outage = _Outage()
        return self._pause(error, self._outage)

    def _pause(self, error: GlideMQError, outage: _Outage) -> float:
        is_away = isinstance(error, TransportError) and error.retryable
        limit = self._other if not is_away else self._limit if self._has_replied else self._first
        lasted = outage.lasts()
        if not isinstance(error, _PASSING) or (limit is not None and lasted >= limit):
            raise error
        pause = outage.pause(limit)
        name = "" if is_away else f"{type(error).__name__}: "
        self._log.warning("%s, retrying in %.1f s: %s%s", self._what, pause, name, error)
        return pause


def _seconds(name: str, limit: Duration | None) -> float | None:
    return None if limit is None else seconds(duration(name, limit))


NO_PATIENCE: Final = Patience(0)
"""Repeats nothing."""


class _Outage:
    """A series of failures."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._since: float | None = None
        self._pauses = reconnect_pauses()

    def lasts(self) -> float:
        """The seconds since the first failure; the call counts as a further failure."""
        self.last = time.monotonic()
        if self._since is None:
            self._since = self.last
        return self.last - self._since

    def pause(self, limit: float | None) -> float:
        """Seconds to the next try. At least ten tries fit into ``limit``, the last at its end."""
        pause = next(self._pauses)
        if limit is None:
            return pause
        return min(pause, max(limit / 10, FIRST_PAUSE), max(limit - self.lasts(), 0.0))


def reconnect_pauses() -> Iterator[float]:
    """Seconds between attempts to reach a server: from 0.2 to 15, each shortened at random.

    The randomness keeps a thousand clients from reconnecting at the same moment.
    """
    pause = FIRST_PAUSE
    while True:
        yield pause * (1 - random.random() / 2)  # noqa: S311  jitter
        pause = min(pause * 2, MAX_PAUSE)
