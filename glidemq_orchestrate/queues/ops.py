"""Operations on a whole queue. Everything is done in slices: no call blocks the server for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, InvalidJob, ProtocolError, QueueInUse
from glidemq_orchestrate.flows import home as homes
from glidemq_orchestrate.jobs import calls as job_calls
from glidemq_orchestrate.jobs import pages, usage
from glidemq_orchestrate.jobs.bounds import lasting, milliseconds, named, whole
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.ordering import RateLimit
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import listing
from glidemq_orchestrate.queues import settings as queue_settings
from glidemq_orchestrate.queues.listing import JobFilter
from glidemq_orchestrate.queues.removal import remove_some
from glidemq_orchestrate.wire import commands
from glidemq_orchestrate.wire.call import Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys, flow_home, is_queue_name
from glidemq_orchestrate.wire.stored import moment, number, span

SLICE: Final = job_calls.MAX
MINUTE: Final = timedelta(minutes=1)
ENDED: Final[Mapping[JobState, KeyName]] = {JobState.COMPLETED: "completed", JobState.FAILED: "failed"}
DELETED: Final = ("removed", "left")
KEPT: Final = ("flow", "message", "child")


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One minute: how many jobs ended in a state, and how long they ran on average."""

    at: datetime
    count: int
    mean: timedelta


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The jobs of one ordering key.

    Attributes:
        key: The ordering key.
        active: How many run now.
        concurrency: How many may run at the same time.
        parked: How many are held back by the limits of the key.
        resumes_at: When the next of them is tried; None while only running jobs hold them back.
        last_number: The number of its latest job; those of later jobs are higher.
    """

    key: str
    active: int
    concurrency: int
    parked: int
    resumes_at: datetime | None
    last_number: int


def as_time(now_ms: int) -> datetime:
    """Milliseconds since the epoch as a time."""
    return datetime.fromtimestamp(now_ms / 1000, UTC)


def pause(queue: QueueKeys, *, resume: bool = False) -> Op[None]:
    """Set or clear the paused mark."""
    yield from ask(queue_settings.pause(queue, resume=resume))


def is_paused(queue: QueueKeys) -> Op[bool]:
    """Whether the mark is set."""
    (paused,) = yield from ask(queue_settings.meta(queue, "paused"))
    return paused == "1"


def clean(queue: QueueKeys, state: JobState, grace: timedelta, limit: int, now_ms: int) -> Op[list[JobId]]:
    """Delete jobs that ended ``grace`` ago or earlier, oldest first."""
    if state not in ENDED:
        raise ConfigurationError(f"only completed and failed jobs can be cleaned, not {state}")
    lasting("grace", grace)
    whole("limit", limit, 1)
    cutoff, deleted, kept = now_ms - milliseconds(grace), list[JobId](), 0
    while len(deleted) < limit:
        count = min(SLICE, limit - len(deleted))
        ids = yield from ask(queue_settings.ended_before(queue, ENDED[state], cutoff, kept, count))
        if not ids:
            break
        words = yield from remove_some(queue, [(job_id, "") for job_id in ids], "cleaned", now_ms)
        deleted += [JobId(job_id) for job_id, word in zip(ids, words, strict=True) if word in DELETED]
        kept += sum(word in KEPT for word in words)
    return deleted


def drain(queue: QueueKeys, *, delayed: bool, now_ms: int) -> Op[int]:
    """Delete the jobs that wait to run."""
    count = 0
    states = (JobState.GROUP_WAITING, JobState.PRIORITIZED, *((JobState.DELAYED,) if delayed else ()))
    for state in states:
        count += yield from _drain_state(queue, state, now_ms)
    for name in ("priority", "lifo"):
        count += yield from _drain_list(queue, name, now_ms)
    return count + (yield from _drain_stream(queue, now_ms))


def retry_failed(queue: QueueKeys, limit: int | None, now_ms: int) -> Op[int]:
    """Run failed jobs again, oldest first: as many as have failed now, as some may fail again meanwhile."""
    if limit is not None:
        whole("count", limit, 1)
    left = yield from ask(pages.length(queue, "failed"))
    count = kept = 0
    while left and (limit is None or count < limit):
        size = min(SLICE, left, left if limit is None else limit - count)
        ids = yield from ask(pages.sorted_ids(queue.key("failed"), kept, size, newest_first=False))
        if not ids:
            break
        left -= len(ids)
        words = yield from ask(job_calls.retry_jobs(queue, ids, now_ms))
        count += words.count("retried")
        kept += len(words) - words.count("retried") - words.count("missing")
    return count


def obliterate(queue: QueueKeys, *, force: bool) -> Op[None]:
    """Delete every key of the queue."""
    active = yield from listing.active_count(queue)
    if active and not force:
        raise QueueInUse(queue.queue, active)
    ready = queue.keys("stream", "scheduled", "priority", "lifo", "ratelimited", "suspended")
    yield from ask(queue_settings.unlink(ready))
    cursor, flows = "0", list[str]()
    while True:
        pattern = pages.escaped(f"{queue.base}:") + "*"
        cursor, keys = yield from ask(pages.scan_keys(pattern, cursor, listing.PAGE))
        flows += _flow_ids(queue, keys)
        if keys:
            yield from ask(queue_settings.unlink(keys))
        if cursor == "0":
            break
    # On a cluster these keys are in other slots; those that cannot be reached remain.
    yield from ask_each(
        [
            *(queue_settings.unlink([flow_home(queue.prefix, flow_id)]) for flow_id in flows),
            usage.forget_usage(queue),
            homes.forget_home(queue),
        ]
    )


def set_global_concurrency(queue: QueueKeys, limit: int | None) -> Op[None]:
    """Set how many jobs of the queue run at the same time, over all workers."""
    if limit is not None:
        whole("limit", limit, 1)
    yield from _set_limits(queue, {"globalConcurrency": limit})


def global_concurrency(queue: QueueKeys) -> Op[int | None]:
    """The limit; None for none."""
    (limit,) = yield from ask(queue_settings.meta(queue, "globalConcurrency"))
    return number(limit) or None


def set_global_rate_limit(queue: QueueKeys, limit: RateLimit | None) -> Op[None]:
    """Set how many jobs of the queue start in a window, over all workers."""
    most, per_ms = (None, None) if limit is None else (limit.max, milliseconds(limit.per))
    yield from _set_limits(queue, {"rateLimitMax": most, "rateLimitDuration": per_ms})


def _set_limits(queue: QueueKeys, limits: Mapping[str, int | None]) -> Op[None]:
    """Write limits of the queue, or remove those that are None; workers that they hold back look at once."""
    pairs = [word for name, value in limits.items() if value is not None for word in (name, value)]
    change = queue_settings.set_meta(queue, *pairs) if pairs else queue_settings.drop_meta(queue, *limits)
    done, _ = yield from ask_each([change, queue_settings.tell(queue, "limits.changed")])
    if isinstance(done, Exception):
        raise done


def global_rate_limit(queue: QueueKeys) -> Op[RateLimit | None]:
    """The limit; None for none."""
    most, duration = yield from ask(queue_settings.meta(queue, "rateLimitMax", "rateLimitDuration"))
    try:
        return RateLimit(number(most), span(duration))
    except InvalidJob:
        return None


def rate_limit_group(
    queue: QueueKeys, key: str, duration: timedelta, now_ms: int, *, extend: bool
) -> Op[datetime]:
    """Hold back the jobs of an ordering key."""
    named("key", key)
    lasting("duration", duration, least=timedelta(milliseconds=1))
    call = queue_settings.rate_limit_group(queue, key, milliseconds(duration), now_ms, extend=extend)
    return datetime.fromtimestamp((yield from ask(call)) / 1000, UTC)


def groups(queue: QueueKeys) -> Op[list[GroupInfo]]:
    """The ordering keys in use, and those that are not forgotten yet."""
    cursor, found = "0", dict[str, GroupInfo]()
    while True:
        cursor, keys = yield from ask(pages.ordering_keys_page(queue, cursor, listing.READ))
        for key, row in zip(keys, (yield from _group_rows(queue, keys)), strict=True):
            found[key] = row
        if cursor == "0":
            return [found[key] for key in sorted(found)]


def metrics(queue: QueueKeys, state: JobState) -> Op[list[MetricPoint]]:
    """How many jobs ended in each minute, oldest first."""
    if state not in ENDED:
        raise ConfigurationError(f"there are metrics of completed and failed jobs, not of {state} ones")
    fields = yield from ask(commands.whole_hash(queue.metrics(ENDED[state])))
    points = []
    for name in fields:
        _, minute, kind = (*name.split(":"), "", "")[:3]
        count, total, at = number(fields[name]), number(fields.get(f"m:{minute}:d")), moment(minute)
        if kind == "c" and at is not None:
            points.append(MetricPoint(at, count, timedelta(milliseconds=total / count if count else 0)))
    return sorted(points, key=lambda point: point.at)


def queue_names(prefix: str) -> Op[list[str]]:
    """The queues under a prefix that ever had a job or a worker."""
    start, names, cursor = f"{prefix}:{{", set[str](), "0"
    while True:
        pattern = pages.escaped(start) + "*"
        cursor, keys = yield from ask(pages.scan_keys(pattern, cursor, 2 * listing.PAGE))
        for key in keys:
            name, mark, _ = key.removeprefix(start).partition("}:")
            if mark and is_queue_name(name):  # others cannot be queues of this package
                names.add(name)
        if cursor == "0":
            return sorted(names)


def _drain_state(queue: QueueKeys, state: JobState, now_ms: int) -> Op[int]:
    """Delete the jobs of one state, slice by slice; returns how many."""
    count = kept = 0
    while True:
        ids = yield from listing.find(queue, JobFilter(state), range(kept, kept + SLICE))
        if not ids:
            return count
        deleted = yield from _drained(queue, [(job_id, "") for job_id in ids], now_ms)
        count, kept = count + deleted, kept + len(ids) - deleted


def _drain_list(queue: QueueKeys, name: KeyName, now_ms: int) -> Op[int]:
    """Delete the waiting jobs of one list, slice by slice; returns how many."""
    count = kept = 0
    while True:
        ids = yield from ask(pages.list_ids(queue, name, kept, SLICE))
        if not ids:
            return count
        # A revoked job is still in its list, but has failed.
        waiting = yield from listing.keep(queue, ids, JobFilter(JobState.WAITING))
        deleted = yield from _drained(queue, [(job_id, "") for job_id in waiting], now_ms)
        count, kept = count + deleted, kept + len(ids) - deleted


def _drain_stream(queue: QueueKeys, now_ms: int) -> Op[int]:
    """Delete the waiting jobs of the stream that no worker has taken; returns how many."""
    count, start = 0, (yield from _undelivered(queue))
    while True:
        entries = yield from ask(pages.stream_page(queue, start, SLICE))
        if not entries:
            return count
        entry_of = {job_id: entry_id for entry_id, job_id in entries if job_id}
        waiting = yield from listing.keep(queue, list(entry_of), JobFilter(JobState.WAITING))
        count += yield from _drained(queue, [(job_id, entry_of[job_id]) for job_id in waiting], now_ms)
        start = f"({entries[-1][0]}"


def _undelivered(queue: QueueKeys) -> Op[str]:
    """The position in the stream from which no worker has taken an entry."""
    try:
        last = yield from ask(pages.last_delivered(queue))
    except ProtocolError:
        return "-"  # there is no stream
    return f"({last}" if last else "-"


def _drained(queue: QueueKeys, jobs: Sequence[tuple[str, str]], now_ms: int) -> Op[int]:
    if not jobs:
        return 0
    words = yield from remove_some(queue, jobs, "drained", now_ms)
    return sum(word in DELETED for word in words)


def _group_rows(queue: QueueKeys, keys: Sequence[str]) -> Op[list[GroupInfo]]:
    """The state of some ordering keys, read in four trips."""
    names = ("active", "maxConcurrency")
    states = yield from ask_all([commands.fields_of(queue.group(key), *names) for key in keys])
    parked = yield from ask_all([pages.parked_count(queue, key) for key in keys])
    times = yield from ask_all([pages.score(queue, "ratelimited", key) for key in keys])
    numbers = (
        (yield from ask(commands.fields_of(queue.key("ordering"), *keys))) if keys else list[str | None]()
    )
    return [
        GroupInfo(
            key=key,
            active=number(state[0]),
            concurrency=max(number(state[1]), 1),
            parked=count,
            resumes_at=moment(str(at)) if at else None,
            last_number=number(last),
        )
        for key, state, count, at, last in zip(keys, states, parked, times, numbers, strict=True)
    ]


def _flow_ids(queue: QueueKeys, keys: Sequence[str]) -> list[str]:
    start = f"{queue.base}:gmo:flow:"
    return [key.removeprefix(start) for key in keys if key.startswith(start)]
