"""Nodes added to a flow after its submission, checked as far as possible without a server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from glidemq_orchestrate.errors import DuplicateNode, FlowTooLarge, InvalidFlow, UnknownDependency
from glidemq_orchestrate.flows.checked import MAX_NODES, CheckedNode, check_flow
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec, FlowStatus

MAX_BEFORE: Final = 100
_RANK_STEP: Final = 1e-6


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node that the flow already has. ``rank`` is its place in the order of the flow."""

    name: str
    rank: float
    queue: str
    job_id: str
    after: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True)
class CheckedGrowth:
    """Nodes that can be added: names unique, no cycle among them, payloads encoded, in topological order.

    Attributes:
        nodes: Their ``after`` and ``dependents`` may name nodes of the flow too.
        outside: The nodes of the flow that they wait for.
        before: The nodes of the flow that wait for them too.
        digest: A fingerprint of all this.
    """

    nodes: tuple[CheckedNode, ...]
    outside: frozenset[str]
    before: tuple[str, ...]
    digest: str

    def placed(self, known: Mapping[str, KnownNode], last: float) -> CheckedGrowth:
        """The same with ranks after those of the nodes they wait for; after ``last`` if there are none."""
        base = max((known[name].rank for name in self.outside), default=last)
        nodes = (replace(node, rank=base + at * _RANK_STEP) for at, node in enumerate(self.nodes, start=1))
        return replace(self, nodes=tuple(nodes))

    def queue_of(self, known: Mapping[str, KnownNode]) -> dict[str, str]:
        """The queue of every node that these nodes and their relations name."""
        outside = {name: known[name].queue for name in (*self.outside, *self.before)}
        return outside | {node.name: node.queue for node in self.nodes}


def check_growth(
    nodes: Iterable[FlowNode], *, before: Sequence[str] = (), grower: str | None = None
) -> CheckedGrowth:
    """Check nodes that are to be added to a flow.

    Args:
        nodes: In any order. Those that wait for nothing wait for ``grower``.
        before: Nodes of the flow that shall wait for the added nodes that no other added node waits for.
        grower: The node that adds them; None when they are added from outside.

    Raises:
        InvalidFlow, CycleError, DuplicateNode, FlowTooLarge, ConfigurationError, EncodeError,
        PayloadTooLarge: As ``check_flow``.
    """
    added = list(nodes)
    names = {node.name for node in added}
    if isinstance(before, str) or len(before) > MAX_BEFORE:
        raise InvalidFlow(f"before must be a list of at most {MAX_BEFORE} node names")
    if known := sorted(names.intersection((*before, grower))):
        raise DuplicateNode(known)
    flow = check_flow(FlowSpec("what is added", added), is_part=True)
    roots = (grower,) if grower is not None else ()
    checked = tuple(
        replace(node, after=node.after or roots, dependents=node.dependents or tuple(before))
        for node in flow.nodes
    )
    outside = frozenset(name for node in checked for name in node.after if name not in names)
    content = json.dumps([flow.digest, list(before)])
    return CheckedGrowth(checked, outside, tuple(before), hashlib.sha256(content.encode()).hexdigest()[:32])


def check_place(
    growth: CheckedGrowth, known: Mapping[str, KnownNode], status: FlowStatus, grower: str | None
) -> None:
    """Check that the flow has the nodes that the added ones name, and room for them.

    Raises:
        UnknownDependency: A node waits for one that the flow does not have.
        FlowTooLarge: The flow would have too many nodes.
        InvalidFlow: ``before`` names a node that does not wait for the node that adds these; or, with
            ``before``, one of them waits for a node that has not completed, which could close a cycle.
    """
    missing = {
        node.name: [n for n in node.after if n in growth.outside - set(known)] for node in growth.nodes
    }
    if any(missing.values()):
        raise UnknownDependency({name: names for name, names in missing.items() if names})
    if status.total + len(growth.nodes) > MAX_NODES:
        raise FlowTooLarge(
            f"flow {status.id} has {status.total:,} nodes and would get {len(growth.nodes):,} more; "
            f"the limit is {MAX_NODES:,}"
        )
    for name in growth.before:
        if name not in known or grower not in known[name].after:
            raise InvalidFlow(f"before names {name}, which does not wait for {grower}")
    if growth.before:
        unfinished = sorted(n for n in growth.outside if n != grower and known[n].state != "completed")
        if unfinished:
            raise InvalidFlow(
                "nodes added before others may wait for completed nodes only, "
                f"not for {', '.join(unfinished)}"
            )
