"""Repeating jobs: their times, the template of their jobs, and the stored form of both. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal, Unpack

from glidemq_orchestrate.errors import ConfigurationError, InvalidJob
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, milliseconds, optional_duration
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import JOB_NAME
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions, OptionKeywords, with_keywords
from glidemq_orchestrate.schedules.cron import Cron
from glidemq_orchestrate.wire.codec import JsonLike, encode

MAX_CAUGHT_UP: Final = 100
_OURS: Final = ("catchUp", "catchUpLimit", "overlap", "logicalTime")


class CatchUp(StrEnum):
    """What happens to slots that passed while no worker was alive.

    ``SKIP``: one run, for the oldest of them (the only choice of glide-mq). ``LAST``: one run, for the
    newest. ``ALL``: one run for each of the newest ``catch_up_limit``.
    """

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When jobs are added. Exactly one of ``every``, ``cron`` and ``repeat_after_complete``.

    Six-field patterns, ``catch_up`` other than ``SKIP``, ``overlap=False`` and ``logical_time`` are unknown
    to glide-mq: such schedules are stored apart from its own, and only Python workers fire them.

    ``cron`` follows local time. When clocks go forward, a skipped time does not run on that day: in Berlin,
    ``30 2 * * *`` does not run on the last Sunday of March. When clocks go back, a repeated time runs once,
    at its first occurrence, so an hourly pattern omits the repeated hour. If every interval matters, use UTC
    or ``every``.

    Attributes:
        every: A fixed interval, at least a millisecond.
        cron: Minute, hour, day of month, month, day of week; with six fields, seconds come first. Both day
            fields must match. ``*``, ``n``, ``a-b``, ``*/s``, ``a-b/s``, lists; names of months and days.
        repeat_after_complete: The interval between the end of a run and the next one.
        time_zone: IANA name of the time zone of ``cron``; by default UTC.
        start, end: Bounds of the slots; aware datetimes.
        limit: The total number of runs, including those before a restart of the program that upserts it.
        catch_up: What happens to missed slots; not for ``repeat_after_complete``.
        catch_up_limit: For ``CatchUp.ALL``, 1 to 100.
        overlap: False: a slot waits until the job of the previous one has ended.
        logical_time: Put the time of the slot (ISO 8601, UTC) into the data of the job under ``logicalTime``.

    Raises:
        ConfigurationError: An option is not valid; the message names it.
    """

    every: Duration | None = None
    cron: str | None = None
    repeat_after_complete: Duration | None = None
    time_zone: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit: int | None = None
    catch_up: CatchUp | Literal["skip", "last", "all"] = CatchUp.SKIP
    catch_up_limit: int = MAX_CAUGHT_UP
    overlap: bool = True
    logical_time: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range and options that conflict."""
        for name in ("every", "repeat_after_complete"):
            span = optional_duration(name, getattr(self, name), min_=MILLISECOND)
            object.__setattr__(self, name, span)
        check_fields(self, ConfigurationError, without=("catch_up",))
        modes = ("every", "cron", "repeat_after_complete")
        if sum(getattr(self, mode) is not None for mode in modes) != 1:
            raise ConfigurationError("a schedule needs exactly one of every, cron and repeat_after_complete")
        if self.time_zone is not None and self.cron is None:
            raise ConfigurationError("time_zone is for cron only")
        if self.cron is not None:
            Cron.parse(self.cron, self.time_zone)
        for name in ("start", "end"):
            value = getattr(self, name)
            if value is not None and value.tzinfo is None:
                raise ConfigurationError(f"{name} must have a time zone, got {value}")
        if self.start is not None and self.end is not None and self.start > self.end:
            raise ConfigurationError(f"start must not be after end: {self.start} is after {self.end}")
        self._check_counts()

    def _check_counts(self) -> None:
        if self.limit is not None and (isinstance(self.limit, bool) or self.limit < 1):
            raise ConfigurationError(f"limit must be at least 1, got {described(self.limit)}")
        if self.catch_up not in tuple(CatchUp):
            raise ConfigurationError(f"catch_up must be skip, last or all, got {described(self.catch_up)}")
        if not 1 <= self.catch_up_limit <= MAX_CAUGHT_UP:
            raise ConfigurationError(
                f"catch_up_limit must be 1 to {MAX_CAUGHT_UP}, got {described(self.catch_up_limit)}"
            )
        if self.repeat_after_complete is not None and self.catch_up != CatchUp.SKIP:
            raise ConfigurationError(
                "catch_up cannot be combined with repeat_after_complete, which misses no slot"
            )
        if not self.overlap and self.catch_up == CatchUp.ALL:
            raise ConfigurationError("overlap=False and catch_up=all cannot be combined")

    def to_wire(self) -> dict[str, Any]:
        """The time fields of glide-mq's entry, then ours; absent ones are omitted, never null."""
        cron = Cron.parse(self.cron, self.time_zone) if self.cron is not None else None
        wire = {
            "pattern": cron and cron.pattern,
            "every": self.every and milliseconds(self.every),
            "repeatAfterComplete": self.repeat_after_complete and milliseconds(self.repeat_after_complete),
            "tz": self.time_zone,
            "startDate": self.start and _epoch_ms(self.start),
            "endDate": self.end and _epoch_ms(self.end),
            "limit": self.limit,
            "catchUp": None if self.catch_up == CatchUp.SKIP else str(self.catch_up),
            "catchUpLimit": self.catch_up_limit if self.catch_up == CatchUp.ALL else None,
            "overlap": None if self.overlap else False,
            "logicalTime": True if self.logical_time else None,
        }
        return {name: value for name, value in wire.items() if value is not None}

    @property
    def is_ours(self) -> bool:
        """Whether only Python workers can fire it."""
        return needs_python(self.to_wire())


@dataclass(frozen=True, slots=True, init=False)
class JobTemplate:
    """The job that a schedule adds.

    Attributes:
        name: The handler's name; by default the name of the schedule.
        data: JSON, at most 1 MiB encoded; an object if ``logical_time`` is set. By default ``{}``.
        options: As for ``Queue.add``, without ``delay`` and ``job_id``, which glide-mq ignores here. Each may
            also be given as a keyword: ``JobTemplate("clean", attempts=3)``.
    """

    name: str | None = None
    data: JsonLike = None
    options: JobOptions = DEFAULT_OPTIONS

    def __init__(
        self,
        name: str | None = None,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "options", with_keywords(options, keywords))
        self._check()

    def _check(self) -> None:
        """Refuse options that would be ignored."""
        check_fields(self, InvalidJob, without=("name", "data"))
        if self.options.delay or self.options.job_id is not None:
            raise InvalidJob("the options of a schedule's template cannot have delay or job_id")
        if self.name is not None:
            JOB_NAME.check(self.name)

    def to_wire(self) -> dict[str, Any]:
        """The ``template`` of glide-mq's entry."""
        options = json.loads(self.options.to_wire())
        encode(self.data, where="data of a schedule's template")
        wire = {"name": self.name, "data": self.data, "opts": options or None}
        return {name: value for name, value in wire.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A stored schedule.

    Attributes:
        name: Its name, unique in the queue.
        schedule: When it fires; None if the stored schedule is not valid.
        job: The name of the handler of its jobs.
        data, options: Data and options of its jobs, as stored.
        iterations: Runs so far.
        last_run, next_run: UTC. ``next_run`` is None during a ``repeat_after_complete`` run, while the
            schedule is paused, and if no run follows.
        finished: Whether its limit is reached or its end has passed. It is stored for a year after its last
            upsert, up to the newest 10,000. Upserting the same schedule starts nothing, a higher limit
            continues it, and a different schedule starts over. ``Schedules.remove`` deletes it.
        python_only: Whether only Python workers fire it.
        broken: Why no worker can fire it; empty if workers can. Another upsert repairs it.
        paused: Whether it waits for ``Schedules.resume``.
    """

    name: str
    schedule: Schedule | None
    job: str
    data: Any
    options: Mapping[str, Any]
    iterations: int
    last_run: datetime | None
    next_run: datetime | None
    python_only: bool
    finished: bool = False
    broken: str = ""
    paused: bool = False


def needs_python(wire: Mapping[str, Any]) -> bool:
    """Whether only Python workers can fire a stored schedule."""
    pattern = wire.get("pattern")
    has_seconds = isinstance(pattern, str) and len(pattern.split()) == 6
    return has_seconds or any(wire.get(name) is not None for name in _OURS)


def _epoch_ms(at: datetime) -> int:
    return milliseconds(at - datetime(1970, 1, 1, tzinfo=UTC))
