"""What a server that was emptied has forgotten."""

from __future__ import annotations

from pathlib import Path

from glidemq_orchestrate.testing.chaos.ledger import LedgerReader


class Forgotten:
    """What was accepted before a server was emptied, or was found to be lost where that may be."""

    def __init__(self, path: Path) -> None:
        self._reader = LedgerReader(path)
        self.accepted: set[str] = set()
        self._gone: set[str] = set()

    def flows(self) -> set[str]:
        """The flows, as the ledger knows now."""
        for entry in self._reader.new():
            if entry["kind"] == "emptied":
                self._gone |= self.accepted
            elif entry["kind"] == "gone":
                self._gone.add(entry["flow"])
            elif entry["kind"] == "submitted":
                self.accepted.add(entry["flow"])
        return self._gone
