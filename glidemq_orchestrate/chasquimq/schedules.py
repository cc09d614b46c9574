"""The repeating jobs of a queue of ChasquiMQ: written, listed and removed. Live workers add their jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from glidemq_orchestrate.chasquimq.keys import ChasquiKeys, check_job_name
from glidemq_orchestrate.chasquimq.msgpack import Packable, from_word, to_word
from glidemq_orchestrate.chasquimq.repeats import FIRE_ONCE, SKIP, CronTimes, Every, Missed, RepeatSpec
from glidemq_orchestrate.chasquimq.scripts import REMOVE, UPSERT, script
from glidemq_orchestrate.chasquimq.times import following
from glidemq_orchestrate.errors import ConfigurationError, DecodeError, GlideMQError, InvalidJob
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command, fields_of, parts
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.stored import as_time, moment, span


@dataclass(frozen=True, slots=True, kw_only=True)
class ChasquiSchedule:
    """A repeating job as stored.

    Attributes:
        key: Its key, made of the name and the times.
        name: The name of its jobs.
        every: The interval; None for ``cron``.
        cron: The cron expression; None for ``every``.
        time_zone: The zone of ``cron``; None is UTC.
        next_at: When the next job is added; None if the stored time is not valid.
        fired: How many jobs were added.
        limit: The max number of jobs.
        start, end: Bounds of the times.
        catch_up: How many missed runs are made up for.
        broken: Why the specification cannot be read; None if it can.
    """

    key: str
    name: str = ""
    every: timedelta | None = None
    cron: str | None = None
    time_zone: str | None = None
    next_at: datetime | None = None
    fired: int = 0
    limit: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    catch_up: int = 0
    broken: str | None = None


def missed_of(catch_up: int) -> Missed:
    """The policy for missed runs.

    Raises:
        InvalidJob: It is not a number of at least 0.
    """
    whole("catch_up", catch_up, 0, 10_000)
    return {0: SKIP, 1: FIRE_ONCE}.get(catch_up) or Missed(catch_up, is_all=True)


def spec_of(  # noqa: PLR0913  what a schedule has
    name: str,
    data: Packable,
    pattern: Every | CronTimes,
    *,
    limit: int | None,
    start: datetime | None,
    end: datetime | None,
    catch_up: int,
) -> RepeatSpec:
    """The specification of a repeating job.

    Raises:
        ConfigurationError, InvalidJob, EncodeError: A value is not valid.
    """
    if limit is not None:
        whole("limit", limit, 1)
    for what, value in (("start", start), ("end", end)):
        if value is not None and value.tzinfo is None:
            raise ConfigurationError(f"{what} must have a time zone, got {value}")
    return RepeatSpec.of(
        check_job_name(name),
        data,
        pattern,
        limit=limit,
        start_ms=None if start is None else _epoch_ms(start),
        end_ms=None if end is None else _epoch_ms(end),
        missed=missed_of(catch_up),
    )


def _epoch_ms(moment_: datetime) -> int:
    return round(moment_.timestamp() * 1000)


def upsert(keys: ChasquiKeys, spec: RepeatSpec, now_ms: int) -> Op[str]:
    """Write a specification with its next run; returns its key.

    Raises:
        InvalidJob: It has no run in the future, or none before its end. Nothing was written.
    """
    first = following(spec.pattern, max(now_ms, spec.start_ms or 0))
    if first is None or (spec.end_ms is not None and spec.end_ms < first):
        raise InvalidJob(f"schedule {described(spec.key)} has no run before its end; nothing was written")
    names = [keys.key("repeat"), keys.spec(spec.key)]
    yield from ask(
        script(UPSERT, names, [first, spec.key, to_word(spec.packed)], replies.integer, repeatable=True)
    )
    return spec.key


def remove(keys: ChasquiKeys, key: str) -> Call[bool]:
    """Remove a repeating job; whether there was one."""
    names = [keys.key("repeat"), keys.spec(key)]
    return script(REMOVE, names, [key], lambda reply: replies.integer(reply) == 1)


def find_all(keys: ChasquiKeys, limit: int) -> Op[list[ChasquiSchedule]]:
    """The repeating jobs by their next run."""
    if not limit:
        return []
    words = ("ZRANGE", keys.key("repeat"), 0, limit - 1, "WITHSCORES")
    rows: list[tuple[str, ...]] = yield from ask(command(*words, decode=replies.rows(2)))
    found: list[ChasquiSchedule] = []
    for part in parts(rows):
        hashes = yield from ask_all(fields_of(keys.spec(key), "spec", "fired") for key, _ in part)
        found += _entries(zip(part, hashes, strict=True))
    return found


def _entries(rows: Iterable[tuple[tuple[str, ...], list[str | None]]]) -> Iterable[ChasquiSchedule]:
    for (key, score), (packed, fired) in rows:
        times = int(fired) if fired and fired.isascii() and fired.isdigit() else 0
        shared: dict[str, Any] = {"key": readable(key), "next_at": moment(score), "fired": times}
        try:
            if packed is None:
                raise DecodeError("it has no specification")
            yield ChasquiSchedule(**shared, **_told(RepeatSpec.read(from_word(packed))))
        except GlideMQError as exc:
            yield ChasquiSchedule(**shared, broken=str(exc))


def _told(spec: RepeatSpec) -> dict[str, Any]:
    times: dict[str, Any] = {}
    match spec.pattern:
        case Every(interval_ms):
            times["every"] = span(interval_ms)
        case CronTimes(expression, zone):
            times["cron"], times["time_zone"] = expression, zone
    return {
        **times,
        "name": readable(spec.name),
        "limit": spec.limit,
        "start": None if spec.start_ms is None else as_time(spec.start_ms),
        "end": None if spec.end_ms is None else as_time(spec.end_ms),
        "catch_up": spec.missed.max_caught_up,
    }
