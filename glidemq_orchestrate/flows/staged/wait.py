"""Waits for the end of a flow."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import (
    WaitTimeout,
)
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.home import expire_due
from glidemq_orchestrate.flows.staged.reading import outcome, status
from glidemq_orchestrate.flows.status import FlowOutcome, raise_if_superseded
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.confirmation import unconfirmed

REREAD_MS: Final = 5_000


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowOutcome]:
    """Wait for the end of a flow. Its event wakes it; the record is re-read, since events can be trimmed."""
    position = yield from events.tail(ref.home)
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    while True:
        current = yield from status(ref)
        raise_if_superseded(current)
        if current.state.is_terminal:
            return (yield from outcome(ref, current))
        # Enforces the flow's deadlines even if no worker or supervisor serves the home queue.
        expired, due = yield from unconfirmed(ask(expire_due(ref.home, clock.now_ms())))
        reread = clock.monotonic_ms() + (0 if expired else REREAD_MS)
        if due >= 0:
            reread = min(reread, clock.monotonic_ms() + due + 1 - clock.now_ms())
        if deadline is not None:
            reread = min(reread, deadline)
        position = yield from _until_event(ref, position, reread, clock)
        if deadline is not None and clock.monotonic_ms() >= deadline:
            raise WaitTimeout(
                f"flow {ref.public_id} is still {current.state}: "
                f"{current.completed} of {current.total} nodes completed"
            )


def _until_event(ref: FlowRef, position: str, until_ms: int, clock: Clock) -> Op[str]:
    while (left := until_ms - clock.monotonic_ms()) > 0:
        for event in (yield from events.read(ref.home, position, left)):
            position = event.id
            if event.flow_id == ref.public_id:
                return position
    return position
