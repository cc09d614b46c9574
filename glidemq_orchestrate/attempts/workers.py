"""Which workers are alive, and whether they can run a flow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from glidemq_orchestrate import registry
from glidemq_orchestrate.errors import HandlerNotFound, ProtocolError, QueueNotServed
from glidemq_orchestrate.flows import running
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.worker_id import OF_BROADCASTS, OURS
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys
from glidemq_orchestrate.wire.stored import parsed_object

FOREIGN_IDLE_MS: Final = 10_000
SILENT_MS: Final = 60_000
REGISTERED_MS: Final = 30_000
"""For so long a worker is registered at a time."""
LOST_MS: Final = 15_000
"""After so long without registering again, which workers do every 10 s, a worker is lost."""


def reclaim(
    queue: QueueKeys, consumer: str, *, lock_ms: int, max_stalled: int, now_ms: int
) -> Call[list[ReclaimedJobs]]:
    """Reclaim the jobs of lost workers. Flows that need ``advance_flow`` are noted on the server."""
    args = (now_ms, GROUP, consumer, lock_ms, lock_ms, max_stalled)
    return function("gmo_reclaim", [queue.key("stream")], args, _lost)


class ReclaimedJobs(NamedTuple):
    """A lost worker: how many jobs were taken back, how many of them had begun, and some of these."""

    worker: str
    jobs: int
    begun: int
    ids: list[str]


def _lost(reply: Any) -> list[ReclaimedJobs]:
    rows = ((readable(name), jobs, begun, replies.texts(ids)) for name, jobs, begun, *ids in reply[1])
    return [ReclaimedJobs(*row) for row in rows]


def renew(queue: QueueKeys, group: str, worker_id: str, goes_on: str, now_ms: int) -> Call[tuple[int, str]]:
    """Renew a page of the leases of a worker; how many, and where to go on or ''. Repeatable."""
    args = (now_ms, group, worker_id, goes_on)

    def decode(reply: Any) -> tuple[int, str]:
        return replies.integer(reply[0]), replies.text(reply[1])

    return function("gmo_renew", [queue.key("stream")], args, decode, repeatable=True)


def forget_workers(queue: QueueKeys, group: str, silent_ms: int, now_ms: int) -> Call[int]:
    """Remove registrations and consumers of killed workers; returns how many consumers. Repeatable."""
    return function("gmo_forget_workers", [queue.key("stream")], (now_ms, group, silent_ms), replies.integer)


def require(prefix: str, jobs: Mapping[str, Collection[str]], now_ms: int) -> Op[None]:
    """Refuse unless every queue has a live worker that can run its jobs.

    Our workers register their handlers; a Node worker registers none and is assumed to have them all.

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
    """A live worker as it registered itself; ``handlers`` is None for one that does not list them (Node's).

    ``broken``: its registration cannot be read; all but the id is empty, 0 or the start of the epoch.
    ``silent``: since when it has not registered again, which workers do every 10 s; 0 for workers of Node.
    """

    id: str
    host: str
    pid: int
    started_at: datetime
    active_jobs: int
    handlers: tuple[str, ...] | None
    broken: bool = False
    silent: timedelta = timedelta(0)

    @property
    def is_silent(self) -> bool:
        """Whether it should have registered again: it was lost, or is slow."""
        return self.silent >= timedelta(milliseconds=LOST_MS)


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that is gone, and how many jobs wait for its leases to end."""

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
    silent = {name: now_ms - (at - REGISTERED_MS) for name, at in until.items()}
    found = [replace(one, silent=timedelta(milliseconds=max(silent.get(one.id, 0), 0))) for one in found]
    return sorted(found, key=lambda worker: worker.started_at)


def lost(queue: QueueKeys, now_ms: int) -> Op[list[LostWorker]]:
    """The workers of this package that are gone, and still hold jobs of the stream by their leases.

    Those of broadcasts register nowhere: they give signs of life while they hold messages.
    """
    until = yield from ask(registry.registered_until(queue, now_ms))
    alive = {name for name, at in until.items() if now_ms - (at - REGISTERED_MS) < LOST_MS}
    try:
        groups = yield from ask(registry.groups(queue))
    except ProtocolError:
        return []  # the queue never had a worker
    gone: list[LostWorker] = []
    for group in groups:
        for one in (yield from ask(registry.consumers(queue, group))):
            name, is_silent = one["name"], one["idle"] >= LOST_MS
            is_gone = name.startswith(OURS) and name not in alive
            if one["pending"] and (is_gone or (name.startswith(OF_BROADCASTS) and is_silent)):
                gone.append(LostWorker(name, one["pending"]))
    return gone


def _worker(name: str, text: str) -> WorkerInfo:
    """A worker from its registration; one that cannot be read is ``broken``."""
    try:
        wire = parsed_object(text)
        started = datetime.fromtimestamp(float(wire["startedAt"]) / 1000, UTC)
        handlers = wire.get("handlers")
        active = int(wire.get("activeJobs") or 0)
        names = tuple(map(str, handlers)) if isinstance(handlers, list) else None
        return WorkerInfo(name, str(wire["addr"]), int(wire["pid"]), started, active, names)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return WorkerInfo(name, "", 0, datetime.fromtimestamp(0, UTC), 0, None, broken=True)


def _handlers_of(text: str) -> list[str]:
    handlers = parsed_object(text).get("handlers")
    return [str(name) for name in handlers] if isinstance(handlers, list) else []


def may_be_handled(queue: QueueKeys, attempt: Attempt, worker_id: str, why: str, clock: Clock) -> Op[bool]:
    """Whether a job that this worker has no handler for is given back instead of failed.

    It is if another live worker of the queue has one, or may have one; and if the job is a node with a
    ``queue_timeout``: that ends it, with ``why`` as its reason.
    """
    handlers = yield from known_handlers(queue, clock.now_ms(), without=worker_id)
    if handlers is None or attempt.name in handlers:
        return True
    if not (yield from running.has_queue_timeout(queue, attempt)):
        return False
    yield from ask(attempt_calls.note_unhandled(queue, attempt.job_id, why))
    return True


def known_handlers(queue: QueueKeys, now_ms: int, *, without: str = "") -> Op[set[str] | None]:
    """Job names that live workers can run (with '' for a worker); None when a foreign worker is alive."""
    ours = [name for name in (yield from ask(registry.live_workers(queue, now_ms))) if name != without]
    described = (yield from ask(registry.worker_descriptions(queue, ours))) if ours else []
    names = {name for text in described if text for name in ("", *_handlers_of(text))}
    try:
        consumers = yield from ask(registry.consumers(queue))
    except ProtocolError:
        return names  # the queue has no group: it never had a worker
    # A worker of ours that died a moment ago is not foreign, as its name shows.
    foreign = [consumer for consumer in consumers if not str(consumer["name"]).startswith(OURS)]
    return None if any(int(consumer["idle"]) < FOREIGN_IDLE_MS for consumer in foreign) else names
