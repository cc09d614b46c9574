"""The processes in which handlers run, and those that they start: found in the ledger."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from glidemq_orchestrate.lifeline.guard import processes
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry, LedgerReader

GRACE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 1.0

Key = tuple[int, str]
"""The id of a process, and when it was started."""


class Children:
    """The children of the workers of a round.

    Args:
        path: The ledger.
    """

    def __init__(self, path: Path) -> None:
        self._reader = LedgerReader(path)
        self._known: dict[Key, LedgerEntry] = {}
        self._orphans: dict[Key, float] = {}
        self._next, self._doomed = 0.0, 0
        self.killed = 0

    def kill_one(self, chance: random.Random, what: str = "handler") -> None:
        """SIGKILL a child of a kind, maybe an idle one, if there is any."""
        if found := [key for key, entry in self._alive().items() if entry["what"] == what]:
            self._kill(chance.choice(sorted(found)))

    def kill_next(self) -> None:
        """SIGKILL the child in which the next handler begins, as soon as it has begun."""
        self._doomed += 1

    def look(self) -> Iterator[str]:
        """Do what is due; the sentences of ``outlived``."""
        for key, entry in self._read().items():
            if self._doomed and entry["what"] == "handler":
                self._doomed -= 1
                self._kill(key)
        yield from self.outlived()

    def outlived(self) -> Iterator[str]:
        """The children that live on long after a process above them has ended, each told once."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        alive = self._alive()
        table = processes()
        orphans = {key for key, entry in alive.items() if not all(pid in table for pid in entry["above"])}
        self._orphans = {key: self._orphans.get(key, time.monotonic()) for key in orphans}
        for key, since in self._orphans.items():
            if time.monotonic() - since > max(GRACE_SECONDS, alive[key].get("grace", 0.0)):
                yield f"process {key[0]} of a {alive[key]['what']} outlives one of {alive[key]['above']}"
                del self._known[key]

    def _read(self) -> dict[Key, LedgerEntry]:
        new = [entry for entry in self._reader.new() if entry["kind"] == "child"]
        found = {(entry["child"], entry["started"]): entry for entry in new}
        self._known |= found
        return found

    def _kill(self, key: Key) -> None:
        if key in self._alive():
            os.kill(key[0], signal.SIGKILL)
            self.killed += 1

    def _alive(self) -> dict[Key, LedgerEntry]:
        self._read()
        table = processes()
        self._known = {
            (pid, started): entry
            for (pid, started), entry in self._known.items()
            if pid in table and table[pid].started == started
        }
        return dict(self._known)
