"""What may not be promised of a job because of what a Node worker has done: glide-mq's calls carry no token.

A job is unfenced when a Node worker reported the end of an attempt that was no longer its own, or began it
although it was not waiting. glide-mq accepts both: a report in any state of the job, which counts an attempt
and may complete or fail the job (sections 4.15 to 4.17 and Q3 of the specification of its functions); and a
job in any state becomes active for a worker that has an entry of it (4.13). A worker comes to that when it
was stopped for longer than its lease, or when its flow was cancelled or restarted meanwhile; also when it met
a job of a cancelled flow as revoked, and fails it when the flow has been retried. A report whose reply was
lost may have been one.

Of an unfenced job, and of no other, may not be promised

- that one result counts: it may end twice, with the results of two runs, and a dependent has either;
- that its end is the planned one: attempts that were no longer its own count, so it may have none left, and
  it may complete or fail as such a report says;
- that it got the results which count now: it may have begun while what it follows was to run again;
- that its ordering key holds: what ends twice frees two places (S9). So that is not promised of the jobs of
  the key that begin after it.

Everything else must hold, also of these: the flow ends, its counts agree with its nodes, nothing stays
active, and no place is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from glidemq_orchestrate.testing.chaos.book import JobKey, job_of
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry

RETURNED = "later"
"""The error of a report that ends no attempt."""


class Unfenced:
    """The jobs of a round that Node workers have ended or begun although they were not theirs.

    Args:
        begins: The begins of runs; those of Node workers have ``was``: the state of the job before.
        reports: What Node workers have reported: before (``reporting``, with ``was`` too: a run that is left
            to others has no begin) and after it (``reported``).
    """

    def __init__(self, begins: Iterable[LedgerEntry], reports: Sequence[LedgerEntry]) -> None:
        replies = {entry["run"]: entry for entry in reports if entry["kind"] == "reported"}
        self._since: dict[JobKey, int] = {}
        self._ends: dict[JobKey, set[str]] = defaultdict(set)
        for entry in reports:
            if entry["kind"] != "reporting":
                continue
            if _was_taken(entry) or replies.get(entry["run"], {"late": True})["late"]:
                self._note(entry)
                if entry["error"] != RETURNED:
                    self._ends[job_of(entry)].add("failed" if entry["error"] else "completed")
        for entry in begins:
            if _was_taken(entry):
                self._note(entry)

    def _note(self, entry: LedgerEntry) -> None:
        self._since[job_of(entry)] = min(entry["at"], self._since.get(job_of(entry), entry["at"]))

    def __contains__(self, job: JobKey) -> bool:
        """Whether a job is unfenced."""
        return job in self._since

    def items(self) -> Iterable[tuple[JobKey, int]]:
        """The unfenced jobs, and since when they are."""
        return self._since.items()

    def ends(self, job: JobKey) -> frozenset[str]:
        """How it may have ended by a report that was not due."""
        return frozenset(self._ends[job]) if job in self._ends else frozenset()


def _was_taken(entry: LedgerEntry) -> bool:
    """Whether a Node worker had begun a job that was not waiting."""
    return bool(entry.get("was", "waiting") != "waiting")
