"""What a submission under an existing id would run again, and what it would keep."""

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
        generation: The generation in which the nodes would run: the current one where the specification is
            equal, else the next.
        keeps: The nodes that keep their results. Where the specification is equal, all that stay as they
            are: also those that stay skipped, and those that others have added.
        runs: The nodes that would run, as far as their rules let them, each with the reason: ``new``,
            ``changed: data, after``, ``was failed``, ``its result was removed``, ``adds nodes``, or
            ``follows NODE``. Also those of a
            flow that still runs which have not ended: ``was waiting``.
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
    """Why nodes have to run; those without a reason have completed as they are now specified.

    Args:
        nodes: In topological order.
        done: What the flow has of them.
        changed: In what they differ from what the flow has.
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
        elif was.has_grown:  # what it added is not in the specification: it adds it again
            found[node.name] = "adds nodes"
        elif before := next((name for name in node.after if name in found), None):
            found[node.name] = f"follows {before}"
    return found


def settled(
    nodes: Sequence[CheckedNode], kept: Collection[str], before: Mapping[str, Iterable[str]]
) -> frozenset[str]:
    """The nodes that are kept with the same dependents as before, all of which are kept too.

    Args:
        nodes: The specification.
        kept: The nodes that keep their results.
        before: What each node of the flow followed before, also nodes that are gone now.
    """
    followed: dict[str, set[str]] = defaultdict(set)
    for name, after in before.items():
        for one in after:
            followed[one].add(name)
    names = {node.name for node in nodes} & set(kept)
    same = (node.name for node in nodes if set(node.dependents) == followed.get(node.name, set()))
    return frozenset(name for name in same if name in names and followed.get(name, set()) <= names)
