"""Flows by the path that the server allows: staged in one place, or portable. Same names as ``_ops.flow``."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate._ops import flow as staged
from glidemq_orchestrate._ops import flow_portable as portable
from glidemq_orchestrate._ops.flow import FlowRef, OnExisting, raise_unless_completed
from glidemq_orchestrate._ops.flow_portable import PortableRef
from glidemq_orchestrate._protocol.call import Op
from glidemq_orchestrate.checked_flow import CheckedFlow
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import GlideMQError, LibraryMissing
from glidemq_orchestrate.flow import FlowOutcome, FlowState, FlowStatus, NodeStatus

__all__ = [
    "cancel",
    "find",
    "nodes",
    "outcome",
    "raise_unless_completed",
    "restart",
    "results",
    "retry_failed",
    "status",
    "submit",
    "wait",
]


def submit(
    prefix: str, flow: CheckedFlow, flow_id: str, on_existing: OnExisting, clock: Clock
) -> Op[FlowRef]:
    """Write a flow and let it run: staged where its keys share a slot and our functions are there."""
    try:
        return (yield from staged.submit(prefix, flow, flow_id, on_existing, clock))
    except GlideMQError as exc:
        if not isinstance(exc, LibraryMissing) and not _is_about_slots(exc):
            raise
    ref = yield from portable.submit(prefix, flow, flow_id, clock)
    if on_existing == "retry_failed":
        yield from portable.retry_failed(ref, clock)
    elif on_existing == "restart":
        yield from portable.restart(ref, clock)
    return ref


def _is_about_slots(exc: GlideMQError) -> bool:
    return exc.code == "CROSSSLOT" or "same slot" in str(exc)  # redis-py strips the code


def find(prefix: str, flow_id: str) -> Op[FlowRef]:
    """Find a flow by its id."""
    ref = yield from staged.find(prefix, flow_id)
    if (yield from portable.is_portable(ref)):
        return PortableRef(ref.home, ref.flow_id)
    return ref


def status(ref: FlowRef) -> Op[FlowStatus]:
    """Read the record."""
    if isinstance(ref, PortableRef):
        return (yield from portable.status(ref))
    return (yield from staged.status(ref))


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Read every node, dependencies before dependents."""
    if isinstance(ref, PortableRef):
        return (yield from portable.nodes(ref))
    return (yield from staged.nodes(ref))


def results(ref: FlowRef) -> Op[dict[str, Any]]:
    """Read the result of every completed node by name."""
    if isinstance(ref, PortableRef):
        return (yield from portable.results(ref))
    return (yield from staged.results(ref))


def outcome(ref: FlowRef, ended: FlowStatus) -> Op[FlowOutcome]:
    """Read results and failures of a flow that has ended."""
    if isinstance(ref, PortableRef):
        return (yield from portable.outcome(ref, ended))
    return (yield from staged.outcome(ref, ended))


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowOutcome]:
    """Wait for the end of a flow. Whoever waits for a portable flow also moves it on."""
    if isinstance(ref, PortableRef):
        return (yield from portable.wait(ref, timeout_ms, clock))
    return (yield from staged.wait(ref, timeout_ms, clock))


def cancel(ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
    """End every node that has not ended. Answers the state before."""
    if isinstance(ref, PortableRef):
        return (yield from portable.cancel(ref, reason, clock))
    return (yield from staged.cancel(ref, reason, clock))


def restart(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Run every node of an ended flow again. Answers the state afterwards."""
    if isinstance(ref, PortableRef):
        return (yield from portable.restart(ref, clock))
    return (yield from staged.restart(ref, clock))


def retry_failed(ref: FlowRef, clock: Clock) -> Op[FlowState]:
    """Run again what did not complete. Answers the state afterwards."""
    if isinstance(ref, PortableRef):
        return (yield from portable.retry_failed(ref, clock))
    return (yield from staged.retry_failed(ref, clock))
