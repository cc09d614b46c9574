"""The upkeep of a queue, shared by its workers: due work, leftovers, and jobs of lost workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.attempts import dead_letters as letters
from glidemq_orchestrate.attempts.dead_letters import write_noted
from glidemq_orchestrate.attempts.workers import FORGET_AFTER_MS
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.home import expire_due
from glidemq_orchestrate.flows.index import sweep, unsettled_flows
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask_all, ask_each, function, isolated
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

TODO_PER_TICK: Final = 10
EXPIRING_SLICES: Final = 20
CLEANUP_SLICES: Final = 40


def upkeep(queues: Sequence[QueueKeys], clock: Clock) -> Op[int]:
    """Sweep, clean up, continue unsettled flows, and process due delays, limits, timeouts and deadlines.

    Returns when something is due next, or -1.
    """
    names = ", ".join(queue.queue for queue in queues)
    yield from isolated(sweep(queues, clock), f"the sweep of {names}")
    yield from isolated(clean_up(queues, clock), f"the cleanup of {names}")
    todo = yield from ask_all([unsettled_flows(queue, TODO_PER_TICK) for queue in queues])
    for queue, flow_ids in zip(queues, todo, strict=True):
        for flow_id in flow_ids:
            advancing = backend.advance_at(queue, flow_id, clock)
            yield from isolated(advancing, f"flow {flow_id} of queue {queue.queue}")
    due = yield from expire(queues, clock)
    return min((at for at in due if at >= 0), default=-1)


def expire(queues: Sequence[QueueKeys], clock: Clock) -> Op[list[int]]:
    """Process due work in slices. Returns when each queue has work due next, or -1."""
    replies: list[tuple[int, int]] = []
    for _ in range(EXPIRING_SLICES):
        replies = yield from ask_all([expire_due(queue, clock.now_ms()) for queue in queues])
        if not any(count for count, _ in replies):
            break
    return [at for _, at in replies]


def clean_up(queues: Sequence[QueueKeys], clock: Clock) -> Op[None]:
    """Remove unneeded data of the queues, at most some slices of each. Idempotent."""
    busy = list(queues)
    for _ in range(CLEANUP_SLICES):
        replies = yield from ask_all([cleanup(queue, clock.now_ms()) for queue in busy])
        busy = [queue for queue, has_more in zip(busy, replies, strict=True) if has_more]
        if not busy:
            return


def reclaim(  # noqa: PLR0913  the rules of a lease
    queue: QueueKeys, consumer: str, *, lock_ms: int, max_stalled: int, clock: Clock, silent_ms: int = 0
) -> Op[Reclaimed]:
    """Reclaim the jobs of lost workers, forget the workers, and write the dead letters of failed jobs.

    The next upkeep advances flows that fail as a result. ``silent_ms``: after this long without a heartbeat
    a worker with jobs is reported as silent; 0: none is.
    """
    now_ms, forgotten_ms = clock.now_ms(), max(FORGET_AFTER_MS, 2 * lock_ms)
    reclaiming = reclaim_jobs(
        queue, consumer, lock_ms=lock_ms, max_stalled=max_stalled, now_ms=now_ms, silent_ms=silent_ms
    )
    calls: list[Call[Any]] = [
        reclaiming,
        forget_workers(queue, GROUP, forgotten_ms, now_ms),
        letters.count(queue),
    ]
    replies = yield from ask_each(calls)
    for reply in replies:
        if isinstance(reply, ProtocolError) and "NOGROUP" in str(reply):
            continue
        if isinstance(reply, Exception):
            raise reply
    found, _, noted = replies
    yield from write_noted([queue] if noted else [], clock)
    return found if isinstance(found, Reclaimed) else Reclaimed([], [])


class ReclaimedJobs(NamedTuple):
    """A lost worker: how many jobs were reclaimed, how many of them had begun, and some of these."""

    worker: str
    jobs: int
    begun: int
    ids: list[str]


class SilentWorker(NamedTuple):
    """A worker without recent heartbeats: how many jobs it holds, the last heartbeat, and its leases' end."""

    worker: str
    jobs: int
    renewed_ms: int
    until_ms: int


class Reclaimed(NamedTuple):
    """Lost workers, and silent ones whose leases have not ended."""

    lost: list[ReclaimedJobs]
    silent: list[SilentWorker]


def _reclaimed(reply: Any) -> Reclaimed:
    _, lost, silent = reply
    rows = ((readable(name), jobs, begun, replies.texts(ids)) for name, jobs, begun, *ids in lost)
    return Reclaimed(
        [ReclaimedJobs(*row) for row in rows],
        [SilentWorker(readable(name), *numbers) for name, *numbers in silent],
    )


def forget_workers(queue: QueueKeys, group: str, silent_ms: int, now_ms: int) -> Call[int]:
    """Remove registrations and consumers of killed workers; returns the number of consumers. Idempotent."""
    return function("gmo_forget_workers", [queue.key("stream")], (now_ms, group, silent_ms), replies.integer)


def cleanup(queue: QueueKeys, now_ms: int) -> Call[bool]:
    """Remove a slice of the queue's unneeded data; returns whether there is more now. Idempotent."""
    return function("gmo_cleanup", [queue.key("stream")], (now_ms,), bool)


def reclaim_jobs(  # noqa: PLR0913  the rules of a lease
    queue: QueueKeys, consumer: str, *, lock_ms: int, max_stalled: int, now_ms: int, silent_ms: int = 0
) -> Call[Reclaimed]:
    """Reclaim the jobs of lost workers. The server notes which flows need ``advance_flow``."""
    args = (now_ms, GROUP, consumer, lock_ms, lock_ms, max_stalled, silent_ms)
    return function("gmo_reclaim", [queue.key("stream")], args, _reclaimed)
