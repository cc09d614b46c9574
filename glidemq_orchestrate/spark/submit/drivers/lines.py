"""The output of a driver, in files of its folder: the keeper writes them, a worker reads and removes them.

A file ends at about ``FILE_BYTES``; of unread files the newest ``MAX_FILES`` are kept. Each line begins with
a letter: ``L`` for the log (standard error), ``O`` for the output. The file ``seen`` stores how far a worker
has read; it is at most ``NOTE_SECONDS`` old, so after a kill up to that much is read again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

FILE_BYTES: Final = 1 << 20
MAX_FILES: Final = 64
NOTE_SECONDS: Final = 1.0
_PREFIX: Final = "lines."


class Line(NamedTuple):
    """One line, without its end."""

    text: bytes
    is_log: bool


class Writer:
    """Writes the lines of a driver. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number, self._size = folder, 0, 0
        self._lock = threading.Lock()
        self._file: IO[bytes] = _path(folder, 0).open("xb", buffering=0)

    def write(self, text: bytes, *, is_log: bool) -> None:
        """Write a line; it is lost if the disk is full."""
        line = b"%c%s\n" % (b"L" if is_log else b"O", text)
        with (
            self._lock,
            suppress(OSError, ValueError),
        ):  # the previous file is closed, and there is no next one
            self._size += self._file.write(line) or 0
            if self._size >= FILE_BYTES:
                self._next()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _next(self) -> None:
        self._file.close()
        self._number, self._size = self._number + 1, 0
        _path(self._folder, self._number - MAX_FILES).unlink(missing_ok=True)
        self._file = _path(self._folder, self._number).open("xb", buffering=0)


class LineReader:
    """Reads the lines, from where the last reader stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number, self._at = 0, 0
        with suppress(OSError, ValueError, TypeError):
            number, at = json.loads((folder / "seen").read_text())
            self._number, self._at = int(number), int(at)
        self._noted = time.monotonic()

    def earlier(self) -> Iterator[Line]:
        """The lines that were read before: the previous file, and the read part of the current one."""
        for number, end in ((self._number - 1, -1), (self._number, self._at)):
            with suppress(OSError), _path(self._folder, number).open("rb") as file:
                yield from _lines(file.read(end))

    def has_new(self) -> bool:
        """Whether there is unread output."""
        with suppress(FileNotFoundError):
            if _path(self._folder, self._number).stat().st_size > self._at:
                return True
        return self._following() is not None

    def new(self) -> Iterator[Line]:
        """The new complete lines; a line in between reports how much was dropped."""
        while True:
            following = self._following()  # checked first: then the current file is complete
            data = self._read()
            self._at += (end := data.rfind(b"\n") + 1)
            yield from _lines(data[:end])
            if following is None:
                break
            if lost := following - self._number - 1:
                size = max(1, lost * FILE_BYTES >> 20)
                yield Line(b"about %d MiB of lines before the next one were dropped" % size, False)
            self._forward(following)
        if time.monotonic() - self._noted >= NOTE_SECONDS:
            self.note()

    def note(self) -> None:
        """Store how far this has read, for the next reader."""
        self._noted = time.monotonic()
        with suppress(OSError):
            other = self._folder / "seen.new"
            other.write_text(json.dumps([self._number, self._at]))
            other.replace(self._folder / "seen")

    def _read(self) -> bytes:
        try:
            with _path(self._folder, self._number).open("rb") as file:
                file.seek(self._at)
                return file.read()
        except FileNotFoundError:  # the file was dropped
            return b""

    def _following(self) -> int | None:
        """The number of the next existing file."""
        there = (int(path.name.removeprefix(_PREFIX)) for path in self._folder.glob(f"{_PREFIX}*"))
        return min((number for number in there if number > self._number), default=None)

    def _forward(self, number: int) -> None:
        """Begin the next file, and remove the one before the current one."""
        _path(self._folder, self._number - 1).unlink(missing_ok=True)
        self._number, self._at = number, 0
        self.note()


def _path(folder: Path, number: int) -> Path:
    return folder / f"{_PREFIX}{number}"


def _lines(data: bytes) -> Iterator[Line]:
    for line in data.split(b"\n")[:-1]:
        yield Line(line[1:], line[:1] == b"L")
