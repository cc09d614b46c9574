"""The registered and live workers, and whether they can run a flow."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from glidemq_orchestrate import registry
from glidemq_orchestrate.attempts.handler_code import HandlerCode, read_code
from glidemq_orchestrate.errors import HandlerNotFound, ProtocolError, QueueNotServed, ServerBusy
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.jobs.attempt import OF_BROADCASTS, OURS, Attempt
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, parsed_object

FOREIGN_IDLE_MS: Final = 10_000
MAX_PAUSE_MS: Final = 1_000
MAX_PAUSE_ALONE_MS: Final = 10_000  # while no other worker may run it
PAUSES: Final = 10
FORGET_AFTER_MS: Final = 60_000
"""A worker without jobs that has not renewed its registration for this long is removed from its queue."""
REGISTERED_MS: Final = 30_000
"""How long a registration of a worker lasts."""
LOST_MS: Final = 15_000
"""A worker that has not renewed its registration for this long is lost; workers renew every 10 s."""


def require(prefix: str, jobs: Mapping[str, Collection[str]], now_ms: int) -> Op[None]:
    """Check that every queue has live workers that can run its jobs.

    Our workers register their handlers. A Node worker registers none and is assumed to have all.

    Raises:
        QueueNotServed: A queue has no live worker.
        HandlerNotFound: All live workers of a queue register their handlers, and a job has none.
    """
    unserved, missing, known = [], {}, {}
    for queue, names in jobs.items():
        handlers = yield from known_handlers(QueueKeys(prefix, queue), now_ms)
        if handlers is None:
            continue
        if not handlers:
            unserved.append(queue)
        elif lacking := sorted(set(names) - handlers):
            missing[queue], known[queue] = lacking, sorted(handlers - {""})
    if unserved:
        raise QueueNotServed(unserved)
    if missing:
        raise HandlerNotFound(missing, known)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A live worker and its registration; ``handlers`` is None if it may run jobs of any name, as in Node.

    ``broken``: its registration cannot be read; all but the id is empty, 0 or the start of the epoch.
    ``silent``: the time since its last registration, which workers renew every 10 s; 0 for Node workers.
    Then it also reports the following; they are None for Node workers, and where an older worker reports
    nothing. ``memory``: resident bytes of its process. ``concurrency``: its places for running handlers, and
    ``running`` how many of them are in use; ``active_jobs`` also counts jobs that it holds in advance.
    ``code``: where the code of its handlers is, by their names, of at most 1,000. ``subscription``: that of a
    ``BroadcastWorker``, which has no ``handlers``, as it runs no jobs; its code has that name.
    """

    id: str
    host: str
    pid: int
    started_at: datetime
    active_jobs: int
    handlers: tuple[str, ...] | None
    broken: bool = False
    silent: timedelta = timedelta(0)
    last_heartbeat: datetime | None = None
    memory: int | None = None
    concurrency: int | None = None
    running: int | None = None
    code: Mapping[str, HandlerCode] = field(default_factory=dict, hash=False)
    subscription: str | None = None

    @property
    def is_silent(self) -> bool:
        """Whether its registration is overdue: it was lost, or is slow."""
        return self.silent >= timedelta(milliseconds=LOST_MS)

    @property
    def runs_jobs(self) -> bool:
        """Whether it runs jobs of the queue, unlike the worker of a subscription."""
        return self.subscription is None


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A lost worker, and how many jobs wait for the end of its leases."""

    id: str
    jobs: int


def live(queue: QueueKeys, now_ms: int) -> Op[list[WorkerInfo]]:
    """The live workers of a queue and of its broadcast subscriptions, the oldest first."""
    until = yield from ask(registry.registered_until(queue, now_ms))
    names = dict.fromkeys(until)
    try:
        groups = yield from ask(registry.groups(queue))
    except ProtocolError:
        groups = []  # the queue never had a worker
    for group in groups:
        for consumer in (yield from ask(registry.consumers(queue, group))):
            names[str(consumer["name"])] = None
    if not names:
        return []
    texts = yield from ask(registry.worker_descriptions(queue, list(names)))
    found = [_worker(name, text) for name, text in zip(names, texts, strict=True) if text is not None]
    found = [_heard(one, until[one.id] - REGISTERED_MS, now_ms) if one.id in until else one for one in found]
    return sorted(found, key=lambda worker: worker.started_at)


def _heard(worker: WorkerInfo, at_ms: int, now_ms: int) -> WorkerInfo:
    """A worker with the time of its last registration."""
    silent = timedelta(milliseconds=max(now_ms - at_ms, 0))
    return replace(worker, silent=silent, last_heartbeat=moment(str(at_ms)))


def lost(queue: QueueKeys, now_ms: int) -> Op[list[LostWorker]]:
    """The lost Python workers that still hold jobs of the stream by their leases.

    Broadcast workers are not listed: they are visible only while they hold messages.
    """
    until = yield from ask(registry.registered_until(queue, now_ms))
    alive = {name for name, at in until.items() if now_ms - (at - REGISTERED_MS) < LOST_MS}
    try:
        groups = yield from ask(registry.groups(queue))
    except ProtocolError:
        return []  # the queue never had a worker
    lost_workers: list[LostWorker] = []
    for group in groups:
        for one in (yield from ask(registry.consumers(queue, group))):
            name, is_silent = one["name"], one["idle"] >= LOST_MS
            is_gone = name.startswith(OURS) and name not in alive
            if one["pending"] and (is_gone or (name.startswith(OF_BROADCASTS) and is_silent)):
                lost_workers.append(LostWorker(name, one["pending"]))
    return lost_workers


class CodeInUse(NamedTuple):
    """Code of a handler, and the workers that have it; ``subscription``: the one that it handles, if any."""

    subscription: str
    code: HandlerCode
    workers: list[WorkerInfo]


def serving(found: Iterable[WorkerInfo], handler: str) -> list[WorkerInfo]:
    """The workers that run jobs or messages of this name, or may do so."""
    return [
        worker
        for worker in found
        if worker.handlers is None or handler in worker.handlers or worker.subscription is not None
    ]


def code_in_use(found: Iterable[WorkerInfo], handler: str) -> list[CodeInUse]:
    """The code of a handler in these workers, each version once, that of most workers first.

    A message of this name is a job that each subscription handles; a subscription may leave it out.
    """
    versions: dict[tuple[str, HandlerCode], list[WorkerInfo]] = {}
    for worker in serving(found, handler):
        subscription = worker.subscription or ""
        if code := worker.code.get(subscription or handler):
            versions.setdefault((subscription, code), []).append(worker)
    return [CodeInUse(*one, who) for one, who in sorted(versions.items(), key=lambda one: -len(one[1]))]


def _worker(name: str, text: str) -> WorkerInfo:
    """A worker from its registration; ``broken`` if that cannot be read."""
    try:
        wire = parsed_object(text)
        started = datetime.fromtimestamp(float(wire["startedAt"]) / 1000, UTC)
        handlers = wire.get("handlers")
        active = int(wire.get("activeJobs") or 0)
        names = tuple(map(str, handlers)) if isinstance(handlers, list) else None
        found = WorkerInfo(name, str(wire["addr"]), int(wire["pid"]), started, active, names)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return WorkerInfo(name, "", 0, datetime.fromtimestamp(0, UTC), 0, None, broken=True)
    memory, concurrency, running = (_count(wire.get(name)) for name in ("memory", "concurrency", "running"))
    subscription = wire.get("subscription")
    return replace(
        found, memory=memory, concurrency=concurrency, running=running, code=read_code(wire),
        subscription=readable(subscription) if isinstance(subscription, str) and subscription else None,
    )  # fmt: skip


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _handlers_of(text: str) -> list[str] | None:
    """The handlers in a registration; None if the worker runs jobs of any name."""
    handlers = parsed_object(text).get("handlers", [])
    if handlers is None:
        return None
    return [str(name) for name in handlers] if isinstance(handlers, list) else []


def longest_pause(
    queue: QueueKeys, attempt: Attempt, worker_id: str, why: str, clock: Clock
) -> Op[int | None]:
    """For how many ms at most a job without a handler in this worker is handed back; None: it fails instead.

    It is handed back if another live worker of the queue has or may have a handler. So is a node with a
    ``queue_timeout``: the timeout then ends the node, with ``why`` as its reason. Each pause of a node costs
    events that others would rather read, so one that may wait long is looked at seldom.
    """
    handlers = yield from known_handlers(queue, clock.now_ms(), without=worker_id)
    if handlers is None or attempt.name in handlers:
        return MAX_PAUSE_MS
    timeout_ms = yield from backend.queue_timeout(queue, attempt)
    if not timeout_ms:
        return None
    yield from ask(attempt_calls.note_unhandled(queue, attempt.node_job_id, why))
    return min(max(timeout_ms // PAUSES, MAX_PAUSE_MS), MAX_PAUSE_ALONE_MS)


def known_handlers(queue: QueueKeys, now_ms: int, *, without: str = "") -> Op[set[str] | None]:
    """Job names that live workers can run ('' for a worker itself).

    None if a worker is alive that is foreign, or runs jobs of any name.
    """
    ours = [name for name in (yield from ask(registry.live_workers(queue, now_ms))) if name != without]
    described = (yield from ask(registry.worker_descriptions(queue, ours))) if ours else []
    registered = [_handlers_of(text) for text in described if text]
    if None in registered:
        return None
    names = {name for handlers in registered for name in ("", *(handlers or ()))}
    try:
        consumers = yield from ask(registry.consumers(queue))
    except ProtocolError:
        return names  # the queue has no group: it never had a worker
    # The name shows that a worker of ours that has just died is not foreign.
    foreign = [consumer for consumer in consumers if not str(consumer["name"]).startswith(OURS)]
    return None if any(int(consumer["idle"]) < FOREIGN_IDLE_MS for consumer in foreign) else names


@dataclass(frozen=True, slots=True)
class OtherCode:
    """A live worker whose handlers have other code than those of the same names here.

    ``handlers``: their names, sorted; ``there`` is the code of the first.
    """

    id: str
    host: str
    pid: int
    handlers: tuple[str, ...]
    there: HandlerCode


def other_code(
    queue: QueueKeys, worker_id: str, code: Mapping[str, HandlerCode], now_ms: int
) -> Op[list[OtherCode]]:
    """The other live workers of a queue with other ``code`` for the same handlers, as they registered it.

    Code whose source could not be read, here or there, is not compared.
    """
    ours = [name for name in (yield from ask(registry.live_workers(queue, now_ms))) if name != worker_id]
    texts = (yield from ask(registry.worker_descriptions(queue, ours))) if ours else []
    found: list[OtherCode] = []
    for name, text in zip(ours, texts, strict=True):
        there = _worker(name, text or "")
        theirs = {job: one for job, one in there.code.items() if one.digest and job in code}
        differ = sorted(job for job, one in theirs.items() if _differs(code[job], one))
        if differ:
            found.append(OtherCode(name, there.host, there.pid, tuple(differ), theirs[differ[0]]))
    return found


def _differs(one: HandlerCode, other: HandlerCode) -> bool:
    return bool(one.digest) and (one.path, one.digest) != (other.path, other.digest)


def open_queues(queues: Sequence[QueueKeys]) -> Op[None]:
    """Create the workers' group of each queue if it is missing.

    A server whose memory is full refuses this, even if the group exists; there the first fetch creates it.
    """
    for reply in (yield from ask_each([registry.create_group(queue) for queue in queues])):
        is_fine = isinstance(reply, ServerBusy) and reply.code == "OOM"
        if isinstance(reply, Exception) and not is_fine and "BUSYGROUP" not in str(reply):
            raise reply


def announce(
    queues: Sequence[QueueKeys], worker_id: str, description: dict[str, Any], ttl_ms: int, now_ms: int
) -> Op[None]:
    """Register the worker as alive on every queue for ``ttl_ms``."""
    text, runs_jobs = json.dumps(description, separators=(",", ":")), "subscription" not in description
    yield from ask_all(
        [
            registry.register_worker(queue, worker_id, text, ttl_ms, now_ms, runs_jobs=runs_jobs)
            for queue in queues
        ]
    )


def withdraw(queues: Sequence[QueueKeys], worker_id: str) -> Op[None]:
    """Unregister the worker, which no longer holds a job, from every queue.

    Its consumer stays if entries are pending. Reclaiming makes the consumer the owner of entries whose
    jobs other workers run. If such an entry were deleted with it, its job could not be reclaimed.
    """
    calls: list[Call[Any]] = []
    for queue in queues:
        calls.append(registry.forget_worker(queue, worker_id))
        calls.append(registry.withdraw_worker(queue, worker_id))
        calls.append(registry.has_pending(queue, worker_id))
    replies = yield from ask_each(calls)
    free = [queue for queue, pending in zip(queues, replies[2::3], strict=True) if pending is False]
    yield from ask_each([registry.drop_consumer(queue, worker_id) for queue in free])
