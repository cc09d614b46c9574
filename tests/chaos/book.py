"""The ledger of a round, by what is asked of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from tests.chaos.unfenced import Unfenced

CLOCKS_MS: Final = 500
"""By how much the server's time, as a worker knows it, may be wrong."""
STRIKES: Final = frozenset({"ProcessExpired", "SessionLost", "DriverFailed"})
"""Errors of attempts that have lost their process, their session or their driver."""
NS_IN_MS: Final = 1_000_000


class Book:
    """The ledger of a round, by what is asked of it."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        by_kind: dict[str, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            by_kind[entry["kind"]].append(entry)
        self.begins = {entry["run"]: entry for entry in by_kind["begin"]}
        self.ends = {entry["run"]: entry for entry in by_kind["end"]}
        self._errors: dict[tuple[str, str], list[str]] = defaultdict(list)
        for entry in self.ends.values():
            if entry["error"]:
                self._errors[entry["queue"], entry["job"]].append(entry["error"])
        times = Counter(entry["run"] for entry in by_kind["begin"])
        self._runs: dict[tuple[str, str], list[str]] = defaultdict(list)
        for run, entry in self.begins.items():
            self._runs[entry["queue"], entry["job"]].append(run)
        since = [entry["activated"] - entry["at"] // NS_IN_MS for entry in self.begins.values()]
        self._epoch_ms = int(median(since)) if since else 0
        self.doubles = [run for run, count in times.items() if count > 1]
        self.accepted = Counter((entry["queue"], entry["job"]) for entry in by_kind["completed"])
        self.steered = {entry["flow"]: entry for entry in by_kind["steered"]}
        self.waited = {entry["flow"]: entry["state"] for entry in by_kind["waited"]}
        self.submitted = {entry["flow"] for entry in by_kind["submitted"]}
        self.added = [(entry["queue"], entry["job"]) for entry in by_kind["added"]]
        self.emptied = [entry["at"] for entry in by_kind["emptied"]]
        self.forgotten = {entry["flow"] for entry in by_kind["submitted"] if self._is_forgotten(entry)}
        self.forgotten |= {entry["job"] for entry in by_kind["added"] if self._is_forgotten(entry)}
        self.unfenced = Unfenced(by_kind["begin"], [*by_kind["reporting"], *by_kind["reported"]])
        self._well: dict[tuple[str, str], set[str]] = defaultdict(set)
        for run, entry in self.ends.items():
            if not entry["error"]:
                self._well[entry["queue"], entry["job"]].add(run)
        self.slots: dict[str, set[str]] = defaultdict(set)
        reported = [entry for entry in by_kind["reported"] if not entry["error"]]
        for entry in (*by_kind["completed"], *reported):
            # What was not accepted may be lost by a failover, and fired again.
            if slot := self.begins.get(entry["run"], {}).get("slot"):
                is_job = (entry["queue"], entry["job"]) in self.unfenced
                self.slots[slot].add(entry["job"] if is_job else entry["run"])

    def is_struck(self, queue: str, job_id: str, attempts: int) -> bool:
        """Whether a job may have used up its attempts because processes of its handler were killed."""
        errors = self._errors[queue, job_id]
        return not STRIKES.isdisjoint(errors) and len(errors) >= attempts

    def results_of(self, queue: str, job_id: str, accepted: str | None) -> set[str | None]:
        """The runs of a job of which a dependent may have the result: the accepted one.

        Of an unfenced job, of any that has ended well.
        """
        any_run = self._well[queue, job_id] if (queue, job_id) in self.unfenced else ()
        return {accepted, *any_run}

    def successors(self, queue: str, job_id: str, run: str) -> list[str]:
        """The runs of a job that had taken it over from this one: then its result must not be accepted.

        The server numbers the activations of our workers. Those of Node workers have a time only, which the
        worker read before it asked: where it, or the server, was stopped in between, seconds lie between that
        and the activation, and after that the run began. So beside a Node worker another has followed for
        certain when its time of activation is later than this one's begin, as after a lost lease.
        """
        if (mine := self.begins.get(run)) is None:
            return []
        begun = mine["at"] // NS_IN_MS + self._epoch_ms + CLOCKS_MS
        others = [self.begins[other] for other in self._runs[queue, job_id]]
        return [
            it["run"]
            for it in others
            if (
                it["epoch"] > mine["epoch"]
                if "epoch" in it and "epoch" in mine
                else it["activated"] > begun and it["at"] > mine["at"]
            )
        ]

    def repeated_epochs(self) -> list[str]:
        """The jobs of which two runs had the same number of activation."""
        found = []
        for (_, job_id), runs in self._runs.items():
            epochs = [self.begins[run]["epoch"] for run in runs if "epoch" in self.begins[run]]
            found += [job_id] if len(set(epochs)) < len(epochs) else []
        return found

    def _is_forgotten(self, entry: LedgerEntry) -> bool:
        return bool(self.emptied) and entry["at"] < self.emptied[-1]
