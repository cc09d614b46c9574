"""What one worker of a queue does for all: it promotes delayed jobs and fires schedules."""

from __future__ import annotations

from typing import Any, Final

from glidemq_orchestrate.chasquimq.ending import event, write_event
from glidemq_orchestrate.chasquimq.envelope import Envelope, new_job_id
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.msgpack import from_word, to_word
from glidemq_orchestrate.chasquimq.repeats import CronTimes, Every, RepeatSpec
from glidemq_orchestrate.chasquimq.scripts import FIRE, HOLD, PROMOTE, script
from glidemq_orchestrate.chasquimq.times import following
from glidemq_orchestrate.errors import DecodeError
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, ask_each, command, fields_of, isolated

LOCK_SECONDS: Final = 5
BATCH: Final = 256
MAX_WAITING: Final = 1_000_000
MAX_FIRED: Final = 1_000
"""Of one schedule at once: the jobs are one call."""


def promote(keys: ChasquiKeys, holder: str, now_ms: int) -> Op[int | None]:
    """Move delayed jobs that are due to the stream; returns how many, or None if another worker does this."""
    names = [keys.key("promoter:lock"), keys.key("delayed"), keys.key("stream"), keys.key("dlq")]
    words: list[Word] = [holder, LOCK_SECONDS, BATCH, MAX_WAITING]
    moved: list[str] | None = yield from ask(script(PROMOTE, names, words, _texts_or_none))
    if not moved:
        return None if moved is None else 0
    ids = [job_id for envelope in moved if (job_id := _id_of(envelope))]
    after: list[Call[Any]] = [command("DEL", *map(keys.delayed_member, ids), decode=replies.integer)]
    after += [write_event(keys, event("waiting", job_id, "", now_ms)) for job_id in ids]
    yield from ask_each(after if ids else [])  # what fails here expires, or was only an event
    return len(moved)


def _texts_or_none(reply: Any) -> list[str] | None:
    return None if reply is None else replies.texts(reply)


def _id_of(envelope: str) -> str:
    try:
        return Envelope.read(from_word(envelope)).job_id
    except DecodeError:  # a worker will make it a dead letter
        return ""


def fire_schedules(keys: ChasquiKeys, holder: str, now_ms: int) -> Op[int | None]:
    """Add the jobs of the schedules that are due, unless another worker does this.

    Returns:
        When the next schedule is due; None if that is unknown, or past and could not be fired.
    """
    lock = script(
        HOLD, [keys.key("scheduler:lock")], [holder, LOCK_SECONDS], replies.integer, repeatable=True
    )
    if not (yield from ask(lock)):
        return None
    words = ("ZRANGEBYSCORE", keys.key("repeat"), "-inf", now_ms, "WITHSCORES", "LIMIT", 0, BATCH)
    rows = yield from ask(command(*words, decode=replies.rows(2)))
    stored = yield from ask_all(fields_of(keys.spec(key), "spec") for key, _ in rows)
    for (key, score), (packed,) in zip(rows, stored, strict=True):
        what = f"schedule {key} of queue {keys.queue} of ChasquiMQ"
        yield from isolated(_fire(keys, key, score, packed, now_ms), what)
    first = command("ZRANGE", keys.key("repeat"), 0, 0, "WITHSCORES", decode=replies.rows(2))
    due = [int(float(score)) for _, score in (yield from ask(first))]
    return due[0] if due and due[0] > now_ms else None


def _fire(keys: ChasquiKeys, key: str, score: str, packed: str | None, now_ms: int) -> Op[None]:
    if packed is None:
        yield from ask(command("ZREM", keys.key("repeat"), key, decode=replies.integer))
        raise DecodeError("it had no specification, and was removed")
    spec = RepeatSpec.read(from_word(packed))
    count, upcoming = runs_of(spec, float(score), now_ms)
    words: list[Word] = [score, upcoming, key, MAX_WAITING, spec.limit or 0]
    for _ in range(count):
        words += [to_word(Envelope(new_job_id(now_ms), spec.payload, now_ms).packed), spec.name]
    names = [keys.key("stream"), keys.key("repeat"), keys.spec(key)]
    yield from ask(script(FIRE, names, words, replies.integer))


def runs_of(spec: RepeatSpec, score: float, now_ms: int) -> tuple[int, int]:
    """How many jobs a schedule adds now, and when it is due next; 0: never again.

    Raises:
        ConfigurationError: Its cron expression or time zone is not valid here.
    """
    pattern, first = spec.pattern, int(score) if 0 < score < 2**53 else now_ms
    upcoming, count = following(pattern, first), 1
    if upcoming is not None and upcoming < now_ms:  # late: missed runs are made up for as the user chose
        until = now_ms if spec.end_ms is None else min(now_ms, spec.end_ms)
        most = min(spec.missed.max_caught_up, MAX_FIRED)
        missed: int | None = upcoming
        while count < most and missed is not None and missed <= until:
            missed, count = following(pattern, missed), count + 1
        count = min(count, most)
        upcoming = _after(pattern, first, now_ms)
    is_over = upcoming is None or (spec.end_ms is not None and upcoming > spec.end_ms)
    return count, 0 if is_over else upcoming or 0


def _after(pattern: Every | CronTimes, first: int, now_ms: int) -> int | None:
    """The first time after now, in the rhythm that began at ``first``."""
    if isinstance(pattern, Every):
        return first + ((now_ms - first) // pattern.interval_ms + 1) * pattern.interval_ms
    return following(pattern, now_ms)
