"""What nodes report while a task waits for their flow: log lines and progress, for the log of the task.

Lines are read in batches: a look asks for the nodes and then for the new lines of at most 50 of them, 50 of
each. What does not fit comes with the next look; the last look, at the end of the flow, is repeated 20 times
at most. Each line is shown once by the process that waits. One that takes over from a triggerer that has died
does not know what was shown, and shows it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow.sdk.log import redact  # type: ignore[attr-defined]

from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import FlowExpired, FlowNotFound, GlideMQError, NodeNotFound, Superseded

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate import Flow, NodeStatus
    from glidemq_orchestrate.jobs.job import JobLogs

NODES: Final = 50
LINES: Final = 50
ROUNDS: Final = 20
CHARACTERS: Final = 1_000
TEXT: Final = 10_000  # of several lines: a traceback has 8,000 at most
PASSING: Final = (FlowNotFound, FlowExpired, NodeNotFound, Superseded)
"""What a look may find that the wait for the flow finds too."""


@dataclass(slots=True)
class _Seen:
    """What was shown of one run of a node.

    Attributes:
        job_id, run: The job and the run; another run of the node may continue the same job.
        lines: How many lines were shown.
        progress: What was shown last.
        looked: The number of the last look.
        is_over: All lines were shown, and no more will come.
    """

    job_id: str
    run: int
    lines: int = 0
    progress: str = ""
    looked: int = 0
    is_over: bool = False


@dataclass(slots=True)
class NodeReports:
    """Which nodes to ask, and what is new. Pure: the caller reads ``nodes`` and ``logs`` of the flow.

    Attributes:
        logs: Whether lines are shown, or progress alone.
        has_more: Whether the last look has left some out.
    """

    logs: bool
    has_more: bool = False
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _look: int = 0

    def due(self, nodes: Sequence[NodeStatus]) -> dict[str, int]:
        """Whose lines to ask for, and after how many: the nodes that have waited longest for it."""
        self._look += 1
        begun = [
            (node, self._of(node)) for node in nodes if node.attempts or node.started_at
        ]  # or it skipped
        waiting = [(node.name, seen) for node, seen in begun if self.logs and not seen.is_over]
        waiting.sort(key=lambda item: item[1].looked)
        self.has_more = len(waiting) > NODES
        for _, seen in waiting[:NODES]:
            seen.looked = self._look
        return {name: seen.lines for name, seen in waiting[:NODES]}

    def lines(self, nodes: Sequence[NodeStatus], logs: Mapping[str, JobLogs]) -> Iterator[str]:
        """What is new, with the name of the node before it."""
        for node in nodes:
            seen = self._seen.get(node.name)
            if seen is None:
                continue
            if (found := logs.get(node.name)) is not None:
                gone, seen.lines = found.first - seen.lines, found.first + len(found.lines)
                if found.lines and gone > 0:
                    yield f"[{node.name}] ({gone} lines are gone: a job keeps its last 10,000)"
                is_behind = found.total > seen.lines and bool(found.lines)
                self.has_more |= is_behind
                seen.is_over = node.state.is_terminal and not is_behind
                yield from (f"[{node.name}] {in_lines(line)}" for line in found.lines)
            progress = _progress(node)
            if progress and progress != seen.progress:
                yield f"[{node.name}] {in_line(progress)}"
            seen.progress = progress

    def _of(self, node: NodeStatus) -> _Seen:
        seen = self._seen.get(node.name)
        if seen is None or seen.job_id != node.job_id:
            seen = self._seen[node.name] = _Seen(node.job_id, node.run)
        elif seen.run != node.run:  # it runs again, and its job keeps its lines
            seen.run, seen.is_over = node.run, False
        return seen


def log_reports(flow: Flow, reports: NodeReports, log: Logger, *, is_last: bool = False) -> None:
    """Log what nodes have reported since the last look; never fails."""
    try:
        for _ in range(ROUNDS if is_last else 1):
            nodes = flow.nodes()
            due = reports.due(nodes)
            found = flow.logs(due, limit=LINES) if due else {}
            for line in reports.lines(nodes, found):
                log.info("%s", line)
            if not reports.has_more:
                return
    except PASSING:
        return
    except GlideMQError as exc:
        log.warning("What the nodes report cannot be read: %s", exc)
        return
    if is_last:
        log.warning(LEFT_OUT, flow.id)


def in_line(text: str) -> str:
    """Text of a worker in one line, cut.

    What Airflow masks is masked before: a part of it would not be known.
    """
    return runs.in_line(str(redact(text))[:CHARACTERS])


def in_lines(text: str) -> str:
    """What a worker logged in one go, such as a traceback: the lines after the first one are indented."""
    return runs.in_text(_cut(text))


def in_block(lines: Iterable[str]) -> str:
    """What a worker logged, below a line that names the node: each line is indented."""
    return runs.in_block(map(_cut, lines))


def _cut(text: str) -> str:
    lines = str(redact(text))[:TEXT].split("\n")
    return "\n".join(line[:CHARACTERS] for line in lines)


LEFT_OUT: Final = "Flow %s: nodes have logged more lines than are shown; see: glidemq flow node FLOW NODE"


def _progress(node: NodeStatus) -> str:
    value = node.progress
    if value is None or value == 0:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(part)}" for name, part in value.items())
    return f"progress {_text(value)}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
