"""The ledger of a round, by what is asked of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.testing.chaos.book import Book, JobKey, job_of
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from tests.chaos.unfenced import Unfenced

CLOCKS_MS: Final = 500
"""By how much the server's time, as a worker knows it, may be wrong."""
STRIKES: Final = frozenset({"ProcessExpired", "SessionLost", "DriverFailed", "DeadLetter", "RemoteVanished"})
"""Errors of attempts that have lost their process, session or driver, or their job behind the bridge."""
FREE: Final = frozenset({"CancelledError", "RetryLater", "LeaseLost"})
"""Errors that cost no attempt."""
NS_IN_MS: Final = 1_000_000


def place_of(node: NodeStatus) -> JobKey:
    """The job of a node; a shard counts as its queue."""
    return split_shard(node.queue)[0], node.job_id


def generation_of(job_id: str) -> tuple[str, str]:
    """The flow and the node of a job of any generation."""
    stored, _, node = job_id.partition("~")
    return stored.partition("@")[0], node


class RoundBook(Book):
    """The ledger of a round: also what was done from outside, and what Node workers and faults excuse."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        super().__init__(entries)
        by_kind: dict[str, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            by_kind[entry["kind"]].append(entry)
        since = [entry["activated"] - entry["at"] // NS_IN_MS for entry in self.begins.values()]
        self._epoch_ms = int(median(since)) if since else 0
        self.steered = {entry["flow"]: entry for entry in by_kind["steered"]}
        self.waited = {entry["flow"]: entry["state"] for entry in by_kind["waited"]}
        self.submitted = {entry["flow"] for entry in by_kind["submitted"]}
        self.added = [job_of(entry) for entry in by_kind["added"]]
        self.emptied = [entry["at"] for entry in by_kind["emptied"]]
        self.forgotten = {entry["flow"] for entry in by_kind["submitted"] if self._is_forgotten(entry)}
        self.forgotten |= {entry["job"] for entry in by_kind["added"] if self._is_forgotten(entry)}
        self.unfenced = Unfenced(by_kind["begin"], [*by_kind["reporting"], *by_kind["reported"]])
        self._errors: dict[JobKey, list[str]] = defaultdict(list)
        self._well: dict[JobKey, set[str]] = defaultdict(set)
        for run, entry in self.ends.items():
            if entry["error"]:
                self._errors[job_of(entry)].append(entry["error"])
            else:
                self._well[job_of(entry)].add(run)
        self.slots: dict[str, set[str]] = defaultdict(set)
        reported = [entry for entry in by_kind["reported"] if not entry["error"]]
        for entry in (*by_kind["completed"], *reported):
            # What was not accepted may be lost by a failover, and fired again.
            if slot := self.begins.get(entry["run"], {}).get("slot"):
                self.slots[slot].add(entry["job"] if job_of(entry) in self.unfenced else entry["run"])

    def completed(self, job: JobKey) -> list[LedgerEntry]:
        """The results of a job that the server has accepted."""
        return [entry for entry in self.accepted[job] if entry["kind"] == "completed"]

    def is_struck(self, job: JobKey, attempts: int) -> bool:
        """Whether a job may have used up its attempts because processes of its handler were killed."""
        errors = self._errors[job]
        return not STRIKES.isdisjoint(errors) and sum(error not in FREE for error in errors) >= attempts

    def results_of(self, job: JobKey, accepted: str | None) -> set[str | None]:
        """The runs of a job of which a dependent may have the result: the accepted one.

        Of an unfenced job, of any that has ended well.
        """
        return {accepted, *(self._well[job] if job in self.unfenced else ())}

    def follows(self, other: LedgerEntry, mine: LedgerEntry) -> bool:
        """Whether an attempt has taken a job over from another: then that one's result must not be accepted.

        The server numbers the activations of our workers. Those of Node workers have a time only, which the
        worker read before it asked: where it, or the server, was stopped in between, seconds lie between that
        and the activation, and after that the run began. So beside a Node worker another has followed for
        certain when its time of activation is later than this one's begin, as after a lost lease.
        """
        if "epoch" in other and "epoch" in mine:
            return super().follows(other, mine)
        begun = mine["at"] // NS_IN_MS + self._epoch_ms + CLOCKS_MS
        return bool(other["activated"] > begun and other["at"] > mine["at"])

    def _is_forgotten(self, entry: LedgerEntry) -> bool:
        return bool(self.emptied) and entry["at"] < self.emptied[-1]
