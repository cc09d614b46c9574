"""Changes to nodes of a portable flow that users request: retry failed nodes, rerun or end single ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowEnded,
    FlowIncomplete,
    NodeNotEnded,
    NodeNotFound,
    NodeNotRepeatable,
)
from glidemq_orchestrate.flows.checked import MAX_NODES
from glidemq_orchestrate.flows.definitions import refuse_lost
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import ONLY_FAILED, RequestedChange, requests
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.portable import records, rounds
from glidemq_orchestrate.flows.portable.advance import advance
from glidemq_orchestrate.flows.portable.reading import living, record_of, unsuperseded
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.portable.tables import Node, read_nodes
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op, ask, ask_all, parts

_UNSUCCESSFUL: Final = (FlowState.FAILED, FlowState.CANCELLED)


def retry_failed(ref: FlowRef, clock: Clock, owner: Owner | None = None) -> Op[FlowState]:
    """Rerun the nodes of an ended flow that did not complete. Returns the new state. Idempotent.

    Raises:
        NodeNotRepeatable: A job was removed with its data. Nothing was changed.
    """
    record = yield from living(ref)
    if record.state in _UNSUCCESSFUL and record.end and not record.note:
        refuse_lost(ref.public_id, (yield from lost(ref)))
        yield from rounds.note(ref, record, "retry", clock, owner=owner)
    yield from advance(ref, clock)
    return (yield from living(ref)).state


def lost(ref: FlowRef) -> Op[list[str]]:
    """The jobs of the flow that were removed with their data."""
    record = yield from record_of(ref)
    if record.is_expired:
        return []
    return [node.job_id for node in (yield from read_nodes(ref)) if not node.state]


def max_changes(size: int) -> int:
    """Any number, since one note has all nodes."""
    del size
    return MAX_NODES


def change(
    ref: FlowRef, names: Sequence[str], requested: RequestedChange, clock: Clock, *, strict: bool
) -> Op[list[str]]:
    """Change nodes; see ``FlowBackend.change``."""
    while True:
        yield from advance(ref, clock)
        record = yield from living(ref)
        _check(ref, record)
        nodes = {node.name: node for node in (yield from read_nodes(ref))}
        yield from living(ref)  # otherwise the missing nodes were removed with the flow
        if unknown := [name for name in names if name not in nodes]:
            raise NodeNotFound(f"the flow has no node {unknown[0]}")
        done = yield from _done([nodes[name] for name in names], requested)
        todo = [name for name in names if name not in done and _is_to_change(nodes[name], requested, strict)]
        if not todo:
            return [name for name in names if name in done]
        what, text, again = requested.what, "", list[str]()
        # A node that already has this end does not rerun, even if it follows one that gets it.
        if what in rounds.GIVEN:
            text = requested.text
            follow = {node.name for node in rounds.followers(list(nodes.values()), todo)}
            again = [name for name in names if name in follow and nodes[name].state]
        noted = [*todo, *again]
        if (
            yield from rounds.note(ref, record, what, clock, names=noted, request=requested.token, text=text)
        ):
            yield from advance(ref, clock)
            yield from living(ref)
            return [name for name in names if name in done or name in todo]


def change_elements(  # noqa: PLR0913  see ``FlowBackend.change_elements``
    ref: FlowRef,
    array: str,
    indexes: Sequence[int],
    requested: RequestedChange,
    clock: Clock,
    *,
    strict: bool,
    has_more: bool,
) -> Op[list[int]]:
    """Refuse, since this path has no arrays."""
    del indexes, requested, clock, strict, has_more
    yield from ()  # no call
    raise NodeNotFound(f"the flow {ref.public_id} has no array {array}")


def _check(ref: FlowRef, record: Record) -> None:
    """Check that nodes can be changed now."""
    if record.number < 0:
        raise FlowIncomplete(f"flow {ref.public_id} is still being submitted")
    if record.cancel and not record.end:
        raise FlowEnded(f"flow {ref.public_id} is being stopped")


def _done(nodes: Sequence[Node], requested: RequestedChange) -> Op[set[str]]:
    """The names of the nodes that this request has changed."""
    found: set[str] = set()
    for part in parts(nodes):
        known = yield from ask_all([requests(node.queue, node.job_id) for node in part])
        found |= {node.name for node, some in zip(part, known, strict=True) if requested.token in some}
    return found


def _is_to_change(node: Node, requested: RequestedChange, strict: bool) -> bool:  # noqa: FBT001  a flag of the request
    """Whether an unchanged node must be changed; not if it already has the requested end."""
    if requested.what in rounds.GIVEN:
        if not node.end:
            return True
        if requested.what == "failed" or node.state == requested.what == "skipped":
            return False
        if node.state == requested.what == "completed" and node.result == requested.text:
            return False
    elif not node.end:
        if strict:
            raise NodeNotEnded(f"node {node.name} has not ended: it is {node.state}")
        return False
    elif requested.text == ONLY_FAILED and node.state not in ("", "failed"):
        return False
    if not node.state:
        raise NodeNotRepeatable(f"the job of node {node.name} was removed. Fix: restart the flow")
    return True


def cancel(ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
    """End every node that has not ended. Returns the state before. Idempotent.

    Raises:
        Superseded: Another generation has begun; nothing was changed.
    """
    record = yield from unsuperseded(ref)
    if not record.state.is_terminal:
        # A flow that has not begun ends as soon as its submission or a repeat of it begins it.
        number, how = max(record.number, 0), FlowState.CANCELLED
        yield from ask(records.cancel(ref.home, ref.flow_id, number, how, reason))
        yield from advance(ref, clock)
    return record.state


def extend(ref: FlowRef, nodes: Iterable[FlowNode], clock: Clock) -> Op[FlowState]:
    """Refuse: a portable flow keeps the nodes that it was submitted with.

    Raises:
        ConfigurationError: Always, before anything is changed.
    """
    del nodes, clock
    yield from living(ref)
    raise ConfigurationError(
        f"flow {ref.public_id} cannot be extended: its queues are in several slots of a cluster, or the "
        "server lacks our functions. Fix: submit the nodes as a separate flow, "
        "or keep all queues of a flow in one slot"
    )
