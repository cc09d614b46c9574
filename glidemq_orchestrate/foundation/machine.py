"""What this process may use of its machine: cores and memory, also where a cgroup allows less."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


def cores() -> int:
    """The number of cores that this process may use: by its affinity, and by the CPU quota of its cgroup.

    Part of a core counts as a whole one.
    """
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([may_use, *(math.ceil(quota) for quota in _quotas())]))


def available_memory() -> int | None:
    """The bytes that new processes can use, on the machine and within the cgroup; None if unknown."""
    return min([*_unused_on_machine(), *_unused_in_cgroups()], default=None)


def resident_memory() -> int:
    """The bytes of memory that this process uses (RSS); where ``/proc`` is missing, the most it has used."""
    with suppress(OSError):
        return int((PROC / "self/statm").read_text().split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _quotas() -> Iterator[float]:
    """The CPU quotas of the cgroups that this process is in, in cores."""
    for folder in _folders(""):
        if len(words := _words(folder / "cpu.max")) == 2 and words[0].isdecimal():
            yield int(words[0]) / int(words[1])
    for folder in _folders("cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period:
            yield quota / period


def _unused_on_machine() -> Iterator[int]:
    with suppress(OSError):
        for line in (PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _unused_in_cgroups() -> Iterator[int]:
    """What each cgroup with a limit has left. Cached files that were not read lately count as unused."""
    names = (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for controller, limit_file, usage_file, cached in names:
        for folder in _folders(controller):
            limit, usage = _number(folder / limit_file), _number(folder / usage_file)
            if limit is not None and usage is not None:
                words = _words(folder / "memory.stat")
                cache = int(words[words.index(cached) + 1]) if cached in words else 0
                yield max(limit - usage + cache, 0)


def _folders(controller: str) -> Iterator[Path]:
    """The cgroups of this process, from its own to the root: of version 2, or a controller of version 1."""
    with suppress(OSError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                root = CGROUPS / controller
                own = root / path.lstrip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # there is no such limit, or the file is not visible in this container
        return []


def _number(file: Path) -> int | None:
    """The number in a file; None if there is none, as in ``max`` and -1."""
    words = _words(file)
    return int(words[0]) if words and words[0].isdecimal() else None
