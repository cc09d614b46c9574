"""What nodes have written, read of many at a time: messages, and results of checks that did not pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from glidemq_orchestrate import Queue
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.jobs.attempt import NOT_PASSED
from tests.chaos.book import RoundBook, place_of
from tests.chaos.plan import FlowPlan


class Said(NamedTuple):
    """A completed node, the run whose result was accepted, and how many messages that has written."""

    node: NodeStatus
    run: str
    messages: int


class Written:
    """Notes nodes that have written something, and finds what of it is gone.

    Args:
        book: The ledger.
    """

    def __init__(self, book: RoundBook) -> None:
        self._book = book
        self._said: dict[str, list[Said]] = defaultdict(list)
        self._refused: dict[str, list[str]] = defaultdict(list)

    def note(self, planned: FlowPlan, nodes: Iterable[NodeStatus], results: Mapping[str, Any]) -> None:
        """Note the nodes of a flow that have written something."""
        steps = planned.all_steps
        for node in nodes:
            if node.reason == NOT_PASSED:
                self._refused[place_of(node)[0]].append(node.job_id)
            elif (result := results.get(node.name)) and node.name in steps and steps[node.name].says:
                self._said[place_of(node)[0]].append(Said(node, result["run"], steps[node.name].says))

    def lost(self, queue: Queue, name: str) -> Iterator[tuple[str, str]]:
        """What is gone in a queue: the kind and a sentence of each."""
        for text in self._messages(queue, self._said[name]):
            yield "messages", text
        for text in self._progress(queue, self._refused[name]):
            yield "progress", text

    def _messages(self, queue: Queue, said: Sequence[Said]) -> Iterator[str]:
        """The messages of the accepted attempt are there, all of them, in order."""
        accepted = queue.accepted_attempts([one.node.job_id for one in said])
        for node, run, count in said:
            if place_of(node) in self._book.unfenced or self._book.emptied:
                continue
            whose, texts = accepted.get(node.job_id), []
            if whose and run.startswith(whose.attempt.partition(" ")[0]):
                written = queue.messages(whose.job_id, limit=10_000)
                texts = [message.text for message in written if message.attempt == whose.attempt]
            if texts != [f"{number + 1} of {node.name}" for number in range(count)]:
                found = f"{len(texts)} messages of {whose} are there"
                yield f"{node.job_id}: {found}, {count} of {run} were written"

    def _progress(self, queue: Queue, refused: Sequence[str]) -> Iterator[str]:
        """The result of a check that did not pass is the progress of its job."""
        for job_id in refused:
            progress = queue.get_job(job_id).progress
            if not (isinstance(progress, dict) and progress.get("passed") is False):
                yield f"{job_id} has not passed, and its progress is {progress!r}"
