"""The entries of a ledger by attempt and job; the same for users, ``make chaos`` and the simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry

JobKey = tuple[str, str]
"""The queue and the id of a job."""
ENDS: Final = frozenset({"completed", "failed", "skipped"})
"""The kinds of entries of accepted ends."""


def job_of(entry: LedgerEntry) -> JobKey:
    """The job of an entry; a shard counts as its queue, since the ids of all its jobs differ."""
    return split_shard(entry["queue"])[0], entry["job"]


class Book:
    """The ledger by attempt and job. An attempt is named by its run: its token and the id of its job.

    Attributes:
        begins, ends: When attempts began and ended, by run.
        runs: The runs of each job, in order.
        repeated: Runs that began more than once.
        accepted: The ends of each job that the server has accepted, in order.
    """

    def __init__(self, entries: Iterable[LedgerEntry] = ()) -> None:
        self.begins: dict[str, LedgerEntry] = {}
        self.ends: dict[str, LedgerEntry] = {}
        self.runs: dict[JobKey, list[str]] = defaultdict(list)
        self.repeated: set[str] = set()
        self.accepted: dict[JobKey, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            self.add(entry)

    def add(self, entry: LedgerEntry) -> None:
        """Add an entry that was written after all others."""
        kind = entry["kind"]
        if kind == "begin":
            if (run := entry["run"]) in self.begins:
                self.repeated.add(run)
            else:
                self.runs[job_of(entry)].append(run)
            self.begins[run] = entry
        elif kind == "end":
            self.ends[entry["run"]] = entry
        elif kind in ENDS:
            self.accepted[job_of(entry)].append(entry)

    def successors(self, run: str | None) -> list[str]:
        """The attempts that began after this one, as the server has numbered the activations of its job."""
        if (mine := self.begins.get(run or "")) is None:
            return []
        others = [self.begins[other] for other in self.runs[job_of(mine)]]
        return [other["run"] for other in others if self.follows(other, mine)]

    def follows(self, other: LedgerEntry, mine: LedgerEntry) -> bool:
        """Whether an attempt at the same job began after another."""
        return bool(other["epoch"] > mine["epoch"] > 0)
