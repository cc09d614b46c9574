"""Files that a step adds for the executors: ``addFile``, ``addPyFile``, ``addArchive``.

Spark has one such file per name and context, and never removes it. If the file is changed or removed, or
another step adds a different one with its name, every later task of the context fails, because each task
needs all files. So a file is removed at the end of the last step that has added it, and a step that adds a
different file under a name that is in use runs again in a separate session. So does a step that adds
different code under a name that was used before: the Python processes of the executors live on, with the
modules that they imported.
"""

from __future__ import annotations

import filecmp
import functools
import hashlib
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from glidemq_orchestrate.spark.failures import SessionUnfit
from glidemq_orchestrate.spark.sessions.sharing.current import CurrentStep, Method, in_step

_FILES: Final = "addedFiles"
_ARCHIVES: Final = "addedArchives"
_adding: Final = threading.RLock()
_users: Final[Counter[tuple[str, str]]] = Counter()
_code: Final[dict[str, str]] = {}
"""By name, the digest of each code file that was ever added, or its path if it is on another machine."""


def share_files() -> None:
    """Replace methods of PySpark; to be called once."""
    from pyspark import SparkContext

    contexts: Any = SparkContext
    replacements: dict[str, Method] = {
        "addFile": add_file,
        "addPyFile": add_py_file,
        "addArchive": add_archive,
    }
    for name, instead in replacements.items():
        setattr(contexts, name, in_step(getattr(contexts, name), instead))


def add_file(
    step: CurrentStep,
    method: Method,
    context: Any,
    path: str,
    recursive: bool = False,  # noqa: FBT001, FBT002  PySpark's
) -> None:
    """Replace ``SparkContext.addFile``.

    Raises:
        SessionUnfit: The session has a different file with that name.
    """
    with _adding:
        _add(step, context, _FILES, path, lambda: method(context, path, recursive))


def add_archive(step: CurrentStep, method: Method, context: Any, path: str) -> None:
    """Replace ``SparkContext.addArchive``; see ``add_file``."""
    with _adding:
        _check_code(path)
        _add(step, context, _ARCHIVES, path, lambda: method(context, path))


def add_py_file(_step: CurrentStep, method: Method, context: Any, path: str) -> None:
    """Replace ``SparkContext.addPyFile``, which calls ``addFile``; see there."""
    with _adding:
        _check_code(path)
        method(context, path)


def _add(step: CurrentStep, context: Any, kind: str, path: str, add: Callable[[], None]) -> None:
    known = _known(context, kind)
    same = [one for one in known if _name(one) == _name(path)]
    if same and not _is_same_file(path, same):
        raise _name_conflict(path)
    add()
    for place in _known(context, kind):
        if _name(place) == _name(path) and (place not in known or _users[kind, place]):
            if (f"{kind} {place}", 0) not in step.undo:
                _users[kind, place] += 1
            step.undo[f"{kind} {place}", 0] = functools.partial(_remove, context, kind, place)


def _remove(context: Any, kind: str, place: str) -> None:
    """Remove a file at the end of a step, unless another step has added it too."""
    with _adding:
        _users[kind, place] -= 1
        if _users[kind, place]:
            return
        del _users[kind, place]
        added = getattr(context._jsc.sc(), kind)()  # noqa: SLF001  there is no other way
        for name in list(_as_list(added.keys().toSeq())):
            added.apply(name).remove(place)
        _forget(context, _copy_of(place))


def _forget(context: Any, file: Path) -> None:
    """Remove the copy of a file, and the modules that were imported from it here."""
    shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)
    context._python_includes[:] = [one for one in context._python_includes if one != file.name]  # noqa: SLF001
    sys.path[:] = [one for one in sys.path if one != str(file)]
    for name, module in list(sys.modules.items()):
        with suppress(Exception):  # odd modules
            if Path(module.__file__ or "").is_relative_to(file):
                del sys.modules[name]


def _check_code(path: str) -> None:
    here = _local(path)
    code = hashlib.sha256(here.read_bytes()).hexdigest() if here is not None and here.is_file() else path
    if _code.setdefault(_name(path), code) != code:
        raise _name_conflict(path)


def _name_conflict(path: str) -> SessionUnfit:
    return SessionUnfit(
        f"another step of this session has added a different file {_name(path)}",
        'Spark has one file of a name for all steps of a session. Fix: use "session": "own", or another name',
    )


def _known(context: Any, kind: str) -> list[str]:
    return list(context.listFiles if kind == _FILES else context.listArchives)


def _as_list(items: Any) -> list[str]:
    return [items.apply(number) for number in range(items.size())]


def _is_same_file(path: str, known: list[str]) -> bool:
    """Whether a file has the contents that the session has; files elsewhere are compared by their path."""
    here, there = _local(path), _copy_of(path)
    if here is not None and here.is_file() and there.is_file():
        return filecmp.cmp(here, there, shallow=False)
    places = {_local(one) or one for one in known}
    return (here or path) in places


def _copy_of(path: str) -> Path:
    """The copy that Spark makes of a file."""
    from pyspark import SparkFiles

    return Path(SparkFiles.get(_name(path)))


def _name(path: str) -> str:
    """The name of a file on the executors: what follows ``#``, or the last part of its path."""
    place, _, name = path.partition("#")
    return name or unquote(place.rstrip("/").rpartition("/")[2])


def _local(path: str) -> Path | None:
    """The path on this machine; None if the file is elsewhere."""
    parts = urlsplit(path)
    if parts.scheme not in {"", "file"}:
        return None
    return Path(unquote(parts.path) if parts.scheme else path.partition("#")[0]).absolute()
