"""The plan of a submission under an existing id: what it would rerun, and what it would keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.flows.checked import CheckedNode

REMOVED: Final = "its result was removed"


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """What ``submit(..., on_existing="retry_failed")`` would do with the nodes of a flow.

    Attributes:
        flow_id: The flow.
        generation: The generation in which the nodes would run: the current one if the specification is
            equal, else the next.
        keeps: The nodes that keep their results. If the specification is equal, all unchanged nodes,
            including skipped ones and those that other nodes have added.
        runs: The nodes that would run if their rules allow it, each with the reason: ``new``, ``changed:
            data, after``, ``was failed``, ``its result was removed``, ``adds nodes``, or ``follows NODE``. If
            the flow still runs, also its unended nodes: ``was waiting``.
        drops: The nodes that the specification no longer has.
    """

    flow_id: str
    generation: int
    keeps: Sequence[str]
    runs: Mapping[str, str]
    drops: Sequence[str]


@dataclass(frozen=True, slots=True)
class Done:
    """How a node has run so far: its state, and whether it added nodes to the flow."""

    state: str
    has_grown: bool = False


def reasons(
    nodes: Sequence[CheckedNode], done: Mapping[str, Done], changed: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Why nodes have to run; a node without a reason has completed with the same specification.

    Args:
        nodes: In topological order.
        done: How they have run.
        changed: How they differ from the nodes of the flow.
    """
    found: dict[str, str] = {}
    for node in nodes:
        was = done.get(node.name)
        if was is None:
            found[node.name] = "new"
        elif node.name in changed:
            found[node.name] = f"changed: {', '.join(changed[node.name])}"
        elif was.state == "removed-completed":
            found[node.name] = REMOVED
        elif was.state != "completed":
            found[node.name] = f"was {was.state.removeprefix('removed-')}"
        elif was.has_grown:  # the nodes that it added are not in the specification: it must add them again
            found[node.name] = "adds nodes"
        elif before := next((name for name in node.after if name in found), None):
            found[node.name] = f"follows {before}"
    return found


def settled(
    nodes: Sequence[CheckedNode], kept: Collection[str], before: Mapping[str, Iterable[str]]
) -> frozenset[str]:
    """The kept nodes whose dependents are the same as before and are all kept too.

    Args:
        nodes: The specification.
        kept: The nodes that keep their results.
        before: The old dependencies of each node of the flow, including removed nodes.
    """
    followed: dict[str, set[str]] = defaultdict(set)
    for name, after in before.items():
        for one in after:
            followed[one].add(name)
    names = {node.name for node in nodes} & set(kept)
    same = (node.name for node in nodes if set(node.dependents) == followed.get(node.name, set()))
    return frozenset(name for name in same if name in names and followed.get(name, set()) <= names)
