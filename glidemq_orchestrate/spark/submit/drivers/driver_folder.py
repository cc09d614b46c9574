"""The folder of a driver: by it its keeper, its worker and, after a kill, the next worker find each other.

Each driver has one, below a folder of this user on this machine; its name is the tag of the job and the epoch
of the attempt that has started it. Files in it:

* ``worker``: locked by the worker that follows the driver, ``keeper``: by its keeper. A lock ends with its
  process, however that ends.
* ``program``: the digest of what runs: a job that asks for something else now does not take it over.
* ``lines.N``, ``seen``: see ``lines``.
* ``result.json``: what the program has written there.
* ``ended``: its exit code, when it and all that it has started have ended. It appears as a whole.
"""

from __future__ import annotations

import fcntl
import math
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from glidemq_orchestrate.errors import ConfigurationError

PATIENCE_VARIABLE: Final = "GLIDEMQ_SPARK_DRIVER_PATIENCE"
PATIENCE_SECONDS: Final = 120.0
MAX_PATIENCE: Final = 86_400.0
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_BUSY_SECONDS: Final = 1.0
"""The keeper looks who holds the lock of the worker by taking it for a moment."""
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
    def made(cls, name: str, program: str) -> Self:
        """A new one, held for its worker; what was there under this name is gone."""
        path = home() / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        folder = cls(path)
        folder.hold("worker")
        (path / "program").write_text(program)
        return folder

    @classmethod
    def taken_over(cls, name: str, program: str) -> Self | None:
        """The one of this name, held from now on; None if its driver cannot be taken over.

        That is when it runs something else, another worker holds it, or its keeper has ended.
        """
        folder = cls(home() / name)
        if folder.program != program or not folder.hold("worker"):
            return None
        if folder.is_held("keeper"):
            return folder
        folder.release()
        return None

    @property
    def name(self) -> str:
        """The mark of its driver."""
        return self.path.name

    @property
    def program(self) -> str | None:
        """The digest of what runs; None if there is no such folder."""
        with suppress(OSError):
            return (self.path / "program").read_text()
        return None

    @property
    def result(self) -> Path:
        """Where the program may write its result."""
        return self.path / "result.json"

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs, or when it was never known."""
        with suppress(OSError, ValueError):
            return int((self.path / "ended").read_text())
        return None

    def end(self, code: int) -> None:
        """Tell the exit code."""
        with suppress(OSError):  # a worker has removed the folder
            other = self.path / "ended.new"
            other.write_text(str(code))
            other.replace(self.path / "ended")

    def hold(self, who: str) -> bool:
        """Take a lock until ``release``, or until this process has ended.

        Returns:
            False if another holds it, or the folder is gone.
        """
        until = time.monotonic() + _BUSY_SECONDS
        with suppress(FileNotFoundError):
            while (lock := self._locked(who)) is None and time.monotonic() < until:
                time.sleep(0.05)
            if lock is not None:
                self._held[who] = lock
        return who in self._held

    def is_held(self, who: str) -> bool:
        """Whether a process holds a lock; also while another one looks."""
        with suppress(FileNotFoundError):
            if (lock := self._locked(who)) is None:
                return True
            os.close(lock)
        return False

    def release(self) -> None:
        """Give back what this object holds. Repeatable."""
        while self._held:
            os.close(self._held.popitem()[1])

    def remove(self) -> None:
        """Remove it, and give back what this object holds. Repeatable."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def _locked(self, who: str) -> int | None:
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
        ConfigurationError: Its place is another user's, or open to others.
    """
    path = Path(tempfile.gettempdir(), f"glidemq-drivers-{os.geteuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigurationError(f"{path} is not a folder of this user alone: remove it, or set TMPDIR")
    return path


def machine() -> str:
    """What tells this machine from others: workers with the same can take over each other's drivers."""
    path = home() / "machine"
    if not path.exists():
        other = path.with_name(f".machine.{secrets.token_hex(4)}")
        other.write_text(secrets.token_hex(8))
        with suppress(FileExistsError):
            os.link(other, path)
        other.unlink()
    return path.read_text()


def sweep() -> None:
    """Remove the folders that no process needs any more. Harmless beside other workers. Repeatable."""
    for folder in map(DriverFolder, _folders()):
        with suppress(OSError):
            is_young = time.time() - folder.path.stat().st_mtime < _YOUNG_SECONDS
            if not is_young and not folder.is_held("keeper") and not folder.is_held("worker"):
                folder.remove()


def remove(tag: str) -> None:
    """Remove the folders of the drivers with a tag, which have ended."""
    for path in _folders():
        if path.name.rpartition("-")[0] == tag:
            DriverFolder(path).remove()


def _folders() -> Iterator[Path]:
    return (path for path in home().iterdir() if path.is_dir())


def patience(environment: Mapping[str, str] | None = None) -> float:
    """How many seconds a driver runs on without a worker: ``GLIDEMQ_SPARK_DRIVER_PATIENCE``, else 120.

    Raises:
        ConfigurationError: It is no number of seconds from 0 to a day.
    """
    text = (os.environ if environment is None else environment).get(PATIENCE_VARIABLE) or PATIENCE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_PATIENCE:
        raise ConfigurationError(
            f"{PATIENCE_VARIABLE} must be a number of seconds, at most {MAX_PATIENCE:.0f}"
        )
    return seconds
