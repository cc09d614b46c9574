"""The ledger: an append-only file outside of the server; every process of a round writes there what it does.

A line is written by one call with O_APPEND: a kill never leaves half a line, and lines never mix. Times are
monotonic nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class Ledger:
    """One process's way to the ledger.

    Args:
        path: The file; created if missing.
        role: Who writes.
    """

    def __init__(self, path: Path, role: str) -> None:
        self.path, self.role = path, role
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, kind: str, **fields: Any) -> None:
        """Write a line; it is there when this returns."""
        entry = {"at": time.monotonic_ns(), "kind": kind, "role": self.role, "pid": os.getpid(), **fields}
        os.write(self._file, json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Reader:
    """Reads what others have written since the last time."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> Iterator[Entry]:
        """The entries that were not read yet."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # still being written
                    return
                self._offset += len(line)
                yield json.loads(line)


class Forgotten:
    """What was accepted before a server was emptied, or was found to be lost where that may be."""

    def __init__(self, path: Path) -> None:
        self._reader = Reader(path)
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
