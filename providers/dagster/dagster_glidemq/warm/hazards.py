"""Detects what the import of the code has left in the process that a forked child cannot use.

A thread does not exist in the child: a wait for it, or for a lock that it holds, never ends. An open
connection, pipe or file is shared by all children: one child reads the reply to another, or continues where
another has stopped. Objects that are removed at process exit, such as temporary folders, disappear with the
first child. And random number generators produce the same numbers in all children.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import stat
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

MAX_NAMED: Final = 6
_TASKS: Final = Path("/proc/self/task")
_DESCRIPTORS: Final = "/dev/fd"
_OF_FORKS: Final = frozenset({"jemalloc_bg_thd"})
"""Threads that their library restarts in a child."""


class Hazards:
    """Finds threads, connections and open files that did not exist before the import.

    Threads such as those of OpenBLAS, which end before a fork and restart after it, are harmless.
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._descriptors: set[tuple[int, int]] = set()
        self._finalizers: set[Any] = set()

    def note(self) -> None:
        """Record what exists now, and so does not come from the code."""
        self._threads = set(_threads())
        self._descriptors = {key for key, _ in _shared()}
        self._finalizers = set(_finalizers())

    @contextmanager
    def passing_over(self) -> Iterator[None]:
        """Ignore what appears while the block runs: it does not come from the code either."""
        threads, shared, finalizers = set(_threads()), {key for key, _ in _shared()}, set(_finalizers())
        yield
        self._threads |= set(_threads()) - threads
        self._descriptors |= {key for key, _ in _shared()} - shared
        self._finalizers |= set(_finalizers()) - finalizers

    def found(self, modules: Iterable[ModuleType] = (), at_exit: Sequence[str] = ()) -> str:
        """A description of the hazards; empty if forking is harmless.

        Args:
            modules: The modules of the code, to search for random number generators.
            at_exit: The exit functions that the code has registered.
        """
        if set(_threads()) - self._threads:
            _fork_for_nothing()  # threads with fork handlers end before a fork
        threads = [name for number, name in _threads().items() if number not in self._threads]
        shared = [text for key, text in _shared() if key not in self._descriptors]
        ends = [text for key, text in _finalizers().items() if key not in self._finalizers]
        found = (
            _listed("the threads", threads),
            _listed("what is open:", shared),
            _listed("what goes when a process ends:", ends),
            _listed("for the end of a process", list(at_exit)),
            _listed("random numbers of", _generators(modules)),
        )
        return " and ".join(filter(None, found))


def _threads() -> dict[int, str]:
    """The threads of this process other than the main one, also native ones: number and name."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().native_id
    found: dict[int, str] = {}
    if not _TASKS.exists():
        count = _counted_by_ps()
        found = {number: name for number, name in known.items() if number is not None and number != main}
        return found | {-number: "a native one" for number in range(1, count - len(found))}
    for task in _TASKS.iterdir():
        with suppress(OSError):  # it has ended
            number = int(task.name)
            name = known.get(number) or _named((task / "comm").read_text().strip())
            if number not in (os.getpid(), main) and name not in _OF_FORKS:
                found[number] = name
    return found


def _named(name: str) -> str:
    """The name of a native thread; many only have the name of their process."""
    return "a native one" if name.startswith("python") else name


def _counted_by_ps() -> int:
    """The number of threads of this process without ``/proc``: from ``ps`` on macOS."""
    done = subprocess.run(["ps", "-M", str(os.getpid())], capture_output=True, text=True, check=False)  # noqa: S603, S607
    return len(done.stdout.splitlines()) - 1


def _shared() -> Iterator[tuple[tuple[int, int], str]]:
    """The open connections and files that a child would share: what identifies each, and their names."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208  no Path of it
        with suppress(OSError, ValueError):  # the descriptor of this listing
            number = int(name)
            found = os.fstat(number)
            mode = fcntl.fcntl(number, fcntl.F_GETFL)
            if stat.S_ISSOCK(found.st_mode) and (text := _connection(number)):
                yield (number, found.st_ino), text
            elif stat.S_ISFIFO(found.st_mode):
                yield (number, found.st_ino), "a pipe"
            elif stat.S_ISREG(found.st_mode) and not mode & os.O_APPEND:
                yield (number, found.st_ino), _path(number)


def _finalizers() -> dict[Any, str]:
    """The Python finalizers that run at the end of the process, such as those of temporary folders."""
    registered: Any = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001  no public list
    found = {one: one.peek() for one in list(registered) if one.atexit}
    return {one: _of_finalizer(seen[0]) for one, seen in found.items() if seen is not None}


def _of_finalizer(owner: Any) -> str:
    name = getattr(owner, "name", "")
    return f"{type(owner).__name__} {name}" if isinstance(name, str) and name else type(owner).__name__


def _generators(modules: Iterable[ModuleType]) -> list[str]:
    """The random number generators at module level."""
    numpy: Any = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (random.Random,)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in list(vars(module).items())
        if isinstance(value, kinds) and not isinstance(value, random.SystemRandom)
    ]


def _connection(number: int) -> str:
    """The peer of a socket; empty for a datagram socket, which children may share."""
    with socket.socket(fileno=os.dup(number)) as sock:
        if sock.type == socket.SOCK_DGRAM:
            return ""
        try:
            peer = sock.getpeername()
        except OSError:
            return "a socket without a connection"
    return f"a connection to {peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local connection"


def _path(number: int) -> str:
    try:
        return f"the file {Path(f'{_DESCRIPTORS}/{number}').readlink()}"
    except OSError:
        return "a file"


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{what} {', '.join(sorted(names)[:MAX_NAMED])}{more}"


def _fork_for_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
