"""Reruns nodes of a flow and ends them by hand, while the flow runs or after its end.

Changes are first noted in the record, up to ``PER_CALL`` nodes per call, each call all or nothing. If the
client dies after a call, every supervisor of the home queue carries out the noted changes. A repeat of the
request changes the nodes of later calls and skips those already changed. On the portable path one note has
all nodes: see ``portable.rounds``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, NodeNotEnded
from glidemq_orchestrate.flows import nodes as single
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import Change, requests
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

RERUNS: Final = ("alone", "follow")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A selection of nodes: by name, or those that match every filter.

    Attributes:
        names: Exactly these nodes.
        pattern: A shell pattern for the name.
        state: The state of the node.
        error: A shell pattern for the reason of its failure.
    """

    names: Sequence[str] = ()
    pattern: str = ""
    state: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        has_filter = bool(self.pattern or self.state or self.error)
        if bool(self.names) == has_filter:
            raise ConfigurationError("select nodes either by name, or by pattern, state or error")
        if self.state and self.state not in tuple(JobState):
            raise ConfigurationError(f"state must be one of {', '.join(JobState)}, got {self.state!r}")

    def includes(self, node: NodeStatus) -> bool:
        """Whether a node matches every filter."""
        return (
            fnmatchcase(node.name, self.pattern or "*")
            and self.state in ("", node.state)
            and (not self.error or (node.state == "failed" and fnmatchcase(node.reason, self.error)))
        )


def chosen(
    node: str | None,
    *,
    nodes: Iterable[str] = (),
    pattern: str = "",
    state: str = "",
    error: str = "",
) -> Chosen:
    """Return the selection that the arguments of a public method make.

    Raises:
        ConfigurationError: They make none, or two.
    """
    return Chosen(node_names(nodes, node), pattern, str(state), error)


def node_names(nodes: Iterable[str], node: str | None = None) -> tuple[str, ...]:
    """The names of nodes from the arguments of a public method, without duplicates.

    Raises:
        ConfigurationError: ``nodes`` is a single string.
    """
    if isinstance(nodes, str):
        raise ConfigurationError(f"nodes must be a list of node names, got the text {nodes!r}")
    return tuple(dict.fromkeys([*([] if node is None else [node]), *nodes]))


def change(ref: FlowRef, nodes: Chosen, requested: Change, clock: Clock) -> Op[list[str]]:
    """Change nodes; returns the names of those that this request has changed, now or in an earlier try.

    Raises:
        NodeNotFound: The flow has no node with one of the names. Nothing was changed.
        NodeNotEnded: A named node to rerun has not ended. Nothing was changed.
        NodeNotRepeatable: A node that would rerun has added nodes, or its job was removed.
        FlowEnded: The flow is being cancelled.
        Superseded, FlowNotFound, FlowExpired, FlowIncomplete: The flow can no longer be changed, or not yet.
    """
    backend = backend_of(ref)
    names = list(nodes.names) or (yield from _matching(ref, nodes, requested))
    strict = bool(nodes.names)
    if strict and len(names) > backend.max_changes(len(requested.text)):
        yield from _check(ref, names, requested)
        strict = False
    return (yield from backend.change(ref, names, requested, clock, strict=strict))


def _matching(ref: FlowRef, nodes: Chosen, requested: Change) -> Op[list[str]]:
    """The names of the matching nodes; for a rerun only those that have ended."""
    every = yield from backend_of(ref).nodes(ref)
    return [
        node.name
        for node in every
        if nodes.includes(node) and (requested.what not in RERUNS or node.state.is_terminal)
    ]


def _check(ref: FlowRef, names: Sequence[str], requested: Change) -> Op[None]:
    """Check a request that needs several calls before the first one."""
    found = yield from single.named(ref, names)
    unended = [node for node in found if not node.state.is_terminal] if requested.what in RERUNS else []
    for part in parts(unended):
        asking = [requests(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in part]
        for node, known in zip(part, (yield from ask_all(asking)), strict=True):
            if requested.token not in known:
                raise NodeNotEnded(f"node {node.name} has not ended: it is {node.state}")
