"""What a worker says about the jobs it holds, and the upkeep of a queue that every worker shares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._ops import flow, flow_index
from glidemq_orchestrate._protocol import glidemq, orchestrate
from glidemq_orchestrate._protocol.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, LeaseLost, ProtocolError
from glidemq_orchestrate.job import Attempt
from glidemq_orchestrate.keys import QueueKeys

TODO_PER_TICK: Final = 10


@dataclass(frozen=True, slots=True)
class Delivery:
    """A stream entry that was handed to this worker."""

    queue: QueueKeys
    job_id: str
    entry_id: str
    token: str


def open_queues(queues: Sequence[QueueKeys]) -> Op[None]:
    """Make the workers' group of each queue where it is missing."""
    for reply in (yield from ask_each([glidemq.create_group(queue) for queue in queues])):
        if isinstance(reply, Exception) and "BUSYGROUP" not in str(reply):
            raise reply


def announce(
    queues: Sequence[QueueKeys], worker_id: str, description: dict[str, Any], ttl_ms: int, now_ms: int
) -> Op[None]:
    """Say on every queue that the worker is alive for another ``ttl_ms``."""
    text = json.dumps(description, separators=(",", ":"))
    calls: list[Call[None]] = []
    for queue in queues:
        calls.append(glidemq.register_worker(queue, worker_id, text, ttl_ms))
        calls.append(orchestrate.announce_worker(queue, worker_id, now_ms + ttl_ms))
    yield from ask_all(calls)


def leave(
    queues: Mapping[str, QueueKeys], held: Sequence[Attempt], backlog: Sequence[Delivery], clock: Clock
) -> Op[None]:
    """Give back what is not finished: attempts and deliveries that were never begun."""
    now_ms = clock.now_ms()
    calls = [orchestrate.give_back(attempt, queues[attempt.queue], now_ms) for attempt in held]
    calls += [glidemq.defer(delivery.queue, delivery.job_id, delivery.entry_id) for delivery in backlog]
    for reply in (yield from ask_each(calls)):
        if isinstance(reply, GlideMQError) and not isinstance(reply, LeaseLost):
            raise reply


def withdraw(queues: Sequence[QueueKeys], worker_id: str) -> Op[None]:
    """Take the worker's traces off every queue; it holds no job any more.

    Its consumer stays where entries are pending: reclaiming makes it the owner of entries whose jobs other
    workers run, and an entry that went with its consumer could never be taken over from a worker that dies.
    """
    calls: list[Call[Any]] = []
    for queue in queues:
        calls.append(glidemq.forget_worker(queue, worker_id))
        calls.append(orchestrate.withdraw_worker(queue, worker_id))
        calls.append(glidemq.has_pending(queue, worker_id))
    replies = yield from ask_each(calls)
    free = [queue for queue, pending in zip(queues, replies[2::3], strict=True) if pending is False]
    yield from ask_each([glidemq.drop_consumer(queue, worker_id) for queue in free])


def fetch(
    queues: Sequence[QueueKeys], consumer: str, count: int, block_ms: int, *, again: bool
) -> Op[list[tuple[QueueKeys, str, str]]]:
    """Take new stream entries, or ``again`` those delivered before: queue, job id, entry id of each."""
    try:
        streams = yield from ask(glidemq.read_group(list(queues), consumer, count, block_ms, again=again))
    except ProtocolError as exc:
        if "NOGROUP" not in str(exc):
            raise
        yield from open_queues(queues)  # somebody has emptied the database
        return []
    by_key = {queue.key("stream"): queue for queue in queues}
    return [
        (by_key[key], fields["jobId"], entry_id)
        for key, entries in streams.items()
        for entry_id, fields in entries
        if "jobId" in fields
    ]


def activate(deliveries: Sequence[Delivery], now_ms: int) -> Op[list[tuple[Attempt, dict[str, str]]]]:
    """Begin the attempts that may begin, with the stored results of their dependencies."""
    answers = yield from ask_all(
        [orchestrate.activate(d.queue, d.job_id, d.entry_id, d.token, now_ms) for d in deliveries]
    )
    begun = [
        (delivery.queue, answer)
        for delivery, answer in zip(deliveries, answers, strict=True)
        if isinstance(answer, Attempt)
    ]
    inputs: dict[str, dict[str, str]] = {attempt.job_id: {} for _, attempt in begun}
    unread = [(queue, attempt.job_id, "0") for queue, attempt in begun if attempt.flow_id is not None]
    while unread:
        pages = yield from ask_all([orchestrate.node_inputs(*place) for place in unread])
        for (_, job_id, _), (_, texts) in zip(unread, pages, strict=True):
            inputs[job_id].update(texts)
        unread = [
            (queue, job_id, cursor)
            for (queue, job_id, _), (cursor, _) in zip(unread, pages, strict=True)
            if cursor != "0"
        ]
    return [(attempt, inputs[attempt.job_id]) for _, attempt in begun]


def complete(queue: QueueKeys, attempt: Attempt, result: str, clock: Clock) -> Op[None]:
    """Hand in a result."""
    yield from _advance(
        queue, (yield from ask(orchestrate.finish(attempt, queue, result, clock.now_ms()))), clock
    )


def fail(  # noqa: PLR0913  what a failure is made of
    queue: QueueKeys, attempt: Attempt, reason: str, *, max_attempts: int, backoff_ms: int, clock: Clock
) -> Op[bool]:
    """Hand in a failure; if it is final, the dependents' failures follow. Answers whether a retry follows."""
    call = orchestrate.fail(
        attempt, queue, reason, max_attempts=max_attempts, backoff_ms=backoff_ms, now_ms=clock.now_ms()
    )
    word, unsettled = yield from ask(call)
    yield from _advance(queue, unsettled, clock)
    return word == "retrying"


def _advance(queue: QueueKeys, flow_id: str, clock: Clock) -> Op[None]:
    """Do what a flow needs after one of its nodes has ended; an empty id needs nothing."""
    if flow_id:
        ref = yield from flow.find(queue.prefix, flow_id)
        yield from flow.advance(ref, clock)


def heartbeat(held: Sequence[tuple[QueueKeys, Attempt]], now_ms: int) -> Op[list[int | Exception]]:
    """Keep the leases: 1 kept, 0 asked to stop, LeaseLost gone."""
    replies = yield from ask_each([orchestrate.heartbeat(attempt, queue, now_ms) for queue, attempt in held])
    return list(replies)


def upkeep(queues: Sequence[QueueKeys], clock: Clock) -> Op[int]:
    """Release due delayed jobs and go on with unsettled flows. Answers when the next job is due, or -1."""
    now_ms = clock.now_ms()
    yield from flow_index.sweep(queues, clock)
    yield from ask_all([glidemq.promote(queue, now_ms) for queue in queues])
    todo = yield from ask_all([orchestrate.unsettled_flows(queue, TODO_PER_TICK) for queue in queues])
    for queue, flow_ids in zip(queues, todo, strict=True):
        for flow_id in flow_ids:
            with suppress(FlowNotFound):
                yield from flow.advance(flow.FlowRef(queue, flow_id), clock)
    due = yield from ask_all([glidemq.next_due(queue) for queue in queues])
    return min((at for at in due if at >= 0), default=-1)


def reclaim(
    queues: Sequence[QueueKeys], consumer: str, *, lock_ms: int, max_lost: int, clock: Clock
) -> Op[None]:
    """Take back the jobs of dead workers; flows that failed by it are advanced by the next upkeep."""
    calls = [
        orchestrate.reclaim(queue, consumer, lock_ms=lock_ms, max_lost=max_lost, now_ms=clock.now_ms())
        for queue in queues
    ]
    for reply in (yield from ask_each(calls)):
        if isinstance(reply, ProtocolError) and "NOGROUP" in str(reply):
            continue
        if isinstance(reply, Exception):
            raise reply
