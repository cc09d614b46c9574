"""Converts the tasks of a group to a flow, and its nodes back to the tasks. Pure: no Airflow, no server.

A task is a dict in the form of a node of a flow file, which Airflow renders and shows. An expanded task also
has ``expand``: ``{"over": list, "into": "fields" | "arguments"}``, and ``"inputs"`` if it is expanded over
the results of other tasks. It becomes a node for each item, ``name[0]``, ``name[1]``, ...; a task that
depends on it depends on all these nodes. With ``"array": True`` it becomes one array, ``name[*]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from glidemq_orchestrate import FlowNode, FlowSpec, JobState, Rule
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.flows.dependencies import verdict
from glidemq_orchestrate.flows.pattern import ALL, expand, expand_to_array
from glidemq_orchestrate.runs import UPSTREAM

Task = Mapping[str, Any]

LAUNCH: Final = "launch"
"""The id, within its group, of the task that submits the flow."""
XCOM_LAUNCHED: Final = "glidemq_group"
"""The XCom in which it stores the generation of the flow."""
GROUP_LABEL: Final = "task_group"
"""The label of a flow that holds the id of its group."""
EXPAND_JOB: Final = "python.expand"  # glidemq_orchestrate.python.expand.JOB_NAME
MAX_BEFORE: Final = 100  # nodes that may wait for the nodes that a running node adds
# The rules of tasks after an expanded task. Other rules would decide earlier about single nodes than Airflow
# does about the whole task, or differently.
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
    """The flow of a group, and the tasks that are skipped because they expand over an empty list."""

    spec: FlowSpec
    skipped: tuple[str, ...]


def is_node_of(name: str, task: str) -> bool:
    """Whether a node belongs to a task of the group."""
    return name == task or (name.startswith(f"{task}[") and name.endswith("]"))


def index_of(name: str) -> int:
    """The index of a node of an expanded task; -1 for other nodes."""
    inside = name.rpartition("[")[2].removesuffix("]")
    return int(inside) if name.endswith("]") and inside.isdecimal() else -1


def array_of(names: Sequence[str]) -> str | None:
    """The array whose elements are the results of a task; None if the task has none, or has other nodes."""
    return names[0] if len(names) == 1 and names[0].endswith(ALL) else None


def value_of(results: Mapping[str, Any], node: str, *, is_expanded: bool) -> Any:
    """The result of a task, from those of its nodes; those of an array are already a list."""
    if array := array_of(list(results)):
        return results[array]
    return ordered(results) if is_expanded else results.get(node)


def ordered(results: Mapping[str, Any]) -> list[Any]:
    """The results of an expanded task, in the order of its items."""
    return [results[name] for name in sorted(results, key=index_of)]


def flow_of(name: str, tasks: Sequence[Task], **fields: Any) -> GroupFlow:
    """The flow of the rendered tasks.

    Args:
        name: The name of the flow.
        tasks: The tasks, in any order.
        fields: Other fields of ``FlowSpec``.

    Raises:
        InvalidFlow: A task is invalid, or is expanded over a value that is not a list.
    """
    plain = [{key: part for key, part in task.items() if key != "expand"} for task in tasks]
    templates = {node.name: node for node in FlowSpec.from_dict({"name": name, "nodes": plain}).nodes}
    expansions = {str(task["name"]): task["expand"] for task in tasks if task.get("expand")}
    elements = {
        task: _expanded(templates[task], expansion)
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


def _expanded(template: FlowNode, expansion: Mapping[str, Any]) -> list[FlowNode]:
    """The nodes of an expanded task."""
    over, into = expansion["over"], str(expansion["into"])
    if expansion.get("array"):
        return expand_to_array(template, over, into, expansion.get("max_running"))
    return expand(template, over, into)


def _after(node: FlowNode, names: Mapping[str, Sequence[str]], skipped: Iterable[str]) -> list[str]:
    kept = [task for task in map(str, node.after) if task not in skipped]
    return [one for task in kept for one in names.get(task, [task])]


def _skipped(templates: Mapping[str, FlowNode], empty: Sequence[str]) -> dict[str, None]:
    """The tasks without nodes, and the tasks that their trigger rules skip as a result."""
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
    """The node that adds a node for each item, once the results that it expands over exist."""
    if len(before) > MAX_BEFORE:
        raise InvalidFlow(
            f"task {template.name}: {len(before)} nodes wait for it, and of a task that is expanded over the "
            f"result of another one at most {MAX_BEFORE} may"
        )
    wire = FlowSpec("template", [replace(template, after=())]).to_dict()["nodes"][0]
    return replace(template, job=EXPAND_JOB, data={"template": wire, "before": list(before), **expansion})


SHOWN: Final = 10
_ENDED_BY_AIRFLOW: Final = "the Airflow task"  # in the reasons of triggers and of the reconciler
_BLOCKED: Final = frozenset({JobState.WAITING_CHILDREN, JobState.FAILED, JobState.SKIPPED})


@dataclass(frozen=True, slots=True)
class Seen:
    """A record of the nodes of a task, as one try of the task has seen them.

    Attributes:
        attempt: The number of the try.
        generation: The generation of the flow.
        run: Grows whenever one of the nodes starts over within the generation.
        ended: When the last of the nodes ended; None: not yet.
        starts_over: The number of a later try that has begun to start the nodes over; afterwards its record
            replaces this one.
        again: The nodes that the later try starts over.
    """

    attempt: int
    generation: int
    run: int
    ended: str | None = None
    starts_over: int | None = None
    again: Sequence[str] = ()

    @classmethod
    def of(cls, nodes: Sequence[NodeStatus], *, attempt: int, generation: int) -> Self:
        """A record of the nodes as they are now."""
        times = [node.finished_at for node in nodes if node.state.is_terminal]
        known = [time for time in times if time is not None]
        is_over = bool(nodes) and len(times) == len(nodes)
        ended = max(known).isoformat() if known else "" if is_over else None
        return cls(attempt, generation, sum(node.reruns for node in nodes), ended if is_over else None)

    def at(self, nodes: Sequence[NodeStatus]) -> Self:
        """The record of the same try, updated from the nodes as they are now."""
        now = self.of(nodes, attempt=self.attempt, generation=self.generation)
        return replace(self, run=now.run, ended=now.ended)

    @classmethod
    def read(cls, value: object) -> Self | None:
        """Read a record that ``stored`` has returned; None for any other value."""
        try:
            return cls(**value) if isinstance(value, Mapping) else None
        except TypeError:
            return None

    def stored(self) -> dict[str, Any]:
        """The record as JSON."""
        return asdict(self)


def is_cleared_alone(before: Seen | None, now: Seen, nodes: Sequence[NodeStatus]) -> bool:
    """Whether a try has to start its nodes over: Airflow has cleared the task, and nothing before it.

    If the task is cleared together with an upstream task, or with launch, its nodes have started over since
    its last try, or are still waiting to. If it is cleared alone, its nodes are as its last try has shown
    them. They may also be only cancelled, if the triggerer died while it started them over; or they ended
    because the task was marked or its DAG run ended, which the last try has not seen.
    """
    if now.attempt <= (1 if before is None else before.attempt):
        return False
    if any(_ENDED_BY_AIRFLOW in node.reason for node in nodes if node.state.is_terminal):
        return True
    if before is None or before.starts_over is not None:
        return before is not None
    if before.ended is not None:
        return before.ended == now.ended
    if (before.generation, before.run) != (now.generation, now.run):
        return False
    return now.ended is not None or any(node.state is JobState.ACTIVE for node in nodes)


def to_start_over(nodes: Sequence[NodeStatus]) -> list[str]:
    """The nodes of a task that run again when it is cleared: those that failed; all if none failed.

    If some nodes of the task have not ended, all run again: the task has shown no failure.
    """
    failed = [node.name for node in nodes if node.state is JobState.FAILED]
    return failed if failed and is_over(nodes) else [node.name for node in nodes]


def may_be_marked(nodes: Sequence[NodeStatus]) -> bool:
    """Whether other nodes keep these from running, though Airflow has started their task.

    Then an upstream task may have been marked in Airflow, which the flow has not recorded.
    """
    return any(
        node.state in _BLOCKED
        and not node.attempts
        and (node.state is not JobState.FAILED or node.reason.startswith(UPSTREAM))
        for node in nodes
    )


def is_over(nodes: Sequence[NodeStatus]) -> bool:
    """Whether all nodes of the task have ended."""
    return bool(nodes) and all(node.state.is_terminal for node in nodes)


def is_array(nodes: Sequence[NodeStatus]) -> bool:
    """Whether the task was expanded to an array."""
    return len(nodes) == 1 and nodes[0].name.endswith(ALL)


def end_of(nodes: Sequence[NodeStatus]) -> tuple[JobState, str]:
    """The end of a task whose nodes have all ended, and the reason: that of the first failed node, if any.

    An expanded task is skipped if all its nodes are.
    """
    if is_array(nodes):
        return nodes[0].state, nodes[0].reason
    failed = [node for node in nodes if node.state is JobState.FAILED]
    if failed:
        first = f"{failed[0].reason} (attempts: {failed[0].attempts})"
        return JobState.FAILED, first if len(nodes) == 1 else f"{progress(nodes)}. {failed[0].name}: {first}"
    skipped = [node for node in nodes if node.state is JobState.SKIPPED]
    if len(skipped) == len(nodes):
        return JobState.SKIPPED, skipped[0].reason
    return JobState.COMPLETED, ""


def progress(nodes: Sequence[NodeStatus]) -> str:
    """The progress of the nodes of a task: ``987/1000, failed: 3, 17``; the last numbers are indexes.

    Of an array it is ``987/1000, failed: 2 elements``.
    """
    if is_array(nodes):
        return _of_elements(nodes[0].progress)
    completed = sum(node.state is JobState.COMPLETED for node in nodes)
    parts = [f"{completed}/{len(nodes)}"]
    for state in (JobState.FAILED, JobState.SKIPPED):
        places = [index_of(node.name) for node in nodes if node.state is state]
        if places:
            more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
            parts.append(f"{state.value}: {', '.join(map(str, places[:SHOWN]))}{more}")
    return ", ".join(parts)


def _of_elements(counts: Any) -> str:
    if not isinstance(counts, Mapping):
        return "no element has ended"
    parts = [f"{counts.get('completed')}/{counts.get('elements')}"]
    parts += [f"{name}: {counts[name]} elements" for name in ("failed", "skipped") if counts.get(name)]
    return ", ".join(parts)


RETURN_VALUE: Final = "return_value"
LAUNCH_SECONDS: Final = 2.0  # between checks of a task that another task waits for


class EndedEarly(Exception):
    """The task ends differently from its nodes, or has none."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason)
