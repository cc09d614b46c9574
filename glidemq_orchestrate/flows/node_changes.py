"""Running nodes of a flow again, and ending them by hand, while it runs or after its end.

What is to be done is noted in the record, at most ``PER_CALL`` nodes in a call, each call all or nothing.
Whoever dies after a call leaves nodes that every supervisor of the home queue resets or ends; nodes of later
calls are changed by a repeat of the request, which passes over those that are done. On the portable path one
note has all nodes: see ``portable.rounds``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError, NodeNotEnded
from glidemq_orchestrate.flows import nodes as single
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.node_change import Change, requests
from glidemq_orchestrate.flows.ref import FlowRef
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

RERUNS: Final = ("alone", "follow")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Nodes of a flow: by name, or those that match every filter.

    Attributes:
        names: Exactly these.
        pattern: The name matches this shell pattern.
        state: The node is in this state.
        error: It has failed for a reason that matches this shell pattern.
    """

    names: Sequence[str] = ()
    pattern: str = ""
    state: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        has_filter = bool(self.pattern or self.state or self.error)
        if bool(self.names) == has_filter:
            raise ConfigurationError("name the nodes, or choose them by pattern, state or error: one of both")
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
    """Nodes as the arguments of a public method choose them.

    Raises:
        ConfigurationError: They do not choose any, or in two ways.
    """
    return Chosen(node_names(nodes, node), pattern, str(state), error)


def node_names(nodes: Iterable[str], node: str | None = None) -> tuple[str, ...]:
    """The names of nodes, each once, as public methods take them.

    Raises:
        ConfigurationError: It is one text.
    """
    if isinstance(nodes, str):
        raise ConfigurationError(f"nodes must be a list of node names, got the text {nodes!r}")
    return tuple(dict.fromkeys([*([] if node is None else [node]), *nodes]))


def change(ref: FlowRef, nodes: Chosen, wanted: Change, clock: Clock) -> Op[list[str]]:
    """Change nodes; returns the names of those that this request has changed, now or in an earlier try.

    Raises:
        NodeNotFound: The flow has no node of such a name. Nothing was changed.
        NodeNotEnded: One of the named nodes is to run again, and has not ended. Nothing was changed.
        NodeNotRepeatable: A node that would run again has added nodes, or its job was removed.
        FlowEnded: The flow is being cancelled.
        Superseded, FlowNotFound, FlowExpired, FlowIncomplete: It cannot be changed any more, or not yet.
    """
    backend = backend_of(ref)
    names = list(nodes.names) or (yield from _matching(ref, nodes, wanted))
    strict = bool(nodes.names)
    if strict and len(names) > backend.max_changes(len(wanted.text)):
        yield from _check(ref, names, wanted)
        strict = False
    return (yield from backend.change(ref, names, wanted, clock, strict=strict))


def _matching(ref: FlowRef, nodes: Chosen, wanted: Change) -> Op[list[str]]:
    """The names of the nodes that match; of those that are to run again only those that have ended."""
    every = yield from backend_of(ref).nodes(ref)
    return [
        node.name
        for node in every
        if nodes.includes(node) and (wanted.what not in RERUNS or node.state.is_terminal)
    ]


def _check(ref: FlowRef, names: Sequence[str], wanted: Change) -> Op[None]:
    """Refuse a request of several calls before the first of them."""
    found = yield from single.named(ref, names)
    unended = [node for node in found if not node.state.is_terminal] if wanted.what in RERUNS else []
    for part in parts(unended):
        asking = [requests(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in part]
        for node, known in zip(part, (yield from ask_all(asking)), strict=True):
            if wanted.token not in known:
                raise NodeNotEnded(f"node {node.name} has not ended: it is {node.state}")
