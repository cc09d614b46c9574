"""Explains why nodes wait, from their jobs, queues and ordering keys. Writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import node_status
from glidemq_orchestrate.flows.status import SILENT, NodeStatus, Wait
from glidemq_orchestrate.foundation.texts import short_reason
from glidemq_orchestrate.jobs import job_hash, pages
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import limits as queue_settings
from glidemq_orchestrate.queues import open_arrays
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number

MAX: Final = 100
CLASS: Final = 2**42  # a score of the scheduled set is priority * 2^42 + time
REASON: Final = 200
PAUSE_MS: Final = 10_000  # the max delay of a job handed back by a worker without its handler
DELAY: Final = "its delay"
ELEMENTS: Final = "its delay, or the next attempts of its elements"
LOST: Final = "its worker was lost: it runs again without using up an attempt"
SUSPECT: Final = "its worker was lost: other workers run its jobs one or a few at a time"
_READY: Final = (JobState.WAITING, JobState.PRIORITIZED)
_HELD: Final = (JobState.DELAYED, JobState.GROUP_WAITING, JobState.SUSPENDED)
_FIELDS: Final[tuple[JobField, ...]] = (
    "attemptsMade", "maxAttempts", "failedReason", "orderingKey", "groupKey", "suspendReason", "suspendedAt",
    "suspendTimeout", "gmo:begun", "gmo:suspect", "gmo:token", "gmo:ran",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waiter:
    """A job that may wait; for the last three fields see ``NodeStatus``."""

    name: str
    queue: str
    job_id: str
    job: str
    state: JobState
    lost_attempts: int = 0
    worker: str | None = None
    renewed_at: datetime | None = None

    @property
    def whole_queue(self) -> str:
        """The queue, also of a job in one of its shards."""
        return split_shard(self.queue)[0]


def waits(ref: FlowRef, nodes: Iterable[NodeStatus], now_ms: int) -> Op[dict[str, Wait]]:
    """Why nodes wait, by name; nodes that merely wait for their turn come last. See ``waits_of``.

    Nodes with delays that are not in their jobs need a few more trips.
    """
    every = list(nodes)
    states = {node.name: node.state for node in every}
    waiters = [
        _waiter(node)
        for node in every
        if node.state is not JobState.WAITING_CHILDREN
        or all(states.get(name, node.state).is_terminal or name not in states for name in node.after)
    ]
    known = yield from waits_of(ref.home.prefix, waiters, now_ms)
    if len(known) < MAX and JobState.WAITING_CHILDREN in states.values():
        due = yield from backend_of(ref).delayed(ref)
        delayed = [name for name in due if states.get(name) is JobState.WAITING_CHILDREN]
        known |= {name: Wait(DELAY, moment(str(due[name]))) for name in delayed[: MAX - len(known)]}
    in_order = [(name, known[name]) for name in states if name in known]
    return dict(sorted(in_order, key=lambda one: one[1].is_turn))


def waits_of(prefix: str, jobs: Iterable[Waiter], now_ms: int) -> Op[dict[str, Wait]]:
    """Why jobs wait, by name; in two trips, and a few more for each queue.

    Covers all jobs that are ready or have a silent worker, and the first 100 of the others.
    """
    every = list(jobs)
    silent = [job for job in every if job.state is JobState.ACTIVE and _silent_since(job, now_ms)]
    idle = yield from _idle_arrays(prefix, every)
    ready = [job for job in every if job.state in _READY or job.name in idle]
    held = [job for job in every if _may_be_held(job) and job not in silent][:MAX]
    queues: dict[str, _Queue] = {}
    for name in dict.fromkeys(job.queue for job in (*silent, *ready)):
        queues[name] = yield from _queue(QueueKeys(prefix, name), now_ms)
    known = {job.name: _silent(job, queues[job.queue], now_ms) for job in silent}
    known |= {job.name: _ready(job, queues[job.queue], idle.get(job.name, 0), now_ms) for job in ready}
    found = yield from _read(prefix, held)
    due = yield from _group_times(prefix, found)
    first = {
        job.job.worker: job.job.name
        for job in found
        if job.job.worker and job.job.state is JobState.ACTIVE and job.is_suspect and job.has_begun
    }
    reasons = {
        job.job.name: _held(job, due.get(job.job.name), first.get(job.job.worker or "")) for job in found
    }
    for job in found:
        if job.is_fresh and job.due and (job.due.timestamp() * 1000 - now_ms) <= PAUSE_MS:
            if job.job.queue not in queues:
                queues[job.job.queue] = yield from _queue(QueueKeys(prefix, job.job.queue), now_ms)
            if (unhandled := _unhandled(job.job, queues[job.job.queue])) is not None:
                reasons[job.job.name] = unhandled
    return known | {name: wait for name, wait in reasons.items() if wait is not None}


def _idle_arrays(prefix: str, jobs: Sequence[Waiter]) -> Op[dict[str, float]]:
    """The open arrays of which no element runs, by name, and when one can, ms."""
    by_queue: dict[str, dict[str, str]] = {}
    for job in jobs:
        if job.state is JobState.ACTIVE and job.worker is None:
            by_queue.setdefault(job.queue, {})[job.job_id] = job.name
    found: dict[str, float] = {}
    for queue, names in by_queue.items():
        idle = yield from open_arrays.idle_arrays(QueueKeys(prefix, queue), names)
        found |= {names[job_id]: since for job_id, since in idle}
    return found


def _may_be_held(job: Waiter) -> bool:
    """Whether its fields may explain why it waits. A job whose worker was lost may wait in the next one."""
    is_again = job.state is JobState.ACTIVE and job.lost_attempts > 0
    return is_again or job.state in (*_HELD, JobState.WAITING_CHILDREN)


def wait_of(keys: QueueKeys, job_id: str, now_ms: int) -> Op[Wait | None]:
    """Why a job waits; None if it does not wait, or waits for other jobs.

    Raises:
        JobNotFound: There is no such job.
    """
    node = yield from ask(node_status(keys, job_id, job_id, json.dumps([0, keys.queue, job_id, ""])))
    name = yield from ask(job_hash.get(keys, job_id, "name", lambda reply: reply))
    if name is None:
        raise job_hash.missing(keys, job_id)
    known = yield from waits_of(keys.prefix, [replace(_waiter(node), job=name)], now_ms)
    return known.get(job_id)


def _waiter(node: NodeStatus) -> Waiter:
    return Waiter(
        node.name,
        node.queue,
        node.job_id,
        node.job,
        node.state,
        node.lost_attempts,
        node.worker,
        node.renewed_at,
    )


def _read(prefix: str, held: Sequence[Waiter]) -> Op[list[_Job]]:
    calls: list[Call[Any]] = []
    for job in held:
        keys = QueueKeys(prefix, job.queue)
        calls.append(job_hash.get_some(keys, job.job_id, _FIELDS, list))
        calls.append(pages.score(keys, "scheduled", job.job_id))
    replies = (yield from ask_all(calls)) if calls else []
    return [
        _Job(job, dict(zip(_FIELDS, fields, strict=True)), score)
        for job, fields, score in zip(held, replies[::2], replies[1::2], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Job:
    """A blocked job, its fields, and its score in the scheduled set."""

    job: Waiter
    fields: dict[JobField, str | None]
    score: float | None

    @property
    def key(self) -> str:
        """Its ordering key."""
        return self.fields["groupKey"] or self.fields["orderingKey"] or ""

    @property
    def is_suspect(self) -> bool:
        """Whether it may have ended a worker."""
        return number(self.fields["gmo:suspect"]) > 0

    @property
    def is_fresh(self) -> bool:
        """Whether it is delayed before its first run, by its options or by a worker without its handler."""
        is_delayed = self.job.state is JobState.DELAYED and not self.is_suspect
        return is_delayed and not (number(self.fields["attemptsMade"]) or self.fields["gmo:begun"])

    @property
    def has_begun(self) -> bool:
        """Whether the handler of a suspect runs: its worker reports that first."""
        return self.fields["gmo:ran"] == self.fields["gmo:token"]

    @property
    def due(self) -> datetime | None:
        """When it leaves the scheduled set."""
        return None if self.score is None else moment(str(int(self.score % CLASS)))


@dataclass(frozen=True, slots=True)
class _Queue:
    """What prevents workers from taking jobs of a queue.

    ``limited_until``: when its rate limit allows the next start, in ms; 0 for now.
    ``handlers``: None if a Node worker may have all of them.
    """

    is_paused: bool
    concurrency: int
    rate: tuple[int, int]
    limited_until: int
    handlers: frozenset[str] | None


def _queue(keys: QueueKeys, now_ms: int) -> Op[_Queue]:
    (paused, concurrency, rate, per), (start, used) = yield from ask_all(
        [
            queue_settings.meta(keys, "paused", "globalConcurrency", "rateLimitMax", "rateLimitDuration"),
            queue_settings.rate_window(keys),
        ]
    )
    handlers = yield from workers.known_handlers(keys, now_ms)
    until = number(start) + number(per)
    is_used_up = 0 < number(rate) <= number(used) and until > now_ms
    return _Queue(
        paused == "1",
        number(concurrency),
        (number(rate), number(per)),
        until if is_used_up else 0,
        None if handlers is None else frozenset(handlers),
    )


def _group_times(prefix: str, found: Sequence[_Job]) -> Op[dict[str, datetime | None]]:
    """When the limit of its ordering key allows each job to start, by name."""
    parked = [job for job in found if job.job.state is JobState.GROUP_WAITING and job.key]
    calls = [pages.score(QueueKeys(prefix, job.job.queue), "ratelimited", job.key) for job in parked]
    scores = (yield from ask_all(calls)) if calls else []
    return {
        job.job.name: None if score is None else moment(str(int(score)))
        for job, score in zip(parked, scores, strict=True)
    }


def _silent_since(job: Waiter, now_ms: int) -> datetime | None:
    """Since when the worker of an active job has been silent, if too long."""
    now = moment(str(now_ms))
    if now is None or job.worker is None or job.renewed_at is None or now - job.renewed_at < SILENT:
        return None
    return job.renewed_at


def _silent(job: Waiter, queue: _Queue, now_ms: int) -> Wait:
    since = (_silent_since(job, now_ms) or datetime.now(UTC)).astimezone()
    next_ = "another worker takes it over when its lease ends"
    if queue.handlers is not None and not queue.handlers:
        next_ = f"no live worker serves queue {job.whole_queue}"
    return Wait(f"its worker has been silent since {since:%H:%M:%S %Z}: {next_}")


def _ready(job: Waiter, queue: _Queue, since: float, now_ms: int) -> Wait:
    """``since``: when the first element of an array can run, ms."""
    wait = _in_queue(job, queue)
    if since > now_ms and wait.is_turn:
        return Wait(ELEMENTS, moment(str(int(since))))
    return replace(wait, reason=f"{wait.reason} ({LOST})", is_turn=False) if job.lost_attempts else wait


def _in_queue(job: Waiter, queue: _Queue) -> Wait:
    if queue.is_paused:
        return Wait(f"queue {job.whole_queue} is paused; glidemq queue resume {job.whole_queue}")
    if queue.handlers is not None and not queue.handlers:
        return Wait(f"no live worker serves queue {job.whole_queue}")
    if (unhandled := _unhandled(job, queue)) is not None:
        return unhandled
    rate = f"at most {queue.rate[0]} start in {queue.rate[1] / 1000:g} s" if queue.rate[0] else ""
    if queue.limited_until:
        until = moment(str(queue.limited_until))
        return Wait(f"for the rate limit of queue {job.whole_queue} ({rate})", until, is_turn=True)
    limits = [f"at most {queue.concurrency} run at once"] if queue.concurrency else []
    more = f" ({', '.join([*limits, rate] if rate else limits)})" if limits or rate else ""
    return Wait(f"for a free worker of queue {job.whole_queue}{more}", is_turn=True)


def _unhandled(job: Waiter, queue: _Queue) -> Wait | None:
    if not queue.handlers or job.job in queue.handlers:
        return None
    return Wait(f"no live worker of queue {job.whole_queue} has a handler for {job.job}")


def _held(job: _Job, group_until: datetime | None, first: str | None) -> Wait | None:
    """``first``: the suspect that its worker runs."""
    state = job.job.state
    if state is JobState.ACTIVE:
        reason = SUSPECT if first is None else f"{SUSPECT}; {first} runs first"
        return Wait(reason) if job.is_suspect and not job.has_begun else None
    if state is JobState.SUSPENDED:
        return _suspended(job)
    if state is JobState.DELAYED:
        return Wait(SUSPECT) if job.is_suspect else Wait(_delayed(job), job.due)
    if state is JobState.WAITING_CHILDREN:  # its handler has run and added jobs to wait for
        return Wait("for the jobs that it has added") if job.fields["gmo:begun"] else None
    key = readable(job.key)
    if group_until is not None:
        return Wait(f"for the rate limit of its ordering key {key}", group_until, is_turn=True)
    return Wait(f"for a slot of its ordering key {key}: jobs before it run or wait", is_turn=True)


def _delayed(job: _Job) -> str:
    made, reason = number(job.fields["attemptsMade"]), readable(job.fields["failedReason"] or "")
    why = f": {short_reason(reason)[:REASON]}" if reason else ""
    if made:
        most = max(number(job.fields["maxAttempts"]), made)
        return f"for its next attempt (attempt {made} of {most} failed{why})"
    if not job.fields["gmo:begun"]:
        return DELAY
    return f"its handler requested another attempt then{why}"


def _suspended(job: _Job) -> Wait:
    reason = readable(job.fields["suspendReason"] or "")
    why = f"for a signal{f': {reason[:REASON]}' if reason else ''}"
    timeout, since = number(job.fields["suspendTimeout"]), number(job.fields["suspendedAt"])
    return Wait(why, moment(str(since + timeout)) if timeout and since else None)
