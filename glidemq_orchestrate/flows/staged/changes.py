"""Changes a flow within one slot: cancels it, adds owners, reruns nodes, ends them manually."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate.errors import NodeNotRepeatable
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import RequestedChange, Row, read_rows
from glidemq_orchestrate.flows.owner import Owner, own_flow, owner_names
from glidemq_orchestrate.flows.staged.reading import status
from glidemq_orchestrate.flows.staged.submit import advance
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command, function, parts
from glidemq_orchestrate.wire.keys import QueueKeys

PER_CALL: Final = 50
BYTES_PER_CALL: Final = 1_048_576
_BUSY: Final = "busy"


def cancel_flow(queue: QueueKeys, flow_id: str, reason: str, now_ms: int) -> Call[FlowState]:
    """Mark a running flow as being cancelled; ``advance_flow`` does the work. Idempotent."""
    args = (now_ms, flow_id, reason)
    return function("gmo_cancel_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def cancel(ref: FlowRef, reason: str, clock: Clock) -> Op[FlowState]:
    """End every node that has not ended. Returns the state before."""
    before = yield from ask(cancel_flow(ref.home, ref.flow_id, reason, clock.now_ms()))
    if not before.is_terminal:
        yield from advance(ref, clock)
    return before


def own(ref: FlowRef, owner: Owner, clock: Clock) -> Op[FlowState]:
    """Add an owner to a flow, or renew its lease. An ended flow is unchanged. Idempotent."""
    return (yield from ask(own_flow(ref.home, ref.flow_id, owner, clock.now_ms())))


def owners(ref: FlowRef) -> Op[list[str]]:
    """The names of the owners of a flow that has not ended, sorted."""
    state = yield from status(ref)
    return [] if state.state.is_terminal else (yield from ask(owner_names(ref.home, ref.flow_id)))


def change_nodes(  # noqa: PLR0913  as many arguments as the server function
    home: QueueKeys, flow_id: str, change: RequestedChange, names: Sequence[str], now_ms: int, *, strict: bool
) -> Call[list[str] | None]:
    """Note a change of these nodes; returns the names of those that change, None while the flow is busy."""
    pairs = [word for name in names for word in (name, change.text)]
    args = (now_ms, flow_id, change.what, change.token, int(strict), *pairs)
    return function("gmo_change_nodes", [home.flow(flow_id)], args, _changed, repeatable=True)


def has_grown(home: QueueKeys, flow_id: str) -> Call[bool]:
    """Whether nodes of the flow have added nodes to it."""
    return command("HEXISTS", home.flow(flow_id), "grown", decode=bool)


def grows(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether a node has completed and added nodes."""
    return job_hash.get_some(
        queue, job_id, ("state", "gmo:grows"), lambda reply: reply[0] == "completed" and reply[1] is not None
    )


def max_changes(size: int) -> int:
    """The max number of nodes per call, each with a text of this length."""
    return min(PER_CALL, max(BYTES_PER_CALL // (size + 1), 1))


def change(
    ref: FlowRef, names: Sequence[str], requested: RequestedChange, clock: Clock, *, strict: bool
) -> Op[list[str]]:
    """Change nodes in calls of the max size; see ``FlowBackend.change``."""
    if (yield from ask(has_grown(ref.home, ref.flow_id))):
        yield from _refuse_growers(ref, names, follow=requested.what != "alone")
    changed: list[str] = []
    for part in parts(names, max_changes(len(requested.text))):
        changed += yield from _change_some(ref, part, requested, clock, strict=strict)
    yield from advance(ref, clock)
    return changed


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
    """Change elements of an array in one call; see ``FlowBackend.change_elements``."""
    if (yield from ask(has_grown(ref.home, ref.flow_id))):
        yield from _refuse_growers(ref, [array], follow=requested.what != "alone")
    what, token, mode = requested.what, requested.token, "more" if has_more else int(strict)
    while True:
        call = function(
            "gmo_change_elements",
            [ref.home.flow(ref.flow_id)],
            (clock.now_ms(), ref.flow_id, what, token, mode, array, requested.text, *indexes),
            _changed,
            repeatable=True,
        )
        changed = yield from ask(call)
        yield from advance(ref, clock)
        if changed is not None:
            return list(map(int, changed))


def _changed(reply: Any) -> list[str] | None:
    """What a call has changed; None while the flow is busy."""
    state, *changed = (replies.text(part) for part in reply)
    return None if state == _BUSY else changed


def _change_some(
    ref: FlowRef, names: Sequence[str], requested: RequestedChange, clock: Clock, *, strict: bool
) -> Op[list[str]]:
    while True:
        call = change_nodes(ref.home, ref.flow_id, requested, names, clock.now_ms(), strict=strict)
        changed = yield from ask(call)
        if changed is not None:
            return changed
        yield from advance(ref, clock)


def _refuse_growers(ref: FlowRef, names: Sequence[str], *, follow: bool) -> Op[None]:
    """Refuse if a node to rerun has added nodes, since those would stay."""
    rows = yield from read_rows(ref)
    affected = _with_followers(rows, names) if follow else set(names)
    for part in parts([name for name in rows if name in affected]):
        asking = [grows(QueueKeys(ref.home.prefix, rows[name][1]), rows[name][2]) for name in part]
        for name, has_added in zip(part, (yield from ask_all(asking)), strict=True):
            if has_added:
                raise NodeNotRepeatable(
                    f"node {name} has added nodes and would rerun. Fix: restart the flow from the nodes to "
                    "rerun"
                )


def _with_followers(rows: Mapping[str, Row], names: Iterable[str]) -> set[str]:
    dependents: dict[str, list[str]] = {}
    for name, row in rows.items():
        for dependency in row[4:]:
            dependents.setdefault(dependency, []).append(name)
    found, left = set(names), list(names)
    while left:
        for name in dependents.get(left.pop(), ()):
            if name not in found:
                found.add(name)
                left.append(name)
    return found
