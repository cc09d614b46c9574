"""Keeps the flows of a queue moving, whichever workers run their nodes.

Our workers report the end of a node to its flow in the call that ends the node. Node workers do not, and no
worker does when a job is revoked, expires or is removed. A supervisor finds such ends in the sets of ended
jobs and, more slowly, among the open nodes of every running flow; events only wake it. One supervisor leads a
queue to save work, not for safety: every step may be repeated, interrupted anywhere, and run by two
supervisors at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from glidemq_orchestrate import registry
from glidemq_orchestrate.attempts import upkeep as upkeep_ops
from glidemq_orchestrate.attempts.upkeep import ReclaimedJobs
from glidemq_orchestrate.attempts.workers import FOREIGN_IDLE_MS
from glidemq_orchestrate.errors import GlideMQError, ProtocolError, ServerBusy, TransportError
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.backend import sweep_all
from glidemq_orchestrate.flows.home import unlink_queues
from glidemq_orchestrate.flows.index import running_flows
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import OURS
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_each, command, function, isolated
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

LOOK: Final = 200


Ended = Literal["completed", "failed"]
LOCK_TTL_MS: Final = 6_000
OVERLAP_MS: Final = 2_000
LOOK_BACK_MS: Final = 60_000
LAP_MS: Final = 15_000
SLICES: Final = 50
PAGES: Final = 20
FLOWS: Final = 20
SILENT_LOCKS: Final = 4
WAKING: Final = frozenset({"completed", "failed", "revoked", "expired", "removed", "stalled"})


@dataclass(frozen=True, slots=True)
class SweepPosition:
    """A position in a set of ended jobs: a score, and how many jobs of that score are done."""

    score: str = "-inf"
    passed: int = 0


def renew_lock(queue: QueueKeys, token: str, ttl_ms: int) -> Call[int]:
    """Renew the supervisor's lock; 0 if this token does not hold it. Idempotent."""
    keys = [queue.supervisor()]
    return function("glidemq_renewLock", keys, (token, ttl_ms), replies.integer, repeatable=True)


def try_lock(queue: QueueKeys, token: str, ttl_ms: int) -> Call[int]:
    """Take the supervisor's lock; 0 if it is held, also by this token."""
    return function("glidemq_tryLock", [queue.supervisor()], (token, ttl_ms), replies.integer)


def unlock(queue: QueueKeys, token: str) -> Call[int]:
    """Release the supervisor's lock; 0 if this token does not hold it. Idempotent."""
    return function("glidemq_unlock", [queue.supervisor()], (token,), replies.integer)


def leader(queue: QueueKeys) -> Call[str | None]:
    """The token of the supervisor that leads a queue; None if there is none."""
    return command("GET", queue.supervisor(), decode=lambda reply: reply)


def progress(queue: QueueKeys) -> Call[dict[str, str]]:
    """The stored progress of the queue's supervisors."""
    return command("HGETALL", queue.supervised(), decode=replies.pairs)


def note_progress(queue: QueueKeys, fields: Mapping[str, str | int]) -> Call[None]:
    """Store the progress. An older position is harmless: the jobs after it are checked again."""
    pairs = [word for pair in fields.items() for word in pair]
    return command("HSET", queue.supervised(), *pairs, decode=replies.anything)


def settle_foreign(
    queue: QueueKeys, ended: Ended, place: SweepPosition, now_ms: int
) -> Call[tuple[SweepPosition, bool, int]]:
    """Settle nodes whose jobs have ended; returns the next position, whether there is more, and how many."""

    def decode(reply: Any) -> tuple[SweepPosition, bool, int]:
        score, passed, more, settled = reply
        return SweepPosition(replies.text(score), int(passed)), more == 1, replies.integer(settled)

    args = (now_ms, place.score, place.passed, LOOK)
    return function("gmo_settle_foreign", [queue.key(ended)], args, decode)


CONSUMER: Final = f"{OURS}supervisor"


@dataclass(frozen=True, slots=True)
class Supervision:
    """The supervision of a queue by one supervisor.

    Attributes:
        queue: The home of some flows; other flows may have nodes in it.
        token: The unique identity of the supervisor.
        lock_ms: After this long without a heartbeat, the jobs of a worker are reclaimed.
        max_stalled: How often a job may stall before it fails.
        lost: The newest lost workers whose jobs it reclaimed, for the log.
        may_reclaim: Whether the user has permission to reclaim jobs.
    """

    queue: QueueKeys
    token: str
    lock_ms: int = 30_000
    max_stalled: int = 3
    lost: deque[tuple[QueueKeys, ReclaimedJobs]] = field(default_factory=lambda: deque(maxlen=100))
    may_reclaim: bool = True

    @property
    def consumer(self) -> str:
        """The consumer that reclaims the jobs of dead workers; a worker uses its own name."""
        return self.token if self.token.startswith(OURS) else CONSUMER


@dataclass(frozen=True, slots=True)
class TickResult:
    """The result of a tick.

    Attributes:
        leading: Whether this supervisor leads the queue; otherwise it did nothing.
        foreign: Whether foreign workers serve the queue, so that its events must be followed.
        due_ms: When something is due next, ms since the epoch; -1 for never.
    """

    leading: bool
    foreign: bool = False
    due_ms: int = -1


def tick(watch: Supervision, clock: Clock) -> Op[TickResult]:
    """Do the due work of the queue, unless another supervisor leads it. Idempotent.

    A refused step does not stop the other steps.
    """
    if not (yield from lead(watch)):
        return TickResult(leading=False)
    refused, due_ms = None, -1
    for step in STEPS:
        try:
            if (reached := (yield from step(watch, clock))) is not None:
                due_ms = reached
        except TransportError:
            raise
        except Exception as exc:  # noqa: BLE001  raised in the end
            refused = refused or exc
    if refused is not None:
        raise refused
    foreign = yield from has_foreign_workers(watch.queue)
    return TickResult(leading=True, foreign=foreign, due_ms=due_ms)


def lead(watch: Supervision) -> Op[bool]:
    """Take or renew the lead of the queue for some seconds."""
    queue, token = watch.queue, watch.token
    locks = [
        renew_lock(queue, token, LOCK_TTL_MS),
        try_lock(queue, token, LOCK_TTL_MS),
    ]
    replies = yield from ask_each(locks)
    for reply in replies:
        if isinstance(reply, GlideMQError):
            raise reply
    return any(replies)


def resign(watch: Supervision) -> Op[None]:
    """Release the lead, so that another supervisor can take it immediately."""
    yield from ask(unlock(watch.queue, watch.token))


def has_foreign_workers(queue: QueueKeys) -> Op[bool]:
    """Whether a foreign worker is alive or holds jobs."""
    try:
        consumers = yield from ask(registry.consumers(queue))
    except ProtocolError:
        return False  # the queue has no group: it never had a worker
    return any(
        not str(consumer["name"]).startswith(OURS)
        and (int(consumer["pending"]) > 0 or int(consumer["idle"]) < 6 * FOREIGN_IDLE_MS)
        for consumer in consumers
    )


def settle_ended(watch: Supervision, clock: Clock) -> Op[None]:
    """Report jobs that foreign workers have ended since the last call to their flows.

    Without foreign workers this is one call. ``check_open`` finds the jobs that it misses.
    """
    if not (yield from has_foreign_workers(watch.queue)):
        return
    known = yield from ask(progress(watch.queue))
    kinds: tuple[Ended, ...] = ("completed", "failed")
    for kind in kinds:
        reached = yield from _settle(watch.queue, kind, known, clock)
        yield from _note(watch.queue, {kind: reached})


def _settle(queue: QueueKeys, kind: Ended, known: Mapping[str, str], clock: Clock) -> Op[int]:
    """Settle the jobs of one set of ended jobs, from the stored position on; returns the new position."""
    now_ms = clock.now_ms()
    # Clocks differ and calls overtake each other: a job may appear after jobs that ended later.
    start = max(number(known.get(kind)) - OVERLAP_MS, now_ms - LOOK_BACK_MS)
    place = SweepPosition(str(start))
    for _ in range(SLICES):
        place, more, _ = yield from ask(settle_foreign(queue, kind, place, clock.now_ms()))
        if not more:
            break
    return min(number(place.score), now_ms)


def upkeep(watch: Supervision, clock: Clock) -> Op[int]:
    """Do the due work, sweep, and continue unsettled flows. Returns when something is due next, or -1."""
    return (yield from upkeep_ops.upkeep([watch.queue], clock))


def reclaim(watch: Supervision, clock: Clock) -> Op[None]:
    """Reclaim the jobs of dead workers."""
    if not watch.may_reclaim:
        return
    found = yield from upkeep_ops.reclaim(
        watch.queue, watch.consumer, lock_ms=watch.lock_ms, max_stalled=watch.max_stalled, clock=clock
    )
    watch.lost.extend((watch.queue, one) for one in found.lost)


def check_open(watch: Supervision, clock: Clock) -> Op[None]:
    """Continue the walk over the open nodes of every running flow. A lap takes at least 15 s."""
    home = watch.queue
    known = yield from ask(progress(home))
    lap, (offset, _, place) = number(known.get("lap")), known.get("walk", "").partition(" ")
    first, position, now_ms = max(number(offset), 0), max(number(place), 0), clock.now_ms()
    if (first, position) == (0, 0):
        if now_ms - lap < LAP_MS:
            return
        lap = now_ms
        yield from isolated(unlink_queues(home), f"the set {home.beside()}")
    first, position = yield from _walk(watch, first, position, clock)
    yield from _note(home, {"lap": lap, "walk": f"{first} {position}"})


def _note(queue: QueueKeys, fields: Mapping[str, str | int]) -> Op[None]:
    """Store the progress; continue even if the server is out of memory."""
    with suppress(ServerBusy):
        yield from ask(note_progress(queue, fields))


def _walk(watch: Supervision, first: int, position: int, clock: Clock) -> Op[tuple[int, int]]:
    """Check some pages; returns where to continue: the number of the flow and the position in it."""
    home, pages = watch.queue, 0
    while flow_ids := (yield from ask(running_flows(home, first, FLOWS))):
        for flow_id in flow_ids:
            while True:
                if pages == PAGES:
                    return first, position
                pages += 1
                checking = _check_page(watch, flow_id, position, clock)
                position = (yield from isolated(checking, f"flow {flow_id} of queue {home.queue}")) or 0
                if not position:
                    break
            first += 1
    return 0, 0


def _check_page(watch: Supervision, flow_id: str, position: int, clock: Clock) -> Op[int]:
    """Check a page of a flow; returns where to continue in it, 0 at its end."""
    home, silent_ms = watch.queue, SILENT_LOCKS * watch.lock_ms
    position, suspects = yield from ask(
        backend.check_open(home, flow_id, position, silent_ms, clock.now_ms())
    )
    yield from backend.bring_back(home, flow_id, suspects, clock)
    return position


def sweep(watch: Supervision, clock: Clock) -> Op[None]:
    """Do for the flows of this home what server functions cannot, such as reporting ends across slots."""
    yield from sweep_all(watch.queue, clock)


Chore = Callable[[Supervision, Clock], Op[int | None]]

STEPS: Final[tuple[Chore, ...]] = (settle_ended, check_open, upkeep, reclaim, sweep)
