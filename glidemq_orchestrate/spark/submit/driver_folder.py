"""The folder of a driver, shared by its keeper, its worker and, after a kill, the next worker.

Each driver has one, below a folder of this user on this machine. Its name is the tag of the job and the epoch
of the attempt that has started it. Files in it:

* ``worker``: locked by the worker that follows the driver; ``keeper``: locked by its keeper. A lock always
  ends with its process.
* ``program``: the digest of what runs: a job whose program has changed does not take the driver over.
* ``lines.N``: the output of the driver; the keeper writes it, a worker reads and removes it. A file ends at
  about ``FILE_BYTES``; of unread files the newest ``MAX_FILES`` are kept. Each line begins with a letter:
  ``L`` for the log (standard error), ``O`` for the output.
* ``seen``: how far a worker has read; at most ``SAVE_SECONDS`` old, so after a kill up to that much is read
  again.
* ``result.json``: what the program has written there.
* ``ended``: its exit code, once it and everything that it has started have ended; written atomically.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import setting_duration

PATIENCE_VARIABLE: Final = "GLIDEMQ_SPARK_DRIVER_PATIENCE"
PATIENCE: Final = timedelta(minutes=2)
MAX_PATIENCE: Final = timedelta(days=1)
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_BUSY_SECONDS: Final = 1.0
"""The keeper takes the lock of the worker for a moment to check whether it is held."""
_YOUNG_SECONDS: Final = 60.0


class DriverFolder:
    """See the module.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: dict[str, int] = {}

    @classmethod
    def create(cls, name: str, program: str) -> Self:
        """Make a folder, locked for its worker; an earlier one of this name is removed."""
        path = home() / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        folder = cls(path)
        folder.lock("worker")
        (path / "program").write_text(program)
        return folder

    @classmethod
    def take_over(cls, name: str, program: str) -> Self | None:
        """Lock the folder of this name; None if its driver cannot be taken over.

        It cannot if it runs another program, another worker holds it, or its keeper has ended.
        """
        folder = cls(home() / name)
        if folder.program != program or not folder.lock("worker"):
            return None
        if folder.is_locked("keeper"):
            return folder
        folder.release()
        return None

    @property
    def name(self) -> str:
        """The mark of its driver."""
        return self.path.name

    @property
    def program(self) -> str | None:
        """The digest of the program that runs; None if the folder does not exist."""
        with suppress(OSError):
            return (self.path / "program").read_text()
        return None

    @property
    def result(self) -> Path:
        """Where the program may write its result."""
        return self.path / "result.json"

    @property
    def code(self) -> int | None:
        """The exit code; None while the driver runs, or if it is unknown."""
        with suppress(OSError, ValueError):
            return int((self.path / "ended").read_text())
        return None

    def end(self, code: int) -> None:
        """Store the exit code."""
        with suppress(OSError):  # a worker has removed the folder
            other = self.path / "ended.new"
            other.write_text(str(code))
            other.replace(self.path / "ended")

    def lock(self, who: str) -> bool:
        """Take a lock until ``release``, or until this process has ended.

        Returns:
            False if another process holds it, or the folder is gone.
        """
        until = time.monotonic() + _BUSY_SECONDS
        with suppress(FileNotFoundError):
            while (held := self._try_lock(who)) is None and time.monotonic() < until:
                time.sleep(0.05)
            if held is not None:
                self._held[who] = held
        return who in self._held

    def is_locked(self, who: str) -> bool:
        """Whether a process holds a lock; may also be true while another process checks it."""
        with suppress(FileNotFoundError):
            if (lock := self._try_lock(who)) is None:
                return True
            os.close(lock)
        return False

    def release(self) -> None:
        """Release the locks of this object. Repeatable."""
        while self._held:
            os.close(self._held.popitem()[1])

    def remove(self) -> None:
        """Remove the folder, and release the locks of this object. Repeatable."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def _try_lock(self, who: str) -> int | None:
        lock = os.open(self.path / who, _FLAGS, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock


def home() -> Path:
    """The folder of this user on this machine.

    Raises:
        ConfigurationError: The path belongs to another user, or others can access it.
    """
    path = Path(tempfile.gettempdir(), f"glidemq-drivers-{os.geteuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{path} is not a private folder of this user. Fix: remove it, or set TMPDIR"
        )
    return path


def machine() -> str:
    """The id of this machine: workers with the same id can take over each other's drivers."""
    path = home() / "machine"
    if not path.exists():
        other = path.with_name(f".machine.{secrets.token_hex(4)}")
        other.write_text(secrets.token_hex(8))
        with suppress(FileExistsError):
            os.link(other, path)
        other.unlink()
    return path.read_text()


def sweep() -> None:
    """Remove the folders that no process needs. Safe beside other workers. Repeatable."""
    for folder in map(DriverFolder, _folders()):
        with suppress(OSError):
            is_young = time.time() - folder.path.stat().st_mtime < _YOUNG_SECONDS
            if not is_young and not folder.is_locked("keeper") and not folder.is_locked("worker"):
                folder.remove()


def remove(tag: str) -> None:
    """Remove the folders of the drivers with a tag, which have ended."""
    for path in _folders():
        if path.name.rpartition("-")[0] == tag:
            DriverFolder(path).remove()


def _folders() -> Iterator[Path]:
    return (path for path in home().iterdir() if path.is_dir())


def patience(environment: Mapping[str, str] = os.environ) -> timedelta:
    """How long a driver continues without a worker: ``GLIDEMQ_SPARK_DRIVER_PATIENCE``, default two minutes.

    Raises:
        ConfigurationError: It is not a duration of at most a day.
    """
    text = environment.get(PATIENCE_VARIABLE) or PATIENCE
    return setting_duration(PATIENCE_VARIABLE, text, max_=MAX_PATIENCE)


FILE_BYTES: Final = 1 << 20
MAX_FILES: Final = 64
SAVE_SECONDS: Final = 1.0
_PREFIX: Final = "lines."


class Line(NamedTuple):
    """One line, without its end."""

    text: bytes
    is_log: bool


class LineWriter:
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
        self._saved_at = time.monotonic()

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
            self._advance(following)
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save_position()

    def save_position(self) -> None:
        """Store how far this has read, for the next reader."""
        self._saved_at = time.monotonic()
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

    def _advance(self, number: int) -> None:
        """Begin the next file, and remove the one before the current one."""
        _path(self._folder, self._number - 1).unlink(missing_ok=True)
        self._number, self._at = number, 0
        self.save_position()


def _path(folder: Path, number: int) -> Path:
    return folder / f"{_PREFIX}{number}"


def _lines(data: bytes) -> Iterator[Line]:
    for line in data.split(b"\n")[:-1]:
        yield Line(line[1:], line[:1] == b"L")
