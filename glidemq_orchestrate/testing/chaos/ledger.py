"""The ledger: an append-only file outside the server, in which every process records its actions.

A line is written by one call with O_APPEND, so lines never mix. If a process is killed in that call, the
beginning of a line may remain, since Linux ends such a write at a page of the file. Therefore every line
begins with a line break, and an incomplete line is ignored. Times are monotonic nanoseconds, which all
processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

LedgerEntry = dict[str, Any]


class Ledger:
    """The ledger, for a process that writes.

    Args:
        path: The file; created if missing.
        role: The role of the process.
    """

    def __init__(self, path: Path, role: str) -> None:
        self.path, self.role = path, role
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, kind: str, **fields: Any) -> None:
        """Write a line; it is in the file when this returns."""
        entry = {"at": time.monotonic_ns(), "kind": kind, "role": self.role, "pid": os.getpid(), **fields}
        os.write(self._file, f"\n{json.dumps(entry, separators=(',', ':'))}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class LedgerReader:
    """Reads what other processes have written."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> Iterator[LedgerEntry]:
        """The entries since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # still being written
                    return
                self._offset += len(line)
                if (entry := _read(line)) is not None:
                    yield entry


def _read(line: bytes) -> LedgerEntry | None:
    """The entry in a line; None if the line is empty or incomplete."""
    with suppress(ValueError):
        entry: LedgerEntry = json.loads(line)
        return entry
    return None
