"""What a worker decides, without doing it: how much to take, which chores are due, what an outcome means.

Input is what happened; output is what to do. Nothing here knows of connections, tasks or threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from glidemq_orchestrate.codec import JsonLike, encode
from glidemq_orchestrate.errors import EncodeError
from glidemq_orchestrate.handler import RetryLater, Unrecoverable
from glidemq_orchestrate.job import Attempt, milliseconds
from glidemq_orchestrate.retry import delay_ms

MAX_REASON: Final = 4_000


class Chore(StrEnum):
    """Work that falls due by time."""

    BEAT = "beat"
    ANNOUNCE = "announce"
    UPKEEP = "upkeep"
    RECLAIM = "reclaim"


class ChoreList:
    """When each chore is due next. The first time is at once."""

    def __init__(self, periods_ms: Mapping[Chore, int]) -> None:
        self._periods = dict(periods_ms)
        self._due = dict.fromkeys(periods_ms, 0)

    def take(self, now_ms: int) -> list[Chore]:
        """The chores that are due; each is then due again one period later."""
        due = [chore for chore, at in self._due.items() if at <= now_ms]
        for chore in due:
            self._due[chore] = now_ms + self._periods[chore]
        return due

    def bring_forward(self, chore: Chore, at_ms: int) -> None:
        """Make a chore due no later than then."""
        self._due[chore] = min(self._due[chore], at_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Milliseconds until the next chore is due."""
        return max(min(self._due.values()) - now_ms, 0)


@dataclass(slots=True)
class Slots:
    """How many jobs a worker may hold, and which it holds."""

    concurrency: int
    held: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    stopping: bool = False

    def room(self, waiting: int) -> int:
        """How many more jobs to take when ``waiting`` delivered ones have not begun."""
        return 0 if self.stopping else max(self.concurrency - len(self.held) - waiting, 0)

    def take(self, attempt: Attempt) -> None:
        """An attempt has begun."""
        self.held[attempt.queue, attempt.job_id] = attempt

    def free(self, attempt: Attempt) -> None:
        """An attempt has ended. A newer attempt of the same job stays."""
        if self.held.get((attempt.queue, attempt.job_id)) is attempt:
            del self.held[attempt.queue, attempt.job_id]


@dataclass(frozen=True, slots=True)
class Finish:
    """Hand in this result."""

    result: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Hand in this failure."""

    reason: str
    max_attempts: int
    backoff_ms: int


def judge_result(attempt: Attempt, value: JsonLike, random: float) -> Finish | Fail:
    """What to say about a handler that returned; a value that is not JSON is a failure."""
    try:
        return Finish(encode(value, where=f"result of job {attempt.name}"))
    except EncodeError as exc:
        return judge_error(attempt, exc, random)


def judge_error(attempt: Attempt, error: BaseException, random: float) -> Fail:
    """What to say about a handler that raised."""
    options, text = attempt.options, _text(error)
    if isinstance(error, Unrecoverable):
        return Fail(_told(text or "Unrecoverable"), 0, 0)
    if isinstance(error, RetryLater):
        return Fail(_told(text), options.attempts, milliseconds(error.delay))
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Fail(_told(reason), options.attempts, delay_ms(options.backoff, attempt.attempts_made + 1, random))


def unknown_handler(attempt: Attempt, known: list[str]) -> Fail:
    """What to say about a job whose name has no handler here."""
    told = f"no handler for job {attempt.name!r} in this worker (known: {', '.join(known) or 'none'})"
    return Fail(f"HandlerNotFound: {told}", 0, 0)


def reconnect_delays() -> Iterator[float]:
    """Seconds to wait before each attempt to reach the server again: 0.1, doubled up to 5."""
    delay = 0.1
    while True:
        yield delay
        delay = min(delay * 2, 5.0)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  an exception of a user that cannot even tell itself
        return ""


def _told(reason: str) -> str:
    text = reason.encode(errors="replace").decode()  # half a character, as in names of files, cannot be sent
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
