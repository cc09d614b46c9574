"""Advances a flow slice by slice."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.staged import calls as staged_calls
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

SLICE: Final = 50


MAX_SLICES: Final = 20


def advance(ref: FlowRef, clock: Clock) -> Op[None]:
    """Do all open work of the flow in slices, with several slices per trip if much is left."""
    left = 1
    while left:
        slices = min(max(left // SLICE, 1), MAX_SLICES)
        call = staged_calls.advance_flow(ref.home, ref.flow_id, clock.now_ms())
        left = (yield from ask_all([call] * slices))[-1] if slices > 1 else (yield from ask(call))


def sweep(home: QueueKeys, clock: Clock) -> Op[None]:
    """Do nothing: a server function sweeps every home, see ``index.sweep``."""
    del home, clock
    yield from ()  # no call
