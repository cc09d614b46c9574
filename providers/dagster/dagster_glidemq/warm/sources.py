"""Records the sources of the imported code, and detects later changes.

Python calls an audit hook for every file that it opens and every folder that it lists, for any library.
``os.stat`` checks whether a path exists; it is replaced while code is imported. Reads by native code are not
seen; libraries that do so start threads, and such a location is not imported in the process that forks
(``hazards``). Data that an import gets from a server or another program cannot be compared: such code is
valid for one run only.
"""

from __future__ import annotations

import atexit
import os
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final

_PACKAGES: Final = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_INSTALLED: Final = tuple(
    os.path.join(place, "")  # noqa: PTH118  compared as texts, a thousand at once
    for place in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *_PACKAGES)
)
_NOT_OF_THE_CODE: Final = (*_INSTALLED, "/proc/", "/sys/", "/dev/")
_CONFIG: Final = (".cfg", ".env", ".ini", ".json", ".py", ".sql", ".toml", ".yaml", ".yml")
_LISTS: Final = frozenset({"os.listdir", "os.scandir"})
_ELSEWHERE: Final = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
    | {"socket.connect", "subprocess.Popen"}
)
_IMPORTS: Final = "<frozen importlib._bootstrap_external>"

_register: Final = atexit.register
_stat: Final = os.stat

Stamp = list[int] | None


class Sources:
    """The files and folders that were read while recording. One per process, as hooks cannot be removed.

    Attributes:
        is_certain: The definitions depend on files only.
        at_exit: The exit functions that the code has registered.
    """

    def __init__(self) -> None:
        self.is_certain = True
        self.at_exit: list[str] = []
        self._files: dict[str, Stamp] = {}
        self._folders: dict[tuple[str, str], list[str] | None] = {}
        self._there: dict[str, bool] = {}  # paths whose existence was checked
        self._asked: set[str] = set()
        self._written: set[str] = set()
        self._is_on = False
        self._inside = threading.local()
        for folder in _PACKAGES:  # an upgrade of a package renames its metadata
            self._files[folder] = _stamp(folder)
        sys.addaudithook(self._hear)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the block reads, also in other threads; then the imported modules."""
        self._is_on = True
        with (
            _in_place_of(atexit, "register", self._registered),
            _in_place_of(os, "stat", self._recorded_stat),
        ):
            try:
                yield
            finally:
                self._is_on = False
                for path in self._asked - self._files.keys():
                    self._there[path] = _is_there(path)
                self._asked.clear()
                self._note_what_was_written()

    def _note_what_was_written(self) -> None:
        """Record the modules, and again the files that the import itself has written, such as a cache."""
        for file in self._written & self._files.keys():
            self._files[file] = _stamp(file)
        self._written.clear()
        self._note_modules()

    def note(self, file: str) -> None:
        """Record the current stamp of a file, unless it is already recorded."""
        if file not in self._files:
            self._files[file] = _stamp(file)
            if file.endswith(_CONFIG):  # another one beside it may be read too
                self._note_folder(os.path.dirname(file), "configs")  # noqa: PTH120  as above

    def have_changed(self, *, for_another_run: bool) -> bool:
        """Whether any recorded source has changed or disappeared.

        Args:
            for_another_run: Also compare the entries of folders, and the paths whose existence was checked. A
                step may write there, which does not matter for its own run.
        """
        if any(_stamp(file) != known for file, known in self._files.items()):
            return True
        return for_another_run and (
            any(_entries(folder, kind) != known for (folder, kind), known in self._folders.items())
            or any(_is_there(path) != known for path, known in self._there.items())
        )

    def packed(self) -> dict[str, Any]:
        """The recorded sources as JSON."""
        folders = [[*key, known] for key, known in self._folders.items()]
        return {"files": self._files, "folders": folders, "there": self._there}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Add the sources that another process has recorded."""
        self._files |= packed["files"]
        self._there |= packed["there"]
        self._folders |= {(folder, kind): known for folder, kind, known in packed["folders"]}

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook; an exception here would fail the audited call."""
        if not self._is_on or getattr(self._inside, "is_so", False):
            return
        self._inside.is_so = True
        try:
            if event == "open":
                self._opened(args[0], args[2])
            elif event in _LISTS:
                self._listed(args[0], "modules" if sys._getframe(1).f_code.co_filename == _IMPORTS else "all")  # noqa: SLF001
            elif event == "sqlite3.connect":
                self._opened(args[0], os.O_RDWR)
                self._opened(f"{os.fsdecode(args[0])}-wal", os.O_RDWR)
            elif event in _ELSEWHERE:
                self.is_certain = False
        except Exception:  # noqa: BLE001  an odd path
            self.is_certain = False
        finally:
            self._inside.is_so = False

    def _registered(self, function: Callable[..., Any], *args: Any, **named: Any) -> Callable[..., Any]:
        caller = sys._getframe(1).f_code.co_filename  # noqa: SLF001  whose code it is
        if self._is_on and _absolute(caller) is not None:
            self.at_exit.append(getattr(function, "__qualname__", type(function).__name__))
        return _register(function, *args, **named)

    def _recorded_stat(self, path: Any, *args: Any, **named: Any) -> os.stat_result:
        if self._is_on and not isinstance(path, int) and named.get("dir_fd") is None:
            with suppress(TypeError, ValueError):  # an odd path
                self._asked |= {file} if (file := _absolute(path)) is not None else set()
        return _stat(path, *args, **named)

    def _opened(self, path: Any, flags: int) -> None:
        if isinstance(path, int) or (file := _absolute(path)) is None or file.endswith(".pyc"):
            return
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._written.add(file)
        if not flags & os.O_WRONLY:
            self.note(file)

    def _listed(self, path: Any, kind: str) -> None:
        folder = None if isinstance(path, int) else _absolute(path or ".")
        if folder is not None:
            self._note_folder(folder, kind)

    def _note_folder(self, folder: str, kind: str) -> None:
        if (folder, kind) not in self._folders:
            before, self._inside.is_so = getattr(self._inside, "is_so", False), True  # it lists by itself
            self._folders[folder, kind] = _entries(folder, kind)
            self._inside.is_so = before

    def _note_modules(self) -> None:
        for module in modules_of_code():
            file = str(module.__file__)
            if file not in self._files:
                self._files[file] = _stamp(file)


@contextmanager
def _in_place_of(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Replace a function while the block runs."""
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


def modules_of_code() -> Iterator[ModuleType]:
    """The imported modules that are not part of the installation."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(_INSTALLED):
            yield module


def _absolute(path: Any) -> str | None:
    """The absolute path; None for paths of the installation or the kernel."""
    file = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  as above
    return None if file.startswith(_NOT_OF_THE_CODE) else file


def _stamp(file: str) -> Stamp:
    """A stamp of the contents of a file, or of the last change of a folder's entries."""
    try:
        found = _stat(file)
    except (OSError, ValueError):
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return []
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def _is_there(path: str) -> bool:
    return os.path.lexists(path)


def _entries(folder: str, kind: str) -> list[str] | None:
    """The names in a folder: all, those that an import may find, or those of config files."""
    try:
        names = sorted(set(os.listdir(folder)) - {"__pycache__"})  # noqa: PTH208  as above
    except OSError:
        return None
    if kind == "modules":
        return [name for name in names if name.endswith((".py", ".so")) or "." not in name]
    return names if kind == "all" else [name for name in names if name.endswith(_CONFIG)]
