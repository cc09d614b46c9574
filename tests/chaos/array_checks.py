"""What must hold of the elements of arrays after a round: read from the server and the ledger."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from glidemq_orchestrate import Flow, JobState
from glidemq_orchestrate.flows import ArrayCounts, NodeStatus
from glidemq_orchestrate.testing.chaos import promises
from tests.chaos.book import RoundBook, place_of
from tests.chaos.in_process import value_of_element
from tests.chaos.plan import Elements, FlowPlan, Step

Lost = Callable[[str, str], Iterator[str]]
ENDS_OF: Final = {
    "complete": {"completed"}, "once": {"completed"}, "fail": {"failed"}, "skip": {"skipped"},
    "cure": {"failed", "completed"},
}  # fmt: skip


class Arrays:
    """Compares the elements of arrays with the ledger.

    Args:
        book: The ledger.
        lost: Says that something acknowledged is gone, by what it was and a sentence.
        keeps_leases: Servers keep who holds a job.
    """

    def __init__(self, book: RoundBook, lost: Lost, *, keeps_leases: bool) -> None:
        self._book, self._lost = book, lost
        self._is_certain = keeps_leases and not book.emptied

    def wrong(self, flow: Flow, planned: FlowPlan, nodes: Mapping[str, NodeStatus]) -> Iterator[str]:
        """What is wrong with the arrays of a flow, in sentences."""
        for name, node in nodes.items():
            step = planned.all_steps.get(name)
            if step is not None and step.array is not None:
                yield from (f"{name}: {text}" for text in self._of(flow, planned, step, node))

    def _of(self, flow: Flow, planned: FlowPlan, step: Step, node: NodeStatus) -> Iterator[str]:
        assert step.array is not None
        array, size = flow.array(step.name), step.array.size
        counts, results, failed = array.counts(), dict(array.results()), array.failed(limit=10_000)
        yield from _counted(counts, node, results, {one.index for one in failed}, step.array)
        states = {one.index: "failed" for one in failed} | dict.fromkeys(results, "completed")
        runs = 1 + (planned.action in ("rerun", "skip"))
        for index in range(size):
            job = place_of(node)[0], f"{node.job_id}[{index}]"
            end, fate = states.get(index), step.array.fate(index)
            accepted = self._book.completed(job)
            for text in promises.accepted_once(accepted, runs + len(self._book.emptied)):
                yield from self._lost("results", f"element {index}: {text}")
            if end is None:
                if node.state is JobState.COMPLETED and fate != "skip" and counts.completed:
                    yield f"element {index} ({fate}) has not ended"
            elif end not in ENDS_OF[fate] and not (
                end == "failed" and self._book.is_struck(job, step.attempts)
            ):
                yield f"element {index} ({fate}) is {end}"
        for index, result in results.items():
            yield from (f"element {index}: {text}" for text in self._result(step, node, index, result))
        yield from self._running(step.array, node)
        if node.state is JobState.COMPLETED and counts.failed > (step.array.max_failed or 0):
            yield f"is completed with {counts.failed} failed elements"

    def _result(self, step: Step, node: NodeStatus, index: int, result: Any) -> Iterator[str]:
        """A result is what the accepted attempt has returned."""
        assert step.array is not None
        run = result.get("run", "") if isinstance(result, dict) else ""
        begin = self._book.begins.get(run)
        if begin is None or not begin["job"].endswith(f"~{node.name}[{index}]"):
            yield f"has the result {result!r}, which no run of it has written"
        elif result["value"] != value_of_element(node.name, index, step.array.over[index]):
            yield "has a wrong result"
        elif self._is_certain:
            yield from promises.accepted_from_last(self._book, run)

    def _running(self, elements: Elements, node: NodeStatus) -> Iterator[str]:
        """No more elements run than may: of those whose ends were accepted, which never lost their leases."""
        if elements.max_running is None or not self._is_certain:
            return
        spans = list[tuple[int, int]]()
        for index in range(elements.size):
            for entry in self._book.accepted[place_of(node)[0], f"{node.job_id}[{index}]"]:
                run = entry["run"]
                if run in self._book.begins and run in self._book.ends:
                    spans.append((self._book.begins[run]["at"], self._book.ends[run]["at"]))
        if (most := _at_once(spans)) > elements.max_running:
            yield f"{most} elements ran at once, and {elements.max_running} may"


def _counted(
    counts: ArrayCounts, node: NodeStatus, results: Mapping[int, Any], failed: set[int], elements: Elements
) -> Iterator[str]:
    """The counts add up with the results and failures, and nothing runs any more."""
    if counts.running:
        yield f"{counts.running} elements still run"
    if counts.completed != len(results) or counts.failed != len(failed):
        yield f"{counts} for {len(results)} results and {len(failed)} failures"
    if both := failed & results.keys():
        yield f"elements {sorted(both)[:5]} have both completed and failed"
    has_ended = counts.completed + counts.failed + counts.skipped == elements.size
    by_itself = node.state is JobState.COMPLETED and isinstance(node.progress, dict) and counts.completed
    if by_itself and not has_ended:
        yield f"has completed with {counts}"
    if counts.waiting < 0:
        yield f"counts more ends than elements: {counts}"


def _at_once(spans: Iterable[tuple[int, int]]) -> int:
    """The most spans that have a moment in common."""
    ends: list[int] = []
    most = 0
    for begin, end in sorted(spans):
        while ends and ends[0] <= begin:
            heapq.heappop(ends)
        heapq.heappush(ends, end)
        most = max(most, len(ends))
    return most
