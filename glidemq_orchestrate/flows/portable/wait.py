"""Waits for the end of a portable flow, and advances it in the meantime."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import WaitTimeout
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.portable.advance import advance
from glidemq_orchestrate.flows.portable.reading import outcome, status, unsuperseded
from glidemq_orchestrate.flows.status import FlowOutcome
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.confirmation import unconfirmed

POLL_MS: Final = 500
MAX_REST_MS: Final = 2_000


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowOutcome]:
    """Advance the flow until it has ended: at each event of its home queue, and every half second.

    At most a third of the time is spent on advancing, so that a large flow leaves the server to its workers.

    Raises:
        WaitTimeout: It has not ended in time.
        Superseded: Another generation has begun.
    """
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    position = yield from events.tail(ref.home)
    while True:
        began = clock.monotonic_ms()
        state = yield from unconfirmed(advance(ref, clock))
        yield from unsuperseded(ref)
        if state.is_terminal:
            break
        now = clock.monotonic_ms()
        if deadline is not None and now >= deadline:
            raise WaitTimeout(f"flow {ref.public_id} is still running")
        rested = now + min(2 * (now - began), MAX_REST_MS)
        until = max(rested, now + POLL_MS)
        if deadline is not None:
            rested, until = min(rested, deadline), min(until, deadline)
        position = yield from _rest(ref, position, rested, until, clock)
    return (yield from outcome(ref, (yield from status(ref))))


def _rest(ref: FlowRef, position: str, rested: int, until: int, clock: Clock) -> Op[str]:
    """Wait for an event, at least until ``rested`` unless the flow has ended; returns the new position."""
    while (left := until - clock.monotonic_ms()) > 0:
        found = yield from events.read(ref.home, position, left)
        position = found[-1].id if found else position
        has_ended = any(event.flow_id == ref.public_id and event.kind.startswith("flow.") for event in found)
        if has_ended or not found or clock.monotonic_ms() >= rested:
            break
        until = rested
    return position
