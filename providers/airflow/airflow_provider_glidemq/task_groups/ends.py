"""What the nodes of a task of a group say about the task. Pure: no Airflow, no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from airflow_provider_glidemq.task_groups.flow import index_of
from glidemq_orchestrate import JobState, NodeStatus
from glidemq_orchestrate.runs import UPSTREAM

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
        return cls(attempt, generation, sum(node.run for node in nodes), ended if is_over else None)

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
