"""The reports of nodes in the log of a task: their log lines and progress, and why nodes wait.

Lines are read in batches: each poll reads the nodes and then the new lines of at most 50 of them, 50 lines
each. The rest follows with the next poll; the last poll, at the end of the flow, is repeated at most 20
times. A waiting process shows each line once. A process that takes over from a dead triggerer cannot see what
was shown, and shows it again.

Airflow registers the values to mask in logs (passwords of connections, variables with sensitive names) in the
process of a task, never in a triggerer. If the payloads of a flow contain such values (``holds_masked``),
only task processes show the reports of its nodes.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.log import redact  # type: ignore[attr-defined]

from glidemq_orchestrate import ArrayNode, runs
from glidemq_orchestrate.errors import (
    FlowExpired,
    FlowNotFound,
    NodeNotFound,
    Superseded,
)

if TYPE_CHECKING:
    from glidemq_orchestrate import FlowNode, FlowSpec
    from glidemq_orchestrate.flows import NodeStatus, Wait
    from glidemq_orchestrate.jobs import JobLogs
    from glidemq_orchestrate.runs import Steps

NODES: Final = 50
LINES: Final = 50
ROUNDS: Final = 20
CHARACTERS: Final = 1_000
TEXT: Final = 10_000  # of several lines: a traceback has 8,000 at most
PASSING: Final = (FlowNotFound, FlowExpired, NodeNotFound, Superseded)
"""Errors that the wait for the flow reports as well."""


@dataclass(slots=True)
class _ShownReports:
    """The reports of one run of a node that were shown.

    Attributes:
        job_id, run: The job and the run; another run of the node may continue the same job.
        lines: The number of lines that were shown.
        progress: The progress that was shown last.
        poll: The number of the last poll.
        is_over: All lines were shown, and no more will follow.
    """

    job_id: str
    run: int
    lines: int = 0
    progress: str = ""
    poll: int = 0
    is_over: bool = False


@dataclass(slots=True)
class NodeReports:
    """Which nodes to poll, and which lines are new. Pure: the caller reads the nodes and logs of the flow.

    Attributes:
        logs: Whether lines are shown, or progress alone.
        has_more: Whether the last poll has left lines out.
    """

    logs: bool
    has_more: bool = False
    _seen: dict[str, _ShownReports] = field(default_factory=dict)
    _poll: int = 0

    def due(self, nodes: Sequence[NodeStatus]) -> dict[str, int]:
        """The nodes whose lines to read, and how many lines to skip: the longest-waiting nodes first."""
        self._poll += 1
        begun = [
            (node, self._of(node)) for node in nodes if node.attempts or node.started_at
        ]  # or it skipped
        waiting = [(node.name, seen) for node, seen in begun if self.logs and not seen.is_over]
        waiting.sort(key=lambda item: item[1].poll)
        self.has_more = len(waiting) > NODES
        for _, seen in waiting[:NODES]:
            seen.poll = self._poll
        return {name: seen.lines for name, seen in waiting[:NODES]}

    def lines(self, nodes: Sequence[NodeStatus], logs: Mapping[str, JobLogs]) -> Iterator[str]:
        """The new lines, each after the name of its node."""
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

    def _of(self, node: NodeStatus) -> _ShownReports:
        seen = self._seen.get(node.name)
        if seen is None or seen.job_id != node.job_id:
            seen = self._seen[node.name] = _ShownReports(node.job_id, node.reruns)
        elif seen.run != node.reruns:  # it runs again, and its job keeps its lines
            seen.run, seen.is_over = node.reruns, False
        return seen


def in_line(text: str) -> str:
    """Text of a worker as one line, truncated.

    Values are masked first: Airflow would not recognise a truncated secret.
    """
    return runs.in_line(str(redact(text))[:CHARACTERS])


def in_lines(text: str) -> str:
    """The text of one log call of a worker, such as a traceback: lines after the first one are indented."""
    return runs.in_text(_cut(text))


def in_block(lines: Iterable[str]) -> str:
    """The log lines of a worker, all indented, to follow a line that names the node."""
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


AT_ONCE: Final = 1_000
WITHHELD: Final = (
    "Its payload has values that Airflow masks, which a triggerer does not know: its reason is not shown "
    "here. See it with: glidemq flow node %s %s"
)


def holds_masked(spec: FlowSpec) -> bool:
    """Whether Airflow masks any part of the payloads in this process."""
    texts = (text for node in spec.nodes for text in _texts([node.data, _items(node)]))
    while some := list(islice(texts, AT_ONCE)):  # one call for many texts: each call costs some microseconds
        whole = "\n".join(some)
        if redact(whole) != whole:
            return True
    return False


def _items(node: FlowNode) -> Sequence[Any]:
    """The items of an array; none of a range, as numbers are never masked."""
    over = node.over if isinstance(node, ArrayNode) else ()
    return () if isinstance(over, range) else over


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


FIRST: Final = 10.0  # seconds without the end of a node until the first check
LAST: Final = 600.0
SHOWN: Final = 5
NAMED: Final = 3
SEE_REASONS: Final = "why is in: glidemq flow show %s"


@dataclass(slots=True)
class WaitReasons:
    """When to check why nothing happens: ten seconds after a node has ended, and then at growing intervals.

    Each check reads all nodes of the flow. A line is logged only once.
    """

    ended: int = -1
    due: float = 0.0
    pause: float = FIRST
    logged: str = ""

    def seconds_left(self, now: float) -> float:
        """Until the next check."""
        return max(self.due - now, 0.0)

    def is_due(self, ended: int, now: float) -> bool:
        """Whether to check now; ``ended``: how many nodes have ended."""
        if ended != self.ended:
            self.ended, self.pause, self.due = ended, FIRST, now + FIRST
            return False
        if now < self.due:
            return False
        self.pause = min(self.pause * 2, LAST)
        self.due = now + self.pause
        return True

    def line(self, waits: Mapping[str, Wait], flow_id: str = "") -> str:
        """The line to log: the first reasons, each with the nodes that wait for it; '' if nothing is new.

        ``flow_id``: given for a flow whose reasons may not be shown here; see ``node_reports``.
        """
        if flow_id:
            parts = [f"{len(waits)} nodes wait; {SEE_REASONS % flow_id}"] if waits else []
        else:
            reasons: dict[str, list[str]] = {}
            for name, wait in waits.items():
                reasons.setdefault(in_line(str(wait)), []).append(name)
            shown = list(reasons.items())[:SHOWN]
            parts = [f"{_who(names)}: {reason}" for reason, names in shown]
            left = sum(map(len, reasons.values())) - sum(len(names) for _, names in shown)
            parts += [f"{left} more wait"] if left else []
        text = "; ".join(parts)
        if text == self.logged:
            return ""
        self.logged = text
        return text


def _who(names: Sequence[str]) -> str:
    """``load waits``, or how many nodes wait and which they are."""
    if len(names) == 1:
        return f"{names[0]} waits"
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)} nodes wait ({', '.join(names[:NAMED])}{more})"


@dataclass(slots=True)
class FlowLog:
    """Logs what the nodes of one generation report, and why they wait.

    Attributes:
        log: The log of the task.
        often: Seconds between polls of the reports.
        reports: What to show of the reports; None: nothing.
        is_masked: The reasons of waits may not be shown here.
    """

    log: Any
    often: float
    reports: NodeReports | None = None
    is_masked: bool = False
    _waits: WaitReasons = field(default_factory=WaitReasons)
    _polled_at: float = 0.0

    @property
    def seconds_left(self) -> float:
        """Until the next poll is due."""
        now = time.monotonic()
        left = self._waits.seconds_left(now) or 1.0
        return left if self.reports is None else min(left, max(self._polled_at + self.often - now, 0.0))

    def poll(  # noqa: PLR0913  all but two have defaults
        self,
        flow: Any,
        ended: int,
        *,
        names: Sequence[str] | None = None,
        read: Callable[[], Any] = lambda: None,
        is_last: bool = False,
        ask: Callable[[Any], Any] = lambda found: found,
    ) -> Steps[None]:
        """Log what is new, if a poll is due or the nodes have ended.

        Args:
            flow: The flow.
            ended: How many nodes have ended.
            names: Only these nodes report; None: all.
            read: Reads the nodes that may wait; None: all.
            is_last: The nodes have ended.
            ask: Makes the calls on the flow.
        """
        with contextlib.suppress(*PASSING):
            now = time.monotonic()
            if self.reports is not None and (is_last or now >= self._polled_at + self.often):
                yield from self._report(flow, self.reports, names, ask, ROUNDS if is_last else 1)
                if is_last and self.reports.has_more:
                    self.log.warning(LEFT_OUT, flow.id)
                self._polled_at = time.monotonic()
            if not is_last and self._waits.is_due(ended, now):
                nodes = yield read
                waits = yield lambda: ask(flow.waits(nodes))
                if line := self._waits.line(waits, flow.id if self.is_masked else ""):
                    self.log.info("%s", line)

    def _report(
        self,
        flow: Any,
        reports: NodeReports,
        names: Sequence[str] | None,
        ask: Callable[[Any], Any],
        rounds: int,
    ) -> Steps[None]:
        for _ in range(rounds):
            nodes = yield lambda: ask(flow.nodes(names))
            due = reports.due(nodes)
            found = (yield partial(self._logs, flow, due, ask)) if due else {}
            for number, line in enumerate(reports.lines(nodes, found), 1):
                self.log.info("%s", line)
                if number % LINES == 0:
                    yield runs.Rest(0)  # writing takes a millisecond, and other triggers wait
            if not reports.has_more:
                return
            yield runs.Rest(0)

    @staticmethod
    def _logs(flow: Any, due: Mapping[str, int], ask: Callable[[Any], Any]) -> Any:
        return ask(flow.logs(due, limit=LINES))
