"""From the tasks of a group to a flow. Pure: no Airflow, no server.

A task is a dict in the form of a node of a flow file: what Airflow renders and shows. One that was expanded
also has ``expand``: ``{"over": what, "into": "fields" | "arguments"}``, and ``"inputs"`` if it is expanded
over the results of other tasks. It becomes a node for each item, ``name[0]``, ``name[1]``, ...; who waits for
it waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from glidemq_orchestrate import FlowNode, FlowSpec, Rule
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.dependencies import verdict
from glidemq_orchestrate.flows.pattern import expand

Task = Mapping[str, Any]

LAUNCH: Final = "launch"
"""The id, within a group, of the task that submits its flow."""
XCOM_LAUNCHED: Final = "glidemq_group"
"""Where it says which generation of the flow that is."""
GROUP_LABEL: Final = "task_group"
"""The label of a flow that says of which group it is."""
ALL: Final = "[*]"
"""Behind the name of a task that was expanded: the results of all its nodes, as a list."""
EXPAND_JOB: Final = "python.expand"  # glidemq_orchestrate.python.expand.JOB_NAME
MAX_BEFORE: Final = 100  # nodes that may wait for what a running node adds
# What waits for a task that was expanded: other rules decide sooner, or otherwise, about its nodes than
# Airflow does about the one task.
RULES_AFTER_EXPAND: Final = frozenset(
    {
        Rule.ALL_SUCCESS,
        Rule.ALL_DONE,
        Rule.NONE_FAILED,
        Rule.NONE_FAILED_MIN_ONE_SUCCESS,
        Rule.ALWAYS,
    }
)


@dataclass(frozen=True, slots=True)
class GroupFlow:
    """The flow of a group, and the tasks that are skipped because a list that they expand over is empty."""

    spec: FlowSpec
    skipped: tuple[str, ...]


def is_node_of(name: str, task: str) -> bool:
    """Whether a node belongs to a task of the group."""
    return name == task or (name.startswith(f"{task}[") and name.endswith("]"))


def index_of(name: str) -> int:
    """The place of a node in a task that was expanded; -1 for others."""
    inside = name.rpartition("[")[2].removesuffix("]")
    return int(inside) if name.endswith("]") and inside.isdecimal() else -1


def ordered(results: Mapping[str, Any]) -> list[Any]:
    """The results of a task that was expanded, in the order of its items."""
    return [results[name] for name in sorted(results, key=index_of)]


def flow_of(name: str, tasks: Sequence[Task], **fields: Any) -> GroupFlow:
    """The flow of the tasks, whose templates are rendered.

    Args:
        name: Of the flow.
        tasks: In any order.
        fields: Others of ``FlowSpec``.

    Raises:
        InvalidFlow: A task is not valid, or is expanded over what is no list.
    """
    plain = [{key: part for key, part in task.items() if key != "expand"} for task in tasks]
    templates = {node.name: node for node in FlowSpec.from_dict({"name": name, "nodes": plain}).nodes}
    expansions = {str(task["name"]): task["expand"] for task in tasks if task.get("expand")}
    elements = {
        task: expand(templates[task], expansion["over"], expansion["into"])
        for task, expansion in expansions.items()
        if not expansion.get("inputs")
    }
    skipped = _skipped(templates, [task for task, nodes in elements.items() if not nodes])
    names = {task: [node.name for node in nodes] for task, nodes in elements.items()}
    for task, expansion in expansions.items():
        if expansion.get("inputs"):
            follow = [node.name for node in templates.values() if task in map(str, node.after)]
            before = [name for one in follow if one not in skipped for name in names.get(one, [one])]
            elements[task] = [_expander(templates[task], expansion, before)]
    nodes = [
        replace(node, after=_after(node, names, skipped))
        for task, template in templates.items()
        if task not in skipped
        for node in elements.get(task, [template])
    ]
    if not nodes:
        raise InvalidFlow(f"{name}: every task is skipped, since the lists that they expand over are empty")
    return GroupFlow(FlowSpec(name, nodes, **fields), tuple(skipped))


def _after(node: FlowNode, names: Mapping[str, Sequence[str]], skipped: Iterable[str]) -> list[str]:
    kept = [task for task in map(str, node.after) if task not in skipped]
    return [one for task in kept for one in names.get(task, [task])]


def _skipped(templates: Mapping[str, FlowNode], empty: Sequence[str]) -> dict[str, None]:
    """The tasks without nodes, and those that are skipped with them by their rules."""
    found = dict.fromkeys(empty)
    while True:
        more = [
            node.name
            for node in templates.values()
            if node.name not in found
            and (count := sum(str(task) in found for task in node.after))
            and verdict(Rule(node.rule), 0, 0, count, total=len(node.after)) == "skipped"
        ]
        if not more:
            return found
        found |= dict.fromkeys(more)


def _expander(template: FlowNode, expansion: Mapping[str, Any], before: Sequence[str]) -> FlowNode:
    """The node that adds a node for each item, when the results that it expands over are there."""
    if len(before) > MAX_BEFORE:
        raise InvalidFlow(
            f"task {template.name}: {len(before)} nodes wait for it, and of a task that is expanded over the "
            f"result of another one at most {MAX_BEFORE} may"
        )
    wire = FlowSpec("template", [replace(template, after=())]).to_dict()["nodes"][0]
    return replace(template, job=EXPAND_JOB, data={"template": wire, "before": list(before), **expansion})
