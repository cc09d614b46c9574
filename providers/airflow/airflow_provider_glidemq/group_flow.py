"""From the tasks of a group to a flow, and from its nodes back to the tasks. Pure: no Airflow, no server.

A task is a dict in the form of a node of a flow file: what Airflow renders and shows. An expanded one also
has ``expand``: ``{"over": what, "into": "fields" | "arguments"}``, and ``"inputs"`` if it is expanded over
the results of other tasks. It becomes a node for each item, ``name[0]``, ``name[1]``, ...; a task that
depends on it depends on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from glidemq_orchestrate import FlowNode, FlowSpec, JobState, NodeStatus, Rule
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.dependencies import verdict
from glidemq_orchestrate.flows.pattern import expand
from glidemq_orchestrate.runs import UPSTREAM

Task = Mapping[str, Any]

LAUNCH: Final = "launch"
"""The id, within a group, of the task that submits its flow."""
XCOM_LAUNCHED: Final = "glidemq_group"
"""The XCom in which it stores the generation of the flow."""
GROUP_LABEL: Final = "task_group"
"""The label of a flow with the id of its group."""
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


SHOWN: Final = 10
_ENDED_BY_AIRFLOW: Final = "the Airflow task"  # in the reasons of triggers and of the reconciler
_BLOCKED: Final = frozenset({JobState.WAITING_CHILDREN, JobState.FAILED, JobState.SKIPPED})


@dataclass(frozen=True, slots=True)
class Seen:
    """What one try of a task of Airflow has seen of its nodes.

    Attributes:
        attempt: The number of the try.
        generation: Of the flow.
        run: Grows whenever one of the nodes starts over within the generation.
        ended: When the last of the nodes had ended; None: not yet.
        starts_over: The number of a later try that has begun to start them over; once it has, what it sees
            takes the place of this.
        again: The nodes that it starts over.
    """

    attempt: int
    generation: int
    run: int
    ended: str | None = None
    starts_over: int | None = None
    again: Sequence[str] = ()

    @classmethod
    def of(cls, nodes: Sequence[NodeStatus], *, attempt: int, generation: int) -> Self:
        """What is seen of the nodes now."""
        times = [node.finished_at for node in nodes if node.state.is_terminal]
        known = [time for time in times if time is not None]
        is_over = bool(nodes) and len(times) == len(nodes)
        ended = max(known).isoformat() if known else "" if is_over else None
        return cls(attempt, generation, sum(node.reruns for node in nodes), ended if is_over else None)

    def at(self, nodes: Sequence[NodeStatus]) -> Self:
        """The same try, of what the nodes are now."""
        now = self.of(nodes, attempt=self.attempt, generation=self.generation)
        return replace(self, run=now.run, ended=now.ended)

    @classmethod
    def read(cls, value: object) -> Self | None:
        """From what ``stored`` has returned; None for anything else."""
        try:
            return cls(**value) if isinstance(value, Mapping) else None
        except TypeError:
            return None

    def stored(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def is_cleared_alone(before: Seen | None, now: Seen, nodes: Sequence[NodeStatus]) -> bool:
    """Whether a try has to start its nodes over: Airflow has cleared the task, and nothing before it.

    A task that is cleared together with one before it, or with launch, finds nodes that have started over
    since its last try, or still wait to. One that was cleared alone finds what its last try has shown; or
    nodes that were only cancelled, if the triggerer died while it started them over; or that have ended as
    their task was marked, or its DAG run ended, which the last try has not seen.
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
    """The nodes of a task that run again when it is cleared: those that failed; all where none has.

    Of a task whose nodes have not all ended, all: it showed no failure.
    """
    failed = [node.name for node in nodes if node.state is JobState.FAILED]
    return failed if failed and is_over(nodes) else [node.name for node in nodes]


def may_be_marked(nodes: Sequence[NodeStatus]) -> bool:
    """Whether nodes do not run because of others, though Airflow has begun their task.

    So it may be that a task before it was marked in Airflow, and the flow does not know.
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


def end_of(nodes: Sequence[NodeStatus]) -> tuple[JobState, str]:
    """How a task ends whose nodes have all ended, and why: failed with the first that failed.

    A task that was expanded is skipped when all its nodes were.
    """
    failed = [node for node in nodes if node.state is JobState.FAILED]
    if failed:
        first = f"{failed[0].reason} (attempts: {failed[0].attempts})"
        return JobState.FAILED, first if len(nodes) == 1 else f"{progress(nodes)}. {failed[0].name}: {first}"
    skipped = [node for node in nodes if node.state is JobState.SKIPPED]
    if len(skipped) == len(nodes):
        return JobState.SKIPPED, skipped[0].reason
    return JobState.COMPLETED, ""


def progress(nodes: Sequence[NodeStatus]) -> str:
    """How far the nodes of a task are: ``987/1000, failed: 3, 17``; the numbers are places in the list."""
    completed = sum(node.state is JobState.COMPLETED for node in nodes)
    parts = [f"{completed}/{len(nodes)}"]
    for state in (JobState.FAILED, JobState.SKIPPED):
        places = [index_of(node.name) for node in nodes if node.state is state]
        if places:
            more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
            parts.append(f"{state.value}: {', '.join(map(str, places[:SHOWN]))}{more}")
    return ", ".join(parts)


RETURN_VALUE: Final = "return_value"
LAUNCH_SECONDS: Final = 2.0  # from look to look at a task that another one waits for


class NotLaunched(Exception):
    """Launch has ended and has submitted no flow."""
