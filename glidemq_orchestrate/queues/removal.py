"""Revokes and removes jobs, which may be nodes of flows: single ones, or those of a queue in slices.

A slice is small, so that no call blocks the server for long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, Final, Literal

from glidemq_orchestrate.errors import ConfigurationError, JobStateConflict, ProtocolError, QueueInUse
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.home import remove_home
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs import pages, usage
from glidemq_orchestrate.jobs.changes import (
    MAX_JOBS,
    complete_child,
    drop_entry,
    remove_jobs,
    retry_jobs,
    revoke_job,
)
from glidemq_orchestrate.jobs.job import JobId, job_exists
from glidemq_orchestrate.jobs.job_hash import missing
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import listing
from glidemq_orchestrate.queues.listing import JobFilter
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, command
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys, flow_home, read_member

NODE: Final = "node"
PAGE: Final = 1000


Revoked = Literal["revoked", "flagged"]


def revoke(queue: QueueKeys, job_id: str, clock: Clock) -> Op[Revoked]:
    """End a job that is not running; flag a running one."""
    word, flow_id = yield from ask(revoke_job(queue, job_id, clock.now_ms()))
    if flow_id:
        yield from backend.advance(queue, flow_id, clock)
    if word == "left":
        yield from drop_lost_entry(queue, job_id)
    if word in ("revoked", "left"):
        return "revoked"
    if word == "flagged":
        return "flagged"
    raise JobStateConflict(job_id, word, f"is already {word}")


def remove(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Delete a job and all its data."""
    (word,) = yield from remove_some(queue, [(job_id, "")], "removed", now_ms)
    if word == "missing":
        raise missing(queue, job_id)
    if word == "flow":
        raise JobStateConflict(job_id, "flow", "is a node of a flow that has not ended. Fix: cancel the flow")


def remove_some(queue: QueueKeys, jobs: Sequence[tuple[str, str]], event: str, now_ms: int) -> Op[list[str]]:
    """Delete up to ``SLICE`` jobs by pairs of job id and stream entry; returns a word for each."""
    words, elsewhere = yield from ask(remove_jobs(queue, jobs, event, now_ms))
    if nodes := [job_id for (job_id, _), word in zip(jobs, words, strict=True) if word == NODE]:
        removed = yield from _remove_nodes(queue, nodes, event, now_ms)
        words = [removed.get(job_id, word) for (job_id, _), word in zip(jobs, words, strict=True)]
    for member, parent, parent_id in _foreign(elsewhere):
        # Some glidemq libraries create a hash for a removed parent.
        if (yield from ask(job_exists(parent, parent_id))):
            yield from ask(complete_child(parent, parent_id, member))
    for (job_id, _), word in zip(jobs, words, strict=True):
        if word == "left":
            yield from drop_lost_entry(queue, job_id)
    return words


def _remove_nodes(queue: QueueKeys, nodes: Sequence[str], event: str, now_ms: int) -> Op[dict[str, str]]:
    """Delete nodes whose ended flows are unknown to this server; returns a word for each."""
    marks = yield from backend.removal_marks(queue, nodes)
    words = dict.fromkeys(nodes, "flow")
    if marks:
        found, _ = yield from ask(remove_jobs(queue, list(marks.items()), event, now_ms))
        words |= dict(zip(marks, found, strict=True))
    return words


def drop_lost_entry(queue: QueueKeys, job_id: str) -> Op[None]:
    """Find and delete the stream entry of a job that is not near its expected position, a page at a time."""
    start = "-"
    while True:
        entries = yield from ask(pages.stream_page(queue, start, PAGE))
        for entry_id, found in entries:
            if found == job_id:
                yield from ask_all(drop_entry(queue, entry_id))
                return
        if len(entries) < PAGE:
            return
        start = f"({entries[-1][0]}"


def _foreign(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, QueueKeys, str]]:
    return [(member, keys, job_id) for member, ref in pairs for keys, job_id in read_member(ref)]


SLICE: Final = MAX_JOBS


ENDED: Final[Mapping[JobState, KeyName]] = {JobState.COMPLETED: "completed", JobState.FAILED: "failed"}


DELETED: Final = ("removed", "left")


KEPT: Final = ("flow", "message", "child")


def clean(queue: QueueKeys, state: JobState, grace: timedelta, limit: int, now_ms: int) -> Op[list[JobId]]:
    """Delete jobs that ended at least ``grace`` ago, oldest first."""
    if state not in ENDED:
        raise ConfigurationError(f"only completed and failed jobs can be cleaned, not {state}")
    whole("limit", limit, 1)
    cutoff, deleted, kept = now_ms - milliseconds(grace), list[JobId](), 0
    while len(deleted) < limit:
        count = min(SLICE, limit - len(deleted))
        ids = yield from ask(ended_before(queue, ENDED[state], cutoff, kept, count))
        if not ids:
            break
        words = yield from remove_some(queue, [(job_id, "") for job_id in ids], "cleaned", now_ms)
        deleted += [JobId(job_id) for job_id, word in zip(ids, words, strict=True) if word in DELETED]
        kept += sum(word in KEPT for word in words)
    return deleted


def drain(queue: QueueKeys, *, delayed: bool, now_ms: int) -> Op[int]:
    """Delete the waiting jobs, with ``delayed`` the delayed ones too."""
    count = 0
    states = (JobState.GROUP_WAITING, JobState.PRIORITIZED, *((JobState.DELAYED,) if delayed else ()))
    for state in states:
        count += yield from _drain_state(queue, state, now_ms)
    for name in ("priority", "lifo"):
        count += yield from _drain_list(queue, name, now_ms)
    return count + (yield from _drain_stream(queue, now_ms))


def retry_failed(queue: QueueKeys, limit: int | None, now_ms: int) -> Op[int]:
    """Rerun failed jobs, oldest first; those that have failed by now, since some may fail again."""
    if limit is not None:
        whole("count", limit, 1)
    end, left = yield from failed_by_now(queue)
    count = kept = 0
    while left > 0 and (limit is None or count < limit):
        size = min(SLICE, left, left if limit is None else limit - count)
        ids = yield from ask(ended_before(queue, "failed", end, kept, size))
        if not ids:
            break
        left -= len(ids)
        words, stay = yield from retry_some(queue, ids, ids, end, now_ms)
        count, kept = count + words.count("retried"), kept + stay
    return count


def retry_some(
    queue: QueueKeys, job_ids: Sequence[str], passed: Sequence[str], end: float, now_ms: int
) -> Op[tuple[list[str], int]]:
    """Rerun failed jobs, which may be none, in one round trip.

    Returns a word for each, and how many of the ``passed`` jobs are still among those failed until ``end``.
    """
    retrying = [retry_jobs(queue, job_ids, now_ms)] if job_ids else []
    calls: list[Call[Any]] = [*retrying, *(pages.score(queue, "failed", job_id) for job_id in passed)]
    found = yield from ask_all(calls)
    words, scores = found[: len(retrying)], found[len(retrying) :]
    return [*chain(*words)], sum(score is not None and score <= end for score in scores)


def failed_by_now(queue: QueueKeys) -> Op[tuple[float, int]]:
    """When the last of the failed jobs failed, and how many there are.

    Jobs that fail later are not to be retried: this call, or that of another client, may have retried them.
    The number is the limit for workers whose clocks are behind.
    """
    calls: list[Call[Any]] = [pages.last_score(queue, "failed"), pages.length(queue, "failed")]
    end, count = yield from ask_all(calls)
    return end, count


def obliterate(queue: QueueKeys, *, force: bool, keep: Collection[str] = ()) -> Op[None]:
    """Delete every key of the queue but those to keep."""
    active = yield from listing.active_count(queue)
    if active and not force:
        raise QueueInUse(queue.queue, active)
    ready = queue.keys("stream", "scheduled", "priority", "lifo", "ratelimited", "suspended")
    yield from ask(unlink(ready))
    cursor, flows = "0", list[str]()
    while True:
        pattern = pages.escaped(f"{queue.base}:") + "*"
        cursor, keys = yield from ask(pages.scan_keys(pattern, cursor, listing.PAGE))
        flows += _flow_ids(queue, keys)
        if left := [key for key in keys if key not in keep]:
            yield from ask(unlink(left))
        if cursor == "0":
            break
    # In a cluster these keys are in other slots; unreachable ones remain.
    yield from ask_each(
        [
            *(unlink([flow_home(queue.prefix, flow_id)]) for flow_id in flows),
            usage.forget_usage(queue),
            remove_home(queue),
        ]
    )


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
        # A revoked job has failed but is still in its list.
        waiting = yield from listing.keep(queue, ids, JobFilter(JobState.WAITING))
        deleted = yield from _drained(queue, [(job_id, "") for job_id in waiting], now_ms)
        count, kept = count + deleted, kept + len(ids) - deleted


def _drain_stream(queue: QueueKeys, now_ms: int) -> Op[int]:
    """Delete the jobs of the stream that no worker has taken; returns how many."""
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
    """The position after the last stream entry that a worker has taken."""
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


def _flow_ids(queue: QueueKeys, keys: Sequence[str]) -> list[str]:
    start = f"{queue.base}:gmo:flow:"
    return [key.removeprefix(start) for key in keys if key.startswith(start)]


def unlink(keys: list[str]) -> Call[None]:
    """Delete keys. Idempotent."""
    return command("UNLINK", *keys, decode=replies.anything)


def ended_before(
    queue: QueueKeys, name: KeyName, cutoff_ms: float, first: int, count: int
) -> Call[list[str]]:
    """Jobs that ended at ``cutoff_ms`` or earlier, oldest first."""
    words = ("ZRANGEBYSCORE", queue.key(name), "-inf", cutoff_ms, "LIMIT", first, count)
    return command(*words, decode=list)
