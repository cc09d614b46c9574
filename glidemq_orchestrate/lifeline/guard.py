"""The guard of a process: a program, started by ``lifeline``, that ends the processes of a dead owner.

It reads commands from its standard input, which only the owner holds open: ``+ PID SECONDS`` (watch it, and
allow this long between SIGTERM and SIGKILL), ``- PID`` (forget it), ``.`` (the owner exits normally). End of
input means that the owner has ended. The guard then ends each watched process, its group and session, their
descendants, and every process with the mark in its environment. It never ends an ancestor of the owner. It
imports nothing of this package, to start fast.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MARK: Final = re.compile(r"GLIDEMQ_OWNER_\d+_[0-9a-f]{16}")
POLL_SECONDS: Final = 0.05
QUIET_SECONDS: Final = 2.0
GIVE_UP_SECONDS: Final = 60.0
_PROC: Final = Path("/proc")


class ProcessEntry(NamedTuple):
    """A process of this machine."""

    parent: int
    group: int
    session: int
    started: str


class Watched(NamedTuple):
    """A process to end; ``started`` distinguishes it from a later process with the same id."""

    started: str
    grace: float


def main(mark: str, owner: int) -> None:
    """Wait until the owner has ended, then end its remaining processes."""
    if MARK.fullmatch(mark) is None:  # a shorter mark could match unrelated processes
        sys.exit(f"{mark!r} is not a mark")
    spared = {0, 1, os.getpid(), *_above(owner)}
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # the owner handles it, and then sends the processes to forget
    watched: dict[int, Watched] = {}
    quiet = QUIET_SECONDS
    for line in sys.stdin.buffer:
        if line == b".\n":
            quiet = 0.0
            continue
        what, number, *rest = line.split()
        if what == b"+":
            entry = processes().get(int(number))
            if entry is not None and int(number) not in spared:
                watched[int(number)] = Watched(entry.started, float(rest[0]))
        else:
            watched.pop(int(number), None)
    end(watched, f"{mark}=1".encode(), spared, quiet)


def end(watched: Mapping[int, Watched], mark: bytes, spared: AbstractSet[int], quiet: float) -> None:
    """End the processes; returns after ``quiet`` seconds without new ones, or after ``GIVE_UP_SECONDS``.

    A process that a killed owner was about to start, between fork and exec, has no mark yet.
    """
    begun, ours, terminated = time.monotonic(), dict(watched), False
    last = begun
    while (now := time.monotonic()) - begun < GIVE_UP_SECONDS:
        found, spent = left(ours, mark, spared), now - begun
        if not found and now - last >= quiet:
            return
        for pid, entry in found.items():
            last = now
            # Remembered once found: after its parent has ended, a search may no longer find it.
            grace = ours.setdefault(pid, Watched(entry.started, 0.0)).grace
            if spent >= grace:
                _send(pid, signal.SIGKILL)
            elif not terminated:
                _send(pid, signal.SIGTERM)
        terminated = True
        time.sleep(POLL_SECONDS)


def left(watched: Mapping[int, Watched], mark: bytes, spared: AbstractSet[int]) -> dict[int, ProcessEntry]:
    """The processes that must end and are still alive."""
    table = {pid: entry for pid, entry in processes().items() if pid not in spared}
    roots = {pid for pid, what in watched.items() if pid not in table or table[pid].started == what.started}
    found = {
        pid
        for pid, entry in table.items()
        if pid in roots or {entry.group, entry.session} & roots or _is_marked(pid, mark)
    }
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    todo = list(found)
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(below)
        todo.extend(below)
    return {pid: table[pid] for pid in found}


def _above(owner: int) -> set[int]:
    """The owner and its ancestors."""
    table, found = processes(), set[int]()
    while owner not in found:
        found.add(owner)
        owner = table[owner].parent if owner in table else 1
    return found


def processes() -> dict[int, ProcessEntry]:
    """All processes that have not ended, by process id."""
    return _from_proc() if (_PROC / "self" / "stat").exists() else _from_ps()


def _from_proc() -> dict[int, ProcessEntry]:
    table = {}
    for place in _PROC.iterdir():
        with suppress(OSError, ValueError):  # it has just ended, or is not a process
            pid = int(place.name)
            # The name of the program, in brackets, may contain any character.
            fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in ("Z", "X"):
                table[pid] = ProcessEntry(int(fields[1]), int(fields[2]), int(fields[3]), fields[19])
    return table


def _from_ps() -> dict[int, ProcessEntry]:
    """The same without ``/proc``, by POSIX ``ps``, which does not report sessions."""
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,state=,lstart="]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  fixed arguments
    table = {}
    for line in output.splitlines():
        pid, parent, group, state, started = line.split(None, 4)
        if not state.startswith("Z"):
            table[int(pid)] = ProcessEntry(int(parent), int(group), 0, started)
    return table


def _is_marked(pid: int, mark: bytes) -> bool:
    with suppress(OSError):  # it has ended, or belongs to another user
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, number)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
