"""Where the code of the handlers of a worker is, and what tells it apart from that of another worker."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.attempts.handler_code import MAX_HANDLERS, HandlerCode
from glidemq_orchestrate.wire.codec import sendable

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.handlers.handler import Handlers

DIGITS: Final = 8


class Codes:
    """The code of the handlers of a worker, each looked up once however many queues it serves."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._known: dict[str, HandlerCode | None] = {}

    def find(self) -> dict[str, HandlerCode]:
        """The code of the first 1,000 handlers, by name; handlers may be added while the worker runs."""
        for name, registered in islice(self._handlers.registered.items(), MAX_HANDLERS):
            if name not in self._known:
                self._known[name] = code_of(registered.function)
        return {name: code for name, code in self._known.items() if code is not None}


def code_of(function: Any) -> HandlerCode | None:
    """Where the code of a callable is; None if that cannot be told.

    The digest is of its source without what it calls.
    """
    try:
        named, called = _inner(function)
        module, name = getattr(named, "__module__", None), named.__qualname__
        path = f"{module}:{name}" if module else f"{name}"
        file, digest = _source(called)
    except Exception:  # noqa: BLE001  attributes of users' objects may raise anything
        return None
    return HandlerCode(sendable(path), sendable(file), digest)


def difference(here: HandlerCode, there: HandlerCode) -> str:
    """How the code of a handler differs in two workers, in words."""
    if here.path == there.path:
        return f"{here.path} with another source"
    return f"{here.path} here, {there.path} there"


def _inner(function: Any) -> tuple[Any, Any]:
    """What has the name of a callable, and what has its code: two things for a class or an instance."""
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if isinstance(inner, type):
        return inner, inner.__init__  # type: ignore[misc]
    if not hasattr(inner, "__qualname__"):
        return type(inner), inspect.unwrap(type(inner).__call__)
    return inner, inner


def _source(function: Any) -> tuple[str, str]:
    """File with line, and the digest of the source; each is empty if unknown, as of what is written in C."""
    code = getattr(function, "__code__", None)
    if code is None:
        return "", ""
    place = _relative(code.co_filename)
    return (f"{place}:{code.co_firstlineno}" if place else ""), _digest(function)


def _digest(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except Exception:  # noqa: BLE001  its file is gone, or is no longer the one that was imported
        return ""
    return hashlib.sha256(source.encode(errors="replace")).hexdigest()[:DIGITS]


def _relative(file: str) -> str:
    """A file relative to the nearest of the working directory and ``sys.path``; else its name alone."""
    if not file or file.startswith("<"):
        return ""
    roots = [entry for entry in ("", *sys.path) if isinstance(entry, str)]
    try:  # links are not resolved: the names are those that the modules were found by
        path, *known = map(os.path.abspath, (file, *roots))
    except OSError:  # the working directory was removed
        return Path(file).name
    below = [path[len(root) + 1 :] for root in known if root != os.sep and path.startswith(root + os.sep)]
    return Path(min(below, key=len)).as_posix() if below else Path(path).name
