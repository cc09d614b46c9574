"""What must hold of the histories that jobs record, against what the processes of a round have written.

Node workers record nothing, so only of jobs that none of them can have run is everything known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final

from glidemq_orchestrate import Queue
from glidemq_orchestrate.errors import JobNotFound
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.jobs.attempt import worker_of
from glidemq_orchestrate.jobs.history import ENDS, MAX_LINES, JobHistory
from glidemq_orchestrate.testing.chaos.book import JobKey, job_of
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from tests.chaos.book import RoundBook, place_of
from tests.chaos.bridged_flows import QUEUE
from tests.chaos.plan import FlowPlan, has_history

LEFT: Final = frozenset({
    "lost", "taken-back", "returned", "retrying", "delay-changed", "suspended", "waiting-children",
})  # fmt: skip
"""How a start goes on that is not the end of the job."""


class Histories:
    """Compares the histories of jobs with the ledger.

    Args:
        book: The ledger.
        entries: The same, in order.
        keeps_all: Servers have kept all that they acknowledged; otherwise nothing is known.
    """

    def __init__(self, book: RoundBook, entries: Sequence[LedgerEntry], *, keeps_all: bool) -> None:
        self._book, self._keeps_all = book, keeps_all and not book.emptied
        self._jobs: dict[str, set[str]] = defaultdict(set)
        self._has_node_workers = any(entry["role"].startswith("node_worker") for entry in entries)
        self._counts: dict[str, Counter[JobKey]] = defaultdict(Counter)
        for entry in entries:
            if entry["kind"] in ("retrying", "take-back", "taken-back"):
                self._counts[entry["kind"]][job_of(entry)] += 1

    def note(self, planned: FlowPlan, nodes: Iterable[NodeStatus]) -> None:
        """Note the nodes of a flow that record their histories."""
        for node in nodes:
            if has_history(f"{planned.flow_id}~{node.name}"):
                self._jobs[place_of(node)[0]].add(node.job_id)

    def wrong(self, queue: Queue, name: str) -> Iterator[str]:
        """What is wrong with the histories of a queue, in sentences."""
        plain = {job for where, job in self._book.added if where == name and has_history(job)}
        for job_id in sorted(plain | self._jobs[name]) if self._keeps_all else ():
            if not any("epoch" in self._book.begins[run] for run in self._book.runs[name, job_id]):
                continue  # none of our workers has run it
            try:
                history = queue.history(job_id)
            except JobNotFound:  # told elsewhere
                continue
            if len(history) < MAX_LINES:
                place = name, job_id
                texts = [*self._missing(place, history), *self._unbalanced(place, history)]
                yield from (f"the history of {job_id} {text}: {_shown(history)}" for text in texts)

    def _missing(self, place: JobKey, history: JobHistory) -> Iterator[str]:
        """What our workers and the harness have done, and the history does not show."""
        started = {(entry.worker, _ms(entry.at)) for entry in history if entry.kind == "active"}
        for run in self._book.runs[place]:
            begin = self._book.begins[run]
            worker = worker_of(run.removesuffix(f":{place[1]}"))
            if "epoch" in begin and (worker, begin["activated"]) not in started:
                yield f"does not show that {worker} started it at {begin['activated']}"
        kinds = Counter(entry.kind for entry in history)
        for kind in ("retrying", "taken-back"):
            if kinds[kind] < (least := self._counts[kind][place]):
                yield f"has {kinds[kind]} times {kind!r}, and there were {least}"
        if kinds["taken-back"] > (most := self._counts["take-back"][place]):
            yield f"has {kinds['taken-back']} times 'taken-back', and {most} were asked for"

    def _unbalanced(self, place: JobKey, history: JobHistory) -> Iterator[str]:
        """Starts without an end or another way on, or ways on without a start."""
        if self._has_node_workers and place[0] != QUEUE:
            return
        kinds = Counter(entry.kind for entry in history)
        # A node that runs starts over when one before it is rerun: its attempt has lost the lease.
        replaced = sum((one.kind, after.kind) == ("active", "retried") for one, after in pairwise(history))
        left, ended = replaced + sum(kinds[kind] for kind in LEFT), sum(kinds[kind] for kind in ENDS)
        if not left <= kinds["active"] <= left + ended:
            yield f"has {kinds['active']} starts, {left} ways on and {ended} ends"
        if history.is_partial:
            yield "is partial"


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _shown(history: JobHistory) -> str:
    return ", ".join(f"{_ms(entry.at)} {entry.kind} {entry.detail}".strip() for entry in history)
