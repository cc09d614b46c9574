"""What becomes of a node by the ends of its dependencies, written down apart from the code that decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final, Protocol

from glidemq_orchestrate import Dependency

ENDS = ("completed", "failed", "skipped")
EARLY: Final[Mapping[str, frozenset[str]]] = {
    "always": frozenset(),
    "one_success": frozenset({"completed"}),
    "one_failed": frozenset({"failed"}),
    "one_done": frozenset({"completed", "failed"}),
}
"""Rules that need not wait for all dependencies: any of these ends is enough, or nothing is needed."""
MAX: Final = 4_096
"""Combinations of ends that are looked at; beyond, anything may be decided."""


class Node(Protocol):
    """A node, as far as rules and policies go; a dependency may be a ``Dependency`` with its own policy."""

    @property
    def after(self) -> Sequence[str]: ...
    @property
    def rule(self) -> str: ...
    @property
    def on_failure(self) -> str: ...


Nodes = Mapping[str, Node]


def counts_as(end: str, policy: str | None) -> str:
    """What the end of a dependency is to a node with this policy for it."""
    if policy == "ignore" and end == "failed":
        return "completed"
    if policy == "skip" and end == "failed":
        return "skipped"
    return "completed" if policy == "all_done" else end


def verdicts(rule: str, ends: Iterable[str]) -> set[str]:
    """What may be decided when all dependencies have ended: one thing, or two where the order decides."""
    found = Counter(ends)
    done, failed, skipped = (found[end] for end in ENDS)
    if rule == "all_success" and failed and skipped:
        return {"failed", "skipped"}
    return {_VERDICT[rule](done, failed, skipped)}


_VERDICT: dict[str, Callable[[int, int, int], str]] = {
    "all_success": lambda _, f, k: "failed" if f else "skipped" if k else "run",
    "all_failed": lambda c, _, k: "skipped" if c + k else "run",
    "all_skipped": lambda c, f, _: "skipped" if c + f else "run",
    "all_done": lambda *_: "run",
    "all_done_min_one_success": lambda c, _, k: "skipped" if k else "run" if c else "failed",
    "one_success": lambda c, f, _: "run" if c else "failed" if f else "skipped",
    "one_failed": lambda _, f, __: "run" if f else "skipped",
    "one_done": lambda c, f, _: "run" if c + f else "skipped",
    "none_failed": lambda _, f, __: "failed" if f else "run",
    "none_failed_min_one_success": lambda c, f, _: "failed" if f else "run" if c else "skipped",
    "none_skipped": lambda _, __, k: "skipped" if k else "run",
    "always": lambda *_: "run",
}


def decisions(node: Node, ends: Mapping[str, Collection[str]], known: Nodes) -> set[str]:
    """What may be decided about a node whose dependencies have all ended: run, failed, skipped.

    Args:
        node: The node.
        ends: By name, the ends that each dependency may have.
        known: The nodes of the flow.
    """
    if not node.after or node.rule == "always":
        return {"run"}
    policies = _policies(node, known)
    choices = [{counts_as(end, policy) for end in ends.get(name, ())} for name, policy in policies]
    if prod(map(len, choices)) > MAX:
        return {"run", "failed", "skipped"}
    return set().union(*(verdicts(node.rule, combination) for combination in product(*choices)))


def may_begin(node: Node, ends: Mapping[str, str], known: Nodes) -> bool:
    """Whether a node may run when only these nodes have ended."""
    seen = [counts_as(ends[name], policy) for name, policy in _policies(node, known) if name in ends]
    if len(seen) == len(node.after):
        return not seen or "run" in verdicts(node.rule, seen)
    early = EARLY.get(node.rule)
    return early is not None and (not early or bool(early.intersection(seen)))


def has_failed(nodes: Nodes, ends: Mapping[str, str]) -> bool:
    """Whether a flow whose nodes end like this has failed; nobody has cancelled it."""
    return any(end == "failed" and nodes[name].on_failure != "ignore" for name, end in ends.items())


def _policies(node: Node, known: Nodes) -> Iterator[tuple[str, str]]:
    """The dependencies of a node, each with the policy for its failure."""
    for name in node.after:
        own = name.on_failure if isinstance(name, Dependency) else None
        yield str(name), own or known[name].on_failure
