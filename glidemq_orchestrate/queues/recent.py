"""How many jobs of a queue ended in the last minutes or hours, and how long they waited and ran.

Beside the statistics of a day, workers report into a hash for each hour with a row for each ten minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.queues.metrics import ended
from glidemq_orchestrate.queues.statistics import Durations, HandlerTally, durations_of, note, tallies_in
from glidemq_orchestrate.wire.call import Call, Op, ask_all, whole_hash
from glidemq_orchestrate.wire.keys import QueueKeys

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
ROW_MS: Final = 600_000
ROWS: Final = HOUR_MS // ROW_MS
KEPT_MS: Final = 26 * HOUR_MS


@dataclass(frozen=True, slots=True)
class RecentStatistics:
    """What happened in a queue lately.

    Attributes:
        since: From when on ends are counted: a whole minute.
        until: The server's time.
        completed: How many jobs completed, also those that Node workers ran.
        failed: How many jobs failed for good, also those that Node workers ran.
        retries: How many failed attempts were followed by another one.
        durations_since: From when on the durations and ``retries`` are counted: a multiple of ten minutes,
            at or before ``since``.
        waiting: How long jobs were ready before a worker took them; see ``HandlerStatistics``.
        running: How long handlers ran, over their successful attempts; elements of arrays too.
    """

    since: datetime
    until: datetime
    completed: int
    failed: int
    retries: int
    durations_since: datetime
    waiting: Durations
    running: Durations

    @property
    def completed_per_minute(self) -> float:
        """The mean number of jobs that completed in a minute."""
        return self.completed / ((self.until - self.since) / timedelta(minutes=1))

    @property
    def failed_per_minute(self) -> float:
        """The mean number of jobs that failed for good in a minute."""
        return self.failed / ((self.until - self.since) / timedelta(minutes=1))


def record(queue: QueueKeys, tallies: Mapping[str, HandlerTally], now_ms: int) -> Call[None]:
    """Add the tallies of a worker, by handler, to the ten minutes of ``now_ms``. A repeat adds them again."""
    total = HandlerTally()
    for one in tallies.values():
        total.merge(one)
    row = str(now_ms % HOUR_MS // ROW_MS)
    return note(queue.recent_statistics(now_ms // HOUR_MS), {row: total}, KEPT_MS // 1_000, ROWS)


def checked(period: Duration) -> int:
    """A period in ms.

    Raises:
        ConfigurationError: It is not from a minute to a day.
    """
    return milliseconds(duration("period", period, min_=timedelta(minutes=1), max_=timedelta(days=1)))


def recent(queues: Sequence[QueueKeys], period_ms: int, now_ms: int) -> Op[RecentStatistics]:
    """Read what happened in the last ``period_ms`` in all these queues."""
    since = _floor(now_ms - period_ms, MINUTE_MS)
    first = _floor(since, ROW_MS)
    hours = range(first // HOUR_MS, now_ms // HOUR_MS + 1)
    ends = [ended(queue, state, since, now_ms) for state in ("completed", "failed") for queue in queues]
    counts = yield from ask_all(ends)
    places = [(queue, hour) for hour in hours for queue in queues]
    found = yield from ask_all([whole_hash(queue.recent_statistics(hour)) for queue, hour in places])
    total = HandlerTally()
    for (_, hour), fields in zip(places, found, strict=True):
        for row, one in tallies_in(fields).items():
            if row.isdecimal() and hour * HOUR_MS + int(row) * ROW_MS >= first:
                total.merge(one)
    return RecentStatistics(
        since=_moment(since),
        until=_moment(now_ms),
        completed=sum(counts[: len(queues)]),
        failed=sum(counts[len(queues) :]),
        retries=total.retries,
        durations_since=_moment(first),
        waiting=durations_of(total.waiting),
        running=durations_of(total.running),
    )


def _floor(at_ms: int, step: int) -> int:
    return at_ms // step * step


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)
