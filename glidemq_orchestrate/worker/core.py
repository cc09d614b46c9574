"""The decisions of a worker, without I/O: how many jobs to fetch, and what an outcome means.

Input is what happened; output is what to do. Nothing here uses connections, tasks or threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.errors import EncodeError
from glidemq_orchestrate.foundation.names import short_reason
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.backoff import MAX_DELAY_MS, delay_ms
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.wire.codec import JsonLike, encode
from glidemq_orchestrate.worker.handler import BackoffStrategy
from glidemq_orchestrate.worker.signals import RetryLater, Skip, Suspend, Unrecoverable, WaitForChildren

AHEAD_SECONDS: Final = 0.02
MAX_AHEAD: Final = 128


@dataclass(slots=True)
class Slots:
    """How many jobs a worker may hold, and which it holds.

    ``concurrency`` jobs run at the same time. Of short jobs it holds more, so that the next one need not wait
    for a round trip: as many as start within 20 ms, at most 128; or ``prefetch`` where that is given.

    Attributes:
        held: Every attempt that this worker holds, started or not, by queue and job.
        waiting: Those of them that have not started, in order.
        running: Calls of handlers under way; a batch is one.
        reserved: Jobs that have been requested.
        aside: How many of the held ones wait although there is room: suspects, see ``suspects``.
        is_blocked: Too many handlers run beyond their timeout: nothing starts until one returns.
        is_resting: Suspects were given back for other workers, which are to see them first.
        is_slow: What waited here for a place was given back: nothing more is held until a handler returns.
    """

    concurrency: int
    prefetch: int | None = None
    batch_room: int = 0
    held: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    waiting: deque[Attempt] = field(default_factory=deque)
    running: int = 0
    reserved: int = 0
    stopping: bool = False
    aside: int = 0
    is_blocked: bool = False
    is_slow: bool = False
    is_resting: bool = False
    mean_seconds: float = 1.0

    def room(self) -> int:
        """How many more jobs to request."""
        if (
            self.stopping
            or self.is_blocked
            or self.is_resting
            or (self.is_slow and self.running >= self.concurrency)
        ):
            return 0
        places = self.concurrency + self.batch_room + self.ahead() + min(self.aside, self.concurrency)
        return max(places - len(self.held) - self.reserved, 0)

    def starts(self) -> int:
        """How many more jobs would begin at once; jobs of batches wait for each other."""
        if self.batch_room:
            return 0
        return max(self.concurrency - self.running - len(self.waiting) - self.reserved, 0)

    def ahead(self) -> int:
        """How many jobs to hold beyond the running ones."""
        if self.prefetch is not None:
            return self.prefetch
        return min(int(self.concurrency * AHEAD_SECONDS / max(self.mean_seconds, 1e-5)), MAX_AHEAD)

    def ran(self, seconds: float) -> None:
        """Update the mean duration of runs."""
        self.is_slow = False
        self.mean_seconds += (seconds - self.mean_seconds) / 16

    def take(self, attempt: Attempt) -> None:
        """Hold an attempt."""
        self.held[attempt.queue, attempt.job_id] = attempt

    def free(self, attempt: Attempt) -> None:
        """Release an attempt that has ended. A newer attempt of the same job stays."""
        if self.held.get((attempt.queue, attempt.job_id)) is attempt:
            del self.held[attempt.queue, attempt.job_id]


def outcome_of_value(attempt: Attempt, value: JsonLike, random: float) -> Outcome:
    """The outcome of a handler that returned; a value that is not valid JSON is a failure."""
    try:
        text = "null" if value is None else encode(value, where=f"result of job {attempt.name}")
    except EncodeError as exc:
        return outcome_of_error(attempt, exc, random)
    return Outcome(attempt, Kind.DONE, text, attempt.options.remove_on_complete)


def outcome_of_error(
    attempt: Attempt,
    error: BaseException,
    random: float,
    *,
    now_ms: int = 0,
    backoffs: Mapping[str, BackoffStrategy] | None = None,
) -> Outcome:
    """The outcome of a handler that raised."""
    options, text = attempt.options, text_of(error)
    if isinstance(error, Unrecoverable):
        return _failed(attempt, text or "Unrecoverable", 0, 0)
    if isinstance(error, RetryLater):
        wait = milliseconds(error.delay)
        if not error.counts:
            return Outcome(attempt, Kind.LATER, first=now_ms + wait)
        return _failed(attempt, text, options.attempts, wait)
    if isinstance(error, Skip | WaitForChildren | Suspend):
        return _parked(attempt, error, text)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    strategy = (backoffs or {}).get(options.backoff_name)
    failures = attempt.attempts_made + 1
    try:
        wait = (
            min(max(milliseconds(strategy(failures, error)), 0), MAX_DELAY_MS)
            if strategy
            else delay_ms(options.backoff, failures, random)
        )
    except BaseException as exc:  # noqa: BLE001  user code, called with a user error
        wait, reason = 0, f"{reason} (and backoff {options.backoff_name!r} raised {type(exc).__name__})"
    return _failed(attempt, reason, options.attempts, wait)


def _parked(attempt: Attempt, error: Skip | WaitForChildren | Suspend, text: str) -> Outcome:
    """The outcome of a handler that raised a signal which is no failure."""
    if isinstance(error, Skip):
        return Outcome(attempt, Kind.SKIP, short_reason(text), attempt.options.remove_on_complete)
    if isinstance(error, WaitForChildren):
        return Outcome(attempt, Kind.CHILDREN)
    return Outcome(
        attempt, Kind.SUSPEND, short_reason(text), first=milliseconds(error.timeout or timedelta(0))
    )


def unknown_handler(attempt: Attempt, known: list[str]) -> Outcome:
    """The failure of a job whose name has no handler here."""
    text = f"no handler for job {attempt.name!r} in this worker (known: {', '.join(known) or 'none'})"
    return _failed(attempt, f"HandlerNotFound: {text}", 0, 0)


def refuse(attempt: Attempt, reason: str) -> Outcome:
    """The final failure of a job that no further attempt can run."""
    return _failed(attempt, reason, 0, 0)


def reconnect_delays() -> Iterator[float]:
    """Seconds to wait before each attempt to reach the server again: 0.1, doubled up to 2."""
    delay = 0.1
    while True:
        yield delay
        delay = min(delay * 2, 2.0)


def _failed(attempt: Attempt, reason: str, attempts: int, backoff_ms: int) -> Outcome:
    return Outcome(
        attempt, Kind.FAIL, short_reason(reason), attempt.options.remove_on_fail, attempts, backoff_ms
    )


def text_of(error: BaseException) -> str:
    """The text of an exception, of a group with its first; '' if its ``__str__`` raises."""
    try:
        if not isinstance(error, BaseExceptionGroup):
            return str(error)
        first: BaseException = error.exceptions[0]
        return f"{error}, the first of them {type(first).__name__}: {text_of(first)}"
    except BaseException:  # noqa: BLE001  a user exception whose __str__ raises
        return ""
