"""Draws a flow: Mermaid for pages that render it, DOT for Graphviz. Pure: returns text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from glidemq_orchestrate.flows.forms.fold import Group, N, NamedNode, fold, rule_of

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
