"""Draws a flow: as a Mermaid flowchart, in Graphviz's DOT language, or as a tree in the terminal. Pure.

A fan-out is folded: nodes whose names differ only by numbers and that wait for the same nodes are drawn as
one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from glidemq_orchestrate.flows.dependencies import check_known, check_unique, topological_order

FOLD_FROM: Final = 10

_PLAIN: Final = re.compile(r"[^\w .,:/()+=\-\[\]]")
_COLOURS: Final = {
    "completed": "#d3f2d9",
    "failed": "#f8cfcf",
    "skipped": "#e3e3e3",
    "active": "#cfe8fb",
    "waiting": "#fdf3c7",
    "delayed": "#fdf3c7",
}


def mermaid(nodes: Sequence[N], *, at_least: int | None = FOLD_FROM) -> str:
    """A Mermaid flowchart, top to bottom; nodes are coloured by state."""
    return "\n".join(["flowchart TD", *_mermaid_lines(fold(nodes, at_least=at_least))]) + "\n"


def dot(name: str, nodes: Sequence[N], *, at_least: int | None = FOLD_FROM) -> str:
    """A Graphviz digraph in the DOT language; nodes are coloured by state."""
    head = f"digraph {_dot_text(name)} {{"
    style = '  node [shape=box style="rounded,filled" fillcolor=white fontname="sans-serif"]'
    return "\n".join([head, style, *_dot_lines(fold(nodes, at_least=at_least)), "}"]) + "\n"


def _mermaid_lines(groups: Sequence[Group[N]]) -> Iterator[str]:
    used: dict[str, None] = {}
    for at, group in enumerate(groups):
        label = "<br/>".join(_mermaid_text(line) for line in _lines(group))
        state = _state(group)
        if state:
            used[state] = None
        mark = f":::{state}" if state else ""
        shape = f'[["{label}"]]' if group.is_folded else f'["{label}"]'
        yield f"  n{at}{shape}{mark}"
    for dependency, at, policy in _edges(groups):
        yield f"  n{dependency} -.->|{policy}| n{at}" if policy else f"  n{dependency} --> n{at}"
    for state in used:
        yield f"  classDef {state} fill:{_COLOURS[state]},stroke:#555,color:#222"


def _dot_lines(groups: Sequence[Group[N]]) -> Iterator[str]:
    for at, group in enumerate(groups):
        label = '"' + "\\n".join(_dot_text(line)[1:-1] for line in _lines(group)) + '"'
        state = _state(group)
        colour = f' fillcolor="{_COLOURS[state]}"' if state else ""
        pile = " peripheries=2" if group.is_folded else ""
        yield f"  n{at} [label={label}{colour}{pile}]"
    for dependency, at, policy in _edges(groups):
        yield f"  n{dependency} -> n{at}" + (f' [style=dashed label="{policy}"]' if policy else "")


def _edges(groups: Sequence[Group[N]]) -> Iterator[tuple[int, int, str]]:
    """Dependency, dependent, and the failure policy between them, '' for the default."""
    for at, group in enumerate(groups):
        for dependency in group.after:
            of = {node.name: getattr(node, "on_failure", None) for node in groups[dependency].nodes}
            policies = {
                _policy(node, name) or of[name] for node in group.nodes for name in node.after if name in of
            }
            policy = policies.pop() if len(policies) == 1 else None
            yield dependency, at, "" if policy in (None, "fail") else f"on failure: {policy}"


def _policy(node: NamedNode, dependency: str) -> str | None:
    """The policy that a node, in either form, sets for a dependency."""
    policies: Mapping[str, str] = getattr(node, "policies", {})
    written: str | None = getattr(dependency, "on_failure", None)
    return policies.get(dependency) or written


def _lines(group: Group[N]) -> list[str]:
    """The lines of the label of a group: name, count and states of a folded one, rule."""
    rule = rule_of(group.nodes[0])
    rules = [f"rule: {rule}"] if rule else []
    if not group.is_folded:
        return [group.label, *rules]
    states = Counter(str(state) for node in group.nodes if (state := getattr(node, "state", None)))
    shown = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    count = f"{len(group.nodes):,} nodes" + (f": {shown}" if shown else "")
    return [group.label, count, *rules]


def _state(group: Group[N]) -> str | None:
    """The state that colours a group: the worst one in it, or the one that all share."""
    states = {str(getattr(node, "state", "")) for node in group.nodes}
    for state in ("failed", "active"):
        if state in states:
            return state
    only = states.pop() if len(states) == 1 else ""
    return only if only in _COLOURS else None


def _mermaid_text(text: str) -> str:
    # In Mermaid's entity codes, since quotes end a label, a backtick begins Markdown, and < begins HTML.
    return _PLAIN.sub(lambda found: f"#{ord(found[0])};", text)


def _dot_text(text: str) -> str:
    # Graphviz reads backslashes as escapes and & as the start of an HTML entity, even within quotes.
    escaped = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_NUMBER: Final = re.compile(r"\d+")


class NamedNode(Protocol):
    """The properties of a node in every form, as written and as read back."""

    @property
    def name(self) -> str:
        """Unique in the flow."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def job(self) -> str:
        """The name of its handler."""

    @property
    def after(self) -> Sequence[str]:
        """The names of its dependencies."""


N = TypeVar("N", bound=NamedNode)


@dataclass(slots=True)
class Group(Generic[N]):
    """Nodes displayed as one, in the order of the flow; often a single node.

    Attributes:
        nodes: One or more nodes.
        after: The indexes, in the list that ``fold`` returns, of the groups it waits for.
    """

    nodes: list[N]
    after: list[int] = field(default_factory=list)

    @property
    def is_folded(self) -> bool:
        """Whether it has several nodes."""
        return len(self.nodes) > 1

    @property
    def label(self) -> str:
        """The name of the node; for several, their common name with the range of each number that differs."""
        return range_name([node.name for node in self.nodes])


def dependencies(node: NamedNode) -> list[str]:
    """The names of a node's dependencies, each once."""
    return list(dict.fromkeys(map(str, node.after)))


def in_order(nodes: Collection[N]) -> list[N]:
    """The nodes of a specification, dependencies before dependents.

    Raises:
        DuplicateNode: Two have the same name.
        UnknownDependency: One waits for a node that does not exist.
        CycleError: They wait for each other.
    """
    check_unique([node.name for node in nodes])
    known = {node.name: node for node in nodes}
    after = {name: dependencies(node) for name, node in known.items()}
    check_known(after)
    return [known[name] for name in topological_order(after)]


def rule_of(node: NamedNode) -> str | None:
    """The rule of a node if it matters: it is not the default, and the node has dependencies."""
    rule = getattr(node, "rule", None)
    return None if rule is None or rule == "all_success" or not node.after else str(rule)


def fold(
    nodes: Collection[N], *, at_least: int | None, alone: Callable[[N], bool] = lambda _: False
) -> list[Group[N]]:
    """Groups, dependencies before dependents; otherwise in the order of their first node.

    Nodes form a group if they have the same queue, job, rule and name apart from numbers, and wait for the
    same groups. So no group waits for itself, not even indirectly.

    Args:
        nodes: Dependencies before dependents.
        at_least: Groups of fewer nodes are not folded. None folds nothing.
        alone: Nodes that are never folded, such as failed ones.
    """
    families: dict[tuple[Any, ...], list[N]] = {}
    family_of: dict[str, int] = {}
    numbers: dict[tuple[Any, ...], int] = {}
    for node in nodes:
        waits_for = frozenset(family_of[name] for name in dependencies(node) if name in family_of)
        key = (_NUMBER.sub("#", node.name), node.queue, node.job, rule_of(node), waits_for)
        family_of[node.name] = numbers.setdefault(key, len(numbers))
        families.setdefault(key, []).append(node)
    parts: list[list[N]] = []
    for family in families.values():
        folded = [node for node in family if not alone(node)]
        if at_least is None or len(folded) < max(at_least, 2):
            parts += [[node] for node in family]
        else:
            parts += [folded, *([node] for node in family if alone(node))]
    return _connected(parts, {node.name: rank for rank, node in enumerate(nodes)})


def _connected(parts: list[list[N]], ranks: dict[str, int]) -> list[Group[N]]:
    """The groups in topological order, linked by the indexes of their dependencies."""
    parts = sorted(parts, key=lambda part: ranks[part[0].name])
    place = {node.name: str(at) for at, part in enumerate(parts) for node in part}
    after = {
        str(at): list({place[name] for node in part for name in dependencies(node) if name in place})
        for at, part in enumerate(parts)
    }
    order = topological_order(after)
    new = {at: number for number, at in enumerate(order)}
    return [Group(parts[int(at)], sorted(new[other] for other in after[at])) for at in order]


def range_name(names: Sequence[str]) -> str:
    """One name for names that differ by numbers: ``clean[0]``, ``clean[1]``, ... become ``clean[0..9]``."""
    if len(names) == 1:
        return names[0]
    columns = list(zip(*(_NUMBER.findall(name) for name in names), strict=True))
    ranges = []
    for column in columns:
        low, high = min(column, key=int), max(column, key=int)
        ranges.append(low if low == high else f"{low}..{high}")
    parts = _NUMBER.split(names[0])
    return parts[0] + "".join(number + text for number, text in zip(ranges, parts[1:], strict=True))


_DEEPEST: Final = 16
_ROOT: Final = -1


@dataclass(eq=False)
class DrawnGroup(Generic[N]):
    """A group in the drawing.

    Attributes:
        group: None for the root, if the flow begins with branches.
        branches: The indented branches below it, each a sequence of groups.
    """

    group: Group[N] | None
    branches: list[list[DrawnGroup[N]]] = field(default_factory=list)


def layout(groups: Sequence[Group[N]]) -> list[DrawnGroup[N]]:
    """The groups at the top level; every group occurs once in the tree.

    Args:
        groups: Dependencies before dependents, as ``fold`` returns them.
    """
    below = _below(groups)
    root: DrawnGroup[N] = DrawnGroup(None)
    outermost: list[DrawnGroup[N]] = []
    todo = [(_ROOT, root, outermost, 0)]
    while todo:
        at, place, level, depth = todo.pop()
        level.append(place)
        branches, beside = _split(groups, at, below.get(at, []), depth)
        place.branches = [[] for _ in branches]
        inside = zip(branches, place.branches, strict=True)
        todo += [
            *((child, DrawnGroup(groups[child]), level, depth) for child in beside[::-1]),
            *[(child, DrawnGroup(groups[child]), branch, depth + 1) for child, branch in inside][::-1],
        ]
    return outermost if root.branches else outermost[1:]


def _split(
    groups: Sequence[Group[N]], at: int, children: Sequence[int], depth: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The branches among the groups below one, and the unindented rest: joins, or a chain."""
    own = [] if at == _ROOT else [at]
    branches = [child for child in children if groups[child].after == own]
    joins = [child for child in children if groups[child].after != own]
    if len(children) == 1 or (at == _ROOT and not joins) or depth >= _DEEPEST:
        return [], children
    return branches, joins


def _below(groups: Sequence[Group[N]]) -> dict[int, list[int]]:
    """By group, those for which it is the last one that all paths to them share."""
    above, depth = {_ROOT: _ROOT}, {_ROOT: 0}
    below: dict[int, list[int]] = {}
    for at, group in enumerate(groups):
        shared = group.after[0] if group.after else _ROOT
        for other in group.after[1:]:
            one, two = shared, other
            while one != two:
                if depth[one] < depth[two]:
                    one, two = two, one
                one = above[one]
            shared = one
        above[at], depth[at] = shared, depth[shared] + 1
        below.setdefault(shared, []).append(at)
    return below
