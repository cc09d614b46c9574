"""Supervises queues without a supervisor, from any process that takes part in their flows.

A worker serves its own queue; a client waits for a flow. The flow may have its home, or nodes, in queues that
only Node workers serve. These never report the end of a job to its flow. So workers, clients and triggers
check the locks of these queues every few seconds, and lead each queue without a leader. The lock ensures one
leader per queue; all other processes only read the locks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from glidemq_orchestrate import events
from glidemq_orchestrate.attempts import supervision
from glidemq_orchestrate.attempts.supervision import WAKING, Supervision
from glidemq_orchestrate.errors import ConfigurationError, ServerBusy, TransportError, WaitTimeout
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.home import home_queues, queues_around
from glidemq_orchestrate.flows.index import running_flows
from glidemq_orchestrate.flows.status import FlowOutcome
from glidemq_orchestrate.flows.watch import Change, Watch, next_changes
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs.options import DEFAULT_LEASE
from glidemq_orchestrate.wire.call import Op, ask, ask_each, isolated, report
from glidemq_orchestrate.wire.confirmation import unconfirmed
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.replies import is_moving

CHECK_MS: Final = 5_000
GRACE_MS: Final = 500
TICK_MS: Final = 2_000
POLL_MS: Final = 250
MIN_MS: Final = 20
REFUSED_MS: Final = 60_000
MAX_ONCE_MS: Final = 2_000
MAX_LED: Final = 32


@dataclass(slots=True)
class Led:
    """A queue that this process leads.

    Attributes:
        watch: How it is supervised.
        due_ms: Monotonic ms; when its next tick is due.
        position: The last event read, if the queue has Node workers; else None.
    """

    watch: Supervision
    due_ms: int = 0
    position: str | None = None


@dataclass(slots=True)
class Area:
    """A queue and the queues around it, as one process supervises them.

    Attributes:
        own: How its own queue is supervised.
        clock: The clock.
        every_ms: The time between two checks for queues without a leader.
        tick_ms: The max time between two ticks of a led queue.
        elsewhere: Queues that this process also supervises.
        min_ms: The min duration of a part of a wait. Waiting for a portable flow also advances it.
        led: The queues that are led.
        refused: The monotonic ms until which a queue is skipped, since the server refused a call there.
        check_ms: The monotonic ms of the next search for queues.
        unsupervised: The queues without a leader that this process has no permission to lead.
    """

    own: Supervision
    clock: Clock
    every_ms: int = CHECK_MS
    tick_ms: int = TICK_MS
    elsewhere: AbstractSet[QueueKeys] = frozenset()
    min_ms: int = MIN_MS
    led: dict[QueueKeys, Led] = field(default_factory=dict)
    refused: dict[QueueKeys, int] = field(default_factory=dict)
    check_ms: int = 0
    unsupervised: tuple[str, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether this process leads its own queue."""
        return self.own.queue in self.led

    @property
    def rest_ms(self) -> int:
        """Milliseconds until something is due."""
        now_ms = self.clock.monotonic_ms()
        due = min([self.check_ms, *(led.due_ms for led in self.led.values())])
        if any(led.position is not None for led in self.led.values()):
            due = min(due, now_ms + POLL_MS)
        return max(due - now_ms, 0)


def for_flow(ref: FlowRef, clock: Clock) -> Area:
    """The area of a client that waits for a flow; its supervision starts a moment after the wait."""
    area = for_home(ref.home, clock)
    area.check_ms = clock.monotonic_ms() + GRACE_MS
    area.min_ms = CHECK_MS if backend_of(ref).is_carried else MIN_MS
    return area


def for_home(home: QueueKeys, clock: Clock) -> Area:
    """The area of a client of the flows of a home."""
    token = f"client-{secrets.token_hex(8)}"
    return Area(Supervision(home, token, milliseconds(DEFAULT_LEASE)), clock)


def supervise(area: Area) -> Op[None]:
    """Do the due work. Idempotent. Only a refusal in its own queue is an error.

    Raises:
        TransportError: The server cannot be reached; the locks expire on their own.
    """
    clock = area.clock
    if clock.monotonic_ms() >= area.check_ms:
        area.check_ms = clock.monotonic_ms() + area.every_ms
        yield from _find_queues(area)
    for led in list(area.led.values()):
        if clock.monotonic_ms() >= led.due_ms:
            yield from _isolated_work(area, led.watch.queue, _tick(area, led))
        elif led.position is not None:
            yield from _isolated_work(area, led.watch.queue, _settle(area, led))


def _find_queues(area: Area) -> Op[None]:
    """Find the queues to supervise, and lead those without a leader."""
    own, now_ms = area.own.queue, area.clock.monotonic_ms()
    around = (yield from isolated(queues_around(own), f"the set {own.beside()}")) or []
    queues = [own, *(queue for queue in around if queue not in area.elsewhere)]
    for queue_left in area.led.keys() - set(queues):
        yield from _leave(area, queue_left)
    others = [queue for queue in queues if queue not in area.led]
    leaders = yield from ask_each([supervision.leader(queue) for queue in others])
    missing: list[str] = []
    for queue, leader in zip(others, leaders, strict=True):
        if leader is not None:
            continue
        if now_ms < area.refused.get(queue, now_ms):
            missing.append(queue.queue)
        elif len(area.led) < MAX_LED:
            watch = area.own if queue == own else _supervision_of(area.own, queue)
            yield from _isolated_work(area, queue, _tick(area, Led(watch)))
    area.unsupervised = tuple(missing)


def _supervision_of(own: Supervision, queue: QueueKeys) -> Supervision:
    """The supervision of a queue of other workers, whose leases may be longer than ours."""
    lock_ms = max(own.lock_ms, milliseconds(DEFAULT_LEASE))
    return Supervision(queue, f"beside-{own.token}", lock_ms, lost=own.lost)


def _tick(area: Area, led: Led) -> Op[None]:
    """Lead a queue, unless another process does."""
    queue, clock = led.watch.queue, area.clock
    area.led[queue] = led  # before the lock is taken, so that a cancellation in between releases it
    # Read before the tick: an end after the tick has a later event.
    position = led.position or (yield from events.tail(queue))
    try:
        tick = yield from supervision.tick(led.watch, clock)
    except ConfigurationError as exc:
        if not led.watch.may_reclaim or exc.code != "NOPERM" or not (yield from supervision.lead(led.watch)):
            raise
        led.watch = replace(led.watch, may_reclaim=False)  # producers have no permission; the other steps run
        tick = yield from supervision.tick(led.watch, clock)
    if not tick.leading:
        area.led.pop(queue, None)
        return
    due_ms = area.tick_ms if tick.due_ms < 0 else min(tick.due_ms - clock.now_ms(), area.tick_ms)
    led.due_ms = clock.monotonic_ms() + max(due_ms, min(POLL_MS, area.tick_ms))
    led.position = position if tick.foreign else None


def _settle(area: Area, led: Led) -> Op[None]:
    """Settle the jobs that Node workers have ended; a single call if there is no event."""
    found = yield from events.read(led.watch.queue, led.position or "$", None)
    if found:
        led.position = found[-1].id
    if any(event.kind in WAKING for event in found):
        yield from supervision.settle_ended(led.watch, area.clock)
        yield from supervision.upkeep(led.watch, area.clock)


def _isolated_work(area: Area, queue: QueueKeys, op: Op[None]) -> Op[None]:
    """Work on a queue; after a refusal skip it for a while. A refusal in the own queue is raised."""
    try:
        yield from op
    except TransportError:
        raise
    except Exception as exc:
        area.led.pop(queue, None)
        if queue == area.own.queue:
            raise
        area.refused[queue] = area.clock.monotonic_ms() + REFUSED_MS
        report(f"supervision of queue {queue.queue}", exc)


def _leave(area: Area, queue: QueueKeys) -> Op[None]:
    yield from supervision.resign(area.led.pop(queue).watch)


def resign(area: Area) -> Op[None]:
    """Release all leads immediately; ``supervise`` takes the free ones again."""
    for queue in list(area.led):
        yield from _leave(area, queue)
    area.check_ms = 0


def help_along(area: Area) -> Op[None]:
    """``supervise`` for a client: its own calls raise the errors of the server."""
    queue = area.own.queue
    try:
        yield from unconfirmed(supervise(area))
    except TransportError as exc:
        is_lasting = isinstance(exc, ServerBusy) and not is_moving(exc)  # a replica, for example
        pause = REFUSED_MS if is_lasting else area.every_ms
        area.check_ms = area.clock.monotonic_ms() + pause
        area.led.clear()
    except Exception as exc:  # noqa: BLE001  work for other queues must not fail the wait
        if getattr(exc, "code", None) != "NOPERM":
            report(f"supervision of queue {queue.queue}", exc)
        area.refused[queue] = area.clock.monotonic_ms() + REFUSED_MS
        area.unsupervised = (queue.queue,)


def wait(
    area: Area,
    waiting: Callable[[int | None], Op[FlowOutcome]],
    timeout_ms: int | None,
    deadline: int | None,
) -> Op[FlowOutcome]:
    """Wait for a flow in parts, and supervise its queues in between.

    ``deadline``: when ``timeout_ms`` ends, in monotonic ms.

    Raises:
        WaitTimeout: The flow has not ended in time.
    """
    clock = area.clock
    while True:
        part = max(area.rest_ms, area.min_ms)
        if deadline is not None:
            part = min(part, max(deadline - clock.monotonic_ms(), 0))
        try:
            return (yield from waiting(part))
        except WaitTimeout as exc:
            if deadline is not None and clock.monotonic_ms() >= deadline:
                why = unsupervised_text(area.unsupervised)
                raise WaitTimeout(f"{exc} after {timeout_ms} ms{why}") from exc.__cause__
        yield from help_along(area)


def step(area: Area, watch: Watch) -> Op[list[Change]]:
    """Run ``watch.step``, then do the due work for the flow."""
    longest = watch.rest_ms
    watch.rest_ms = min(longest, max(area.rest_ms, area.min_ms))
    try:
        changes = yield from next_changes(watch)
    except WaitTimeout as exc:
        raise WaitTimeout(f"{exc}{unsupervised_text(area.unsupervised)}") from exc.__cause__
    finally:
        watch.rest_ms = longest
    if not watch.is_over and not area.rest_ms:
        yield from help_along(area)
    return changes


def is_supervised(ref: FlowRef) -> Op[bool]:
    """Whether the home of a flow has a leader."""
    return (yield from ask(supervision.leader(ref.home))) is not None


def unsupervised_text(queues: tuple[str, ...]) -> str:
    """The warning about queues without a supervisor, and the fix; begins with a full stop."""
    if not queues:
        return ""
    options = " ".join(f"--queue {queue}" for queue in queues)
    return (
        f". No supervisor for {', '.join(queues)}: jobs that Node workers end there reach no flow. "
        f"Fix: run a Python worker for a queue of the flow, or glidemq supervise {options}"
    )


def once(area: Area) -> Op[list[str]]:
    """Supervise the queues briefly while Node workers end jobs there, and resign.

    Returns the queues without a leader that this client has no permission to lead.
    """
    until = area.clock.monotonic_ms() + MAX_ONCE_MS
    area.check_ms = 0
    while True:
        yield from help_along(area)
        foreign = [led for led in area.led.values() if led.position is not None]
        if not foreign or area.clock.monotonic_ms() >= until:
            break
        yield from events.read(foreign[0].watch.queue, foreign[0].position or "$", POLL_MS)
    with suppress(TransportError):  # the locks expire on their own
        yield from resign(area)
    return sorted(queue.queue for queue in area.refused)


def unsupervised_homes(prefix: str) -> Op[list[str]]:
    """The homes of running flows that have no supervisor."""
    homes = [QueueKeys(prefix, name) for name in sorted((yield from ask(home_queues(prefix))))]
    running = yield from ask_each([running_flows(home, 0, 1) for home in homes])
    # An error (a queue without permissions) is not a list with a flow.
    busy = [home for home, flows in zip(homes, running, strict=True) if isinstance(flows, list) and flows]
    leaders = yield from ask_each([supervision.leader(home) for home in busy])
    return [home.queue for home, leader in zip(busy, leaders, strict=True) if leader is None]
