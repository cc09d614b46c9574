"""Why nodes wait: read from their jobs, queues and ordering keys, for people who look. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from glidemq_orchestrate._ops.flows.portable.decisions import delayed_until
from glidemq_orchestrate._ops.flows.portable.table import Policy, read_nodes, read_policies
from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._ops.worker import workers
from glidemq_orchestrate._protocol import job_hash
from glidemq_orchestrate._protocol.call import Call, Op, ask, ask_all
from glidemq_orchestrate._protocol.flows.portable import record as records
from glidemq_orchestrate._protocol.queue import reads
from glidemq_orchestrate.codec import readable
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.flows.waits import WAITING, Wait
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.keys import QueueKeys
from glidemq_orchestrate.names import short_reason
from glidemq_orchestrate.stored import moment, number

MOST: Final = 100
CLASS: Final = 2**42  # a score of the scheduled set is priority * 2^42 + the time
REASON: Final = 200
DELAY: Final = "its delay"
_FIELDS: Final[tuple[JobField, ...]] = (
    "attemptsMade", "maxAttempts", "failedReason", "orderingKey", "groupKey", "suspendReason", "suspendedAt",
    "suspendTimeout", "gmo:begun",
)  # fmt: skip


def waits(ref: FlowRef, nodes: Iterable[NodeStatus], now_ms: int) -> Op[dict[str, Wait]]:
    """Why nodes wait, by name, of the first 100 that do; in two trips and two more for each queue.

    Nodes of a portable flow with a delay of their own take some more, as ``read_nodes`` does.
    """
    every = list(nodes)
    asked = [node for node in every if node.state in WAITING][:MOST]
    queues: dict[str, _Queue] = {}
    for name in dict.fromkeys(node.queue for node in asked):
        queues[name] = yield from _queue(QueueKeys(ref.home.prefix, name), now_ms)
    jobs = [QueueKeys(ref.home.prefix, node.queue) for node in asked]
    calls: list[Call[Any]] = []
    for node, keys in zip(asked, jobs, strict=True):
        calls.append(job_hash.get_some(keys, node.job_id, _FIELDS, list))
        calls.append(reads.score(keys, "scheduled", node.job_id))
    replies = (yield from ask_all(calls)) if calls else []
    found = [
        _Job(node, dict(zip(_FIELDS, fields, strict=True)), score)
        for node, fields, score in zip(asked, replies[::2], replies[1::2], strict=True)
    ]
    due = yield from _group_times(found, jobs)
    told = {job.node.name: _wait(job, queues[job.node.queue], due.get(job.node.name)) for job in found}
    if ref.path == "portable" and len(told) < MOST:
        delayed = yield from _delayed_nodes(ref, every)
        told |= dict(list(delayed.items())[: MOST - len(told)])
    return told


def _delayed_nodes(ref: FlowRef, nodes: Sequence[NodeStatus]) -> Op[dict[str, Wait]]:
    """The nodes of a portable flow that wait for their own delay, as they would for others."""
    waiting = {node.name for node in nodes if node.state is JobState.WAITING_CHILDREN}
    texts = (yield from read_policies(ref)) if waiting else {}
    if not any(Policy.read(texts[name]).delay_ms for name in waiting & texts.keys()):
        return {}
    record = yield from ask(records.record(ref.home, ref.flow_id))
    due = delayed_until((yield from read_nodes(ref)), record.begun_ms) if record.number >= 0 else {}
    return {name: Wait(DELAY, moment(str(at))) for name, at in due.items() if name in waiting}


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that waits, its fields, and its score in the scheduled set."""

    node: NodeStatus
    fields: dict[JobField, str | None]
    score: float | None

    @property
    def key(self) -> str:
        """Its ordering key."""
        return self.fields["groupKey"] or self.fields["orderingKey"] or ""

    @property
    def due(self) -> datetime | None:
        """When it leaves the scheduled set."""
        return None if self.score is None else moment(str(int(self.score % CLASS)))


@dataclass(frozen=True, slots=True)
class _Queue:
    """What keeps jobs of a queue from being taken. ``handlers``: None where a worker in Node may have all."""

    is_paused: bool
    concurrency: int
    rate: tuple[int, int]
    handlers: frozenset[str] | None


def _queue(keys: QueueKeys, now_ms: int) -> Op[_Queue]:
    paused, concurrency, rate, per = yield from ask(
        reads.meta(keys, "paused", "globalConcurrency", "rateLimitMax", "rateLimitDuration")
    )
    handlers = yield from workers.known_handlers(keys, now_ms)
    return _Queue(
        paused == "1",
        number(concurrency),
        (number(rate), number(per)),
        None if handlers is None else frozenset(handlers),
    )


def _group_times(found: Sequence[_Job], queues: Sequence[QueueKeys]) -> Op[dict[str, datetime | None]]:
    """When the limit of its ordering key lets a job go on, by node."""
    parked = [
        (job, keys) for job, keys in zip(found, queues, strict=True) if _is_parked(job.node.state) and job.key
    ]
    calls = [reads.score(keys, "ratelimited", job.key) for job, keys in parked]
    scores = (yield from ask_all(calls)) if calls else []
    return {
        job.node.name: None if score is None else moment(str(int(score)))
        for (job, _), score in zip(parked, scores, strict=True)
    }


def _is_parked(state: JobState) -> bool:
    return state is JobState.GROUP_WAITING


def _wait(job: _Job, queue: _Queue, group_until: datetime | None) -> Wait:
    state, node = job.node.state, job.node
    if state is JobState.SUSPENDED:
        return _suspended(job)
    if state is JobState.DELAYED or job.score is not None:
        return Wait(_delayed(job), job.due)
    if _is_parked(state):
        key = readable(job.key)
        if group_until is not None:
            return Wait(f"for the rate limit of its ordering key {key}", group_until)
        return Wait(f"for a place of its ordering key {key}: jobs before it run or wait", is_turn=True)
    return _in_queue(node, queue)


def _in_queue(node: NodeStatus, queue: _Queue) -> Wait:
    if queue.is_paused:
        return Wait(f"queue {node.queue} is paused; glidemq queue resume {node.queue}")
    if queue.handlers is not None and not queue.handlers:
        return Wait(f"no live worker serves queue {node.queue}")
    if queue.handlers is not None and node.job not in queue.handlers:
        return Wait(f"no live worker of queue {node.queue} has a handler {node.job}")
    limits = [f"at most {queue.concurrency} run at once"] if queue.concurrency else []
    limits += [f"at most {queue.rate[0]} start in {queue.rate[1] / 1000:g} s"] if queue.rate[0] else []
    reason = f"for a free worker of queue {node.queue}" + (f" ({', '.join(limits)})" if limits else "")
    return Wait(reason, is_turn=True)


def _delayed(job: _Job) -> str:
    made, reason = number(job.fields["attemptsMade"]), readable(job.fields["failedReason"] or "")
    why = f": {short_reason(reason)[:REASON]}" if reason else ""
    if made:
        most = max(number(job.fields["maxAttempts"]), made)
        return f"to be tried again (attempt {made} of {most} failed{why})"
    if not job.fields["gmo:begun"]:
        return DELAY
    return f"its handler asked for another attempt then{why}"


def _suspended(job: _Job) -> Wait:
    reason = readable(job.fields["suspendReason"] or "")
    why = f"for a signal{f': {reason[:REASON]}' if reason else ''}"
    timeout, since = number(job.fields["suspendTimeout"]), number(job.fields["suspendedAt"])
    return Wait(why, moment(str(since + timeout)) if timeout and since else None)
