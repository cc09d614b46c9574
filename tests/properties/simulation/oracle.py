"""What may become of a flow, by its specification and the ends of its handlers alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from glidemq_orchestrate import Dependency, FlowNode
from tests.rule_oracle import counts_as, verdicts

Ends = Mapping[str, str]
# Rules that need not wait for all dependencies: any of these effects is enough, or nothing is needed.
EARLY: Final[Mapping[str, frozenset[str]]] = {
    "always": frozenset(),
    "one_success": frozenset({"completed"}),
    "one_failed": frozenset({"failed"}),
    "one_done": frozenset({"completed", "failed"}),
}


def effects(node: FlowNode, ends: Ends, policy_of: Mapping[str, str]) -> list[str]:
    """What the ends of its dependencies are to a node; those that have not ended are left out."""
    found = []
    for name in node.after:
        if (end := ends.get(str(name))) is not None:
            own = name.on_failure if isinstance(name, Dependency) else None
            found.append(counts_as(end, own or policy_of[str(name)]))
    return found


def decisions(node: FlowNode, ends: Ends, policy_of: Mapping[str, str]) -> set[str]:
    """What may be decided about a node whose dependencies have all ended: run, failed, skipped."""
    return verdicts(node.rule, effects(node, ends, policy_of)) if node.after else {"run"}


def may_begin(node: FlowNode, ends: Ends, policy_of: Mapping[str, str]) -> bool:
    """Whether a node may run when only these dependencies have ended."""
    seen = effects(node, ends, policy_of)
    if len(seen) == len(node.after):
        return not node.after or "run" in verdicts(node.rule, seen)
    early = EARLY.get(node.rule)
    return early is not None and (not early or bool(early.intersection(seen)))


def outcomes(nodes: Sequence[FlowNode], fates: Ends) -> list[dict[str, str]]:
    """Every way in which the nodes may end, if all handlers end as their fates say.

    The nodes are in topological order.
    """
    policy_of = {node.name: str(node.on_failure) for node in nodes}
    found: list[dict[str, str]] = [{}]
    for node in nodes:
        found = [
            {**ends, node.name: fates[node.name] if verdict == "run" else verdict}
            for ends in found
            for verdict in sorted(decisions(node, ends, policy_of))
        ]
    return found


def flow_state(nodes: Iterable[FlowNode], ends: Ends) -> str:
    """How a flow ends that nobody cancels."""
    failed = any(ends[node.name] == "failed" and node.on_failure != "ignore" for node in nodes)
    return "failed" if failed else "completed"
