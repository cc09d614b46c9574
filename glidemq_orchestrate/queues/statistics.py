"""How long the jobs of a queue wait and run: counts, means and histograms by handler and day.

Workers add up what they have run and report it every few seconds. The mean and the sum of squared deviations
of two sets of values follow from those of each set (Chan, Golub, LeVeque: Updating formulae and a pairwise
algorithm for computing sample variances, 1979), so the server merges reports without the single values.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask_all, function, whole_hash
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

KEPT_DAYS: Final = 30
MAX_HANDLERS: Final = 100
"""The number of handlers of a queue and day that have statistics of their own; the others share one row."""
OTHERS: Final = ""
"""The name of that row."""
DAY_MS: Final = 86_400_000
STEPS: Final = 4
"""Buckets per doubling of a duration below a second."""
BOUNDS_SECONDS: Final = (
    0.004, 0.016, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0,
    14_400.0, 86_400.0,
)  # fmt: skip
"""Some bounds between buckets, for those that want few."""
_UNITS: Final = {"q": 250, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
_BUCKET: Final = re.compile(r"f[0-3]?\d|[qsmh][0-5]?\d|d\d{1,5}", re.ASCII)
_MAX: Final = {"mean": 1e13, "squares": 1e26}
"""Above any duration in ms that ``timedelta`` can add up, and its square."""
_COARSE: Final = [*(f"s{n}" for n in range(60)), *(f"m{n}" for n in range(1, 60)),
                  *(f"h{n}" for n in range(1, 24)), *(f"d{n}" for n in range(1, 7))]  # fmt: skip


def _bucket_of(milliseconds: int) -> str:
    if milliseconds < 1_000:
        return f"f{int(math.log2(milliseconds) * STEPS) if milliseconds > 0 else 0}"
    if milliseconds < 10_000:
        return f"q{milliseconds // 250}"
    if milliseconds < 60_000:
        return f"s{milliseconds // 1_000}"
    if milliseconds < 3_600_000:
        return f"m{milliseconds // 60_000}"
    if milliseconds < DAY_MS:
        return f"h{milliseconds // 3_600_000}"
    return f"d{milliseconds // DAY_MS}"


_SHORT: Final = [_bucket_of(milliseconds) for milliseconds in range(1_000)]


def bucket_of(milliseconds: int) -> str:
    """The name of the bucket of a duration: its width, and its number.

    ``f``: a quarter of an octave, below a second; ``q``: a quarter of a second, below ten; then ``s``, ``m``,
    ``h`` and ``d``: seconds, minutes, hours and days.
    """
    return _SHORT[max(milliseconds, 0)] if milliseconds < 1_000 else _bucket_of(milliseconds)


def _bounds_ms(bucket: str) -> tuple[float, float]:
    """The least duration of a bucket, and the least one above it."""
    unit, place = bucket[0], int(bucket[1:])
    if unit == "f":
        return (2 ** (place / STEPS) if place else 0.0), min(2 ** ((place + 1) / STEPS), 1_000.0)
    return float(place * _UNITS[unit]), float((place + 1) * _UNITS[unit])


@dataclass(slots=True)
class Tally:
    """Durations that are added up: their number, mean, sum of squared deviations (ms), and buckets."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    buckets: Counter[str] = field(default_factory=Counter)

    def add(self, milliseconds: Sequence[float]) -> None:
        """Add durations; negative ones count as 0. Many at once take less time than one by one."""
        if not milliseconds:
            return
        values = milliseconds if min(milliseconds) >= 0 else [max(value, 0) for value in milliseconds]
        mean = sum(values) / len(values)
        distances = [value - mean for value in values]
        squares = sum(map(operator.mul, distances, distances))
        buckets: Counter[str] = Counter()
        for value, count in Counter(map(int, values)).items():
            buckets[bucket_of(value)] += count
        self.merge(Tally(len(values), mean, squares, buckets))

    def merge(self, other: Tally) -> None:
        """Add the durations of another tally."""
        if not other.count:
            return
        total, distance = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + distance * distance * self.count * other.count / total
        self.mean += distance * other.count / total
        self.count = total
        self.buckets.update(other.buckets)


@dataclass(slots=True)
class HandlerTally:
    """What a worker, or all of them, counted for one handler."""

    waiting: Tally = field(default_factory=Tally)
    running: Tally = field(default_factory=Tally)
    failures: int = 0
    retries: int = 0

    def merge(self, other: HandlerTally) -> None:
        """Add what another one counted."""
        self.waiting.merge(other.waiting)
        self.running.merge(other.running)
        self.failures += other.failures
        self.retries += other.retries


@dataclass(frozen=True, slots=True)
class DurationBucket:
    """Durations from ``start`` up to but not including ``end``, and how many there were."""

    start: timedelta
    end: timedelta
    count: int


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of a day.

    Attributes:
        count: How many.
        mean: Their mean; None if there is none.
        deviation: Their sample standard deviation; 0 for a single one, None if there is none.
        buckets: Those that are not empty, shortest first. Below a second, four of them double a duration; up
            to ten seconds each is a quarter of a second wide, up to a minute a second, up to an hour a
            minute, up to a day an hour, then a day.
    """

    count: int
    mean: timedelta | None
    deviation: timedelta | None
    buckets: tuple[DurationBucket, ...] = ()

    def percentile(self, percent: float) -> timedelta | None:
        """The duration that this percentage of them does not exceed; None if there is none.

        Estimated: the durations of a bucket count as spread evenly over it.

        Raises:
            ConfigurationError: ``percent`` is not from 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise ConfigurationError(f"percent must be from 0 to 100, got {percent!r}")
        left = self.count * percent / 100
        for bucket in self.buckets:
            if left <= bucket.count:
                return bucket.start + (bucket.end - bucket.start) * (max(left, 0) / bucket.count)
            left -= bucket.count
        return self.buckets[-1].end if self.buckets else None

    @property
    def histogram(self) -> tuple[int, ...]:
        """The counts in the 148 buckets of qless: 60 seconds, 59 minutes, 23 hours, 6 days.

        Longer durations are in none of them.
        """
        counts: Counter[str] = Counter()
        for bucket in self.buckets:
            seconds = int(bucket.start.total_seconds())
            counts[f"s{seconds}" if seconds < 60 else bucket_of(seconds * 1_000)] += bucket.count
        return tuple(counts[name] for name in _COARSE)


@dataclass(frozen=True, slots=True)
class HandlerStatistics:
    """A day of one handler in a queue.

    Attributes:
        handler: The job name; ``""`` for all handlers beyond the first hundred of the day.
        waiting: How long jobs were ready before a worker took them. Jobs with a priority and LIFO jobs are
            not counted: the server does not store when they became ready.
        running: How long the handler ran, over its successful attempts.
        failures: How many jobs failed for good.
        retries: How many failed attempts were followed by another one.
    """

    handler: str
    waiting: Durations
    running: Durations
    failures: int
    retries: int


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A day of a queue, in UTC.

    Attributes:
        day: The day.
        waiting: As in ``HandlerStatistics``, over all handlers.
        running: As in ``HandlerStatistics``, over all handlers.
        failures: How many jobs failed for good.
        retries: How many failed attempts were followed by another one.
        handlers: By handler, the busiest first.
    """

    day: date
    waiting: Durations
    running: Durations
    failures: int
    retries: int
    handlers: tuple[HandlerStatistics, ...] = ()


def record(queue: QueueKeys, tallies: Mapping[str, HandlerTally], now_ms: int) -> Call[None]:
    """Add the tallies of a worker to the day of ``now_ms``. A repeat adds them again."""
    return note(queue.statistics(now_ms // DAY_MS), tallies, (KEPT_DAYS + 1) * DAY_MS // 1_000, MAX_HANDLERS)


def note(key: str, tallies: Mapping[str, HandlerTally], kept_seconds: int, max_rows: int) -> Call[None]:
    """Add tallies to the rows of a hash. A repeat adds them again."""
    report = {
        readable(row): [_stored(one.waiting), _stored(one.running), one.failures, one.retries]
        for row, one in tallies.items()
    }
    args = (kept_seconds, max_rows, json.dumps(report))
    return function("gmo_note_statistics", [key], args, replies.anything)


def _stored(tally: Tally) -> list[Any]:
    return [tally.count, tally.mean, tally.squares, dict(tally.buckets)]


def statistics(queues: Sequence[QueueKeys], day: date | None, now_ms: int) -> Op[QueueStatistics]:
    """Read the statistics of a day, over all these queues; None: of today."""
    today = datetime.fromtimestamp(now_ms / 1_000, UTC).date()
    wanted = today if day is None else _checked(day, today)
    place = (wanted - date(1970, 1, 1)).days
    tallies: dict[str, HandlerTally] = {}
    for fields in (yield from ask_all([whole_hash(queue.statistics(place)) for queue in queues])):
        for handler, one in tallies_in(fields).items():
            tallies.setdefault(handler, HandlerTally()).merge(one)
    total = HandlerTally()
    for one in tallies.values():
        total.merge(one)
    handlers = [
        HandlerStatistics(
            name, durations_of(one.waiting), durations_of(one.running), one.failures, one.retries
        )
        for name, one in tallies.items()
    ]
    handlers.sort(key=lambda one: (_total(one.running), one.handler), reverse=True)
    return QueueStatistics(
        wanted, durations_of(total.waiting), durations_of(total.running), total.failures, total.retries,
        tuple(handlers),
    )  # fmt: skip


def _checked(day: object, today: date) -> date:
    if not isinstance(day, date) or isinstance(day, datetime):
        raise ConfigurationError(f"day must be a datetime.date, got {type(day).__name__}")
    if day > today:
        raise ConfigurationError(f"there are no statistics of {day} yet: today is {today} (UTC)")
    if (today - day).days > KEPT_DAYS:
        raise ConfigurationError(f"the statistics of {day} are gone: they are kept for {KEPT_DAYS} days")
    return day


def tallies_in(fields: Mapping[str, str]) -> dict[str, HandlerTally]:
    """The tallies in a hash of the server; a field in another form is ignored."""
    tallies: dict[str, HandlerTally] = {}
    for name, text in fields.items():
        kind, what, handler = (*name.split(":", 2), "", "")[:3]
        if kind not in ("w", "r", "c") or name.count(":") < 2:
            continue
        one = tallies.setdefault(handler, HandlerTally())
        if kind == "c" and what in ("failures", "retries"):
            setattr(one, what, number(text))
        elif kind != "c":
            _read_part(one.waiting if kind == "w" else one.running, what, text)
    return tallies


def _read_part(tally: Tally, what: str, text: str) -> None:
    if what == "count":
        tally.count = number(text)
    elif what in ("mean", "squares"):
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        setattr(tally, what, value if 0 <= value < _MAX[what] else 0.0)
    elif _BUCKET.fullmatch(what):
        tally.buckets[what] = number(text)


def _total(durations: Durations) -> timedelta:
    return durations.count * (durations.mean or timedelta(0))


def durations_of(tally: Tally) -> Durations:
    """What users see of a tally."""
    if tally.count <= 0:
        return Durations(0, None, None)
    spread = math.sqrt(max(tally.squares, 0.0) / (tally.count - 1)) if tally.count > 1 else 0.0
    return Durations(
        tally.count,
        timedelta(milliseconds=tally.mean),
        timedelta(milliseconds=spread),
        tuple(_buckets(tally.buckets.items())),
    )


def _buckets(counts: Iterable[tuple[str, int]]) -> Iterable[DurationBucket]:
    """The buckets that are not empty, shortest first."""
    bounds = sorted((*_bounds_ms(name), count) for name, count in counts if count > 0)
    for start, end, count in bounds:
        yield DurationBucket(timedelta(milliseconds=start), timedelta(milliseconds=end), count)
