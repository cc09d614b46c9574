"""The traceback of a handler's exception, as text for the log of its job: bounded, without our own frames.

It contains lines of code and messages of exceptions, never values of variables.
"""

from __future__ import annotations

import base64
import json
import pickle
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES

MAX_CHARACTERS: Final = 8_000
MAX_FRAMES: Final = 40
MAX_MESSAGE: Final = 2_000
MAX_LINE: Final = 400
_CUT: Final = "    ... (the rest is in the log of the worker)"
_PACKAGE: Final = f"{Path(__file__).parents[2]}/"
_LIBRARY: Final = f"{sysconfig.get_paths()['stdlib']}/"
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_USERS: Final = (f"{_PACKAGE}spark/flights/", f"{_PACKAGE}demo/")
"""Examples in this package, which count as user code."""


class ProcessTraceback(Exception):
    """The traceback of another process, as text: the cause of an exception that it raised."""


def traceback_text(error: BaseException) -> str:
    """The traceback of an error from the first frame of user code on, with causes and parts of groups.

    Empty if it contains no user code. Never raises.
    """
    try:
        if isinstance(error.__cause__, ProcessTraceback):
            return str(error.__cause__)
        whole = traceback.TracebackException.from_exception(error, max_group_width=5, max_group_depth=3)
        return _bounded(whole.format()) if _trim(whole) else ""
    except Exception:  # noqa: BLE001  an exception of the user that cannot be formatted
        return ""


def from_users(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """An error for ``exc_info``, without our frames above the first of user code; whole if it has none."""
    frames = error.__traceback__
    while frames is not None and not is_users(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    # The traceback of another process is the cause: here it passed only our own code.
    is_told = frames is not None or (isinstance(error.__cause__, ProcessTraceback) and str(error.__cause__))
    return type(error), error, frames if is_told else error.__traceback__


def _trim(whole: traceback.TracebackException) -> bool:
    """Drop the frames above the first of user code, also in causes; returns whether there is user code."""
    todo, seen, has_users = [whole], set[int](), False
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        frames = list(one.stack)
        first = next((at for at, frame in enumerate(frames) if is_users(frame.filename)), None)
        has_users = has_users or first is not None
        if first is None:  # drop our own frames at least
            foreign = (at for at, frame in enumerate(frames) if not frame.filename.startswith(_PACKAGE))
            shown = frames[next(foreign, len(frames)) :]
        else:
            shown = frames[first:]
        if len(shown) > MAX_FRAMES:
            shown = [*shown[: MAX_FRAMES // 2], *shown[-MAX_FRAMES // 2 :]]
        one.stack[:] = shown
        todo += [
            more for more in (one.__cause__, one.__context__, *(one.exceptions or ())) if more is not None
        ]
    return has_users


def is_users(filename: str) -> bool:
    """Whether code belongs neither to this package nor to the standard library."""
    if filename.startswith(_PACKAGE):
        return filename.startswith(_USERS)
    is_installed = any(part in filename for part in _INSTALLED)  # a user's package may be installed too
    return is_installed or not filename.startswith((_LIBRARY, "<frozen "))


def _bounded(parts: Iterator[str]) -> str:
    """The text, cut in the middle if it is too long: the beginning and the message at its end stay."""
    lines = [line[:MAX_LINE] for part in parts for line in part[:MAX_MESSAGE].rstrip("\n").split("\n")]
    text = "\n".join(lines)
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half].rpartition(chr(10))[0]}\n{_CUT}\n{text[-half:].partition(chr(10))[2]}"


def text_of(error: BaseException) -> str:
    """The text of an exception, for a group with its first; '' if its ``__str__`` raises."""
    try:
        if not isinstance(error, BaseExceptionGroup):
            return str(error)
        first: BaseException = error.exceptions[0]
        return f"{error}, the first is {type(first).__name__}: {text_of(first)}"
    except BaseException:  # noqa: BLE001  a user exception whose __str__ raises
        return ""


_MAX_TEXT: Final = 100_000


class HandlerRaised(Exception):
    """Base of the stand-in for an exception that cannot be pickled: a class of the same name."""


def pack(error: BaseException) -> bytes:
    """Any exception as bytes."""
    fields = {
        "name": type(error).__name__,
        "text": _text(error)[:_MAX_TEXT],
        "trace": traceback_text(error),
        "whole": _whole(error) if isinstance(error, Exception) else "",
    }
    return json.dumps(fields).encode()


def unpack(body: bytes) -> Exception:
    """The exception, in its own class if that can be restored; never an exception that ends a worker."""
    fields = json.loads(body)
    error: Any = None
    with suppress(BaseException):  # user code
        error = pickle.loads(base64.b64decode(fields["whole"]))  # noqa: S301  from our own process
    # A coroutine cannot raise the last two.
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        error = type(fields["name"], (HandlerRaised,), {})(fields["text"])
    error.__cause__ = ProcessTraceback(fields["trace"])
    made: Exception = error
    return made


def _whole(error: Exception) -> str:
    """The pickled exception; empty unless it can be restored with the same class and text."""
    for way in (error, _Remade(error)):
        with suppress(BaseException):  # user code
            packed = pickle.dumps(way)
            made = pickle.loads(packed)  # noqa: S301  pickled on the line above
            if type(made) is type(error) and str(made) == str(error) and len(packed) < MAX_PAYLOAD_BYTES:
                return base64.b64encode(packed).decode()
    return ""


class _Remade:
    """Pickles an exception without its constructor, which may take other arguments than ``args``."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return remake, (type(self._error), self._error.args, dict(self._error.__dict__))


def remake(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """Restore an exception without calling its constructor."""
    made = kind.__new__(kind)
    made.args = args
    made.__dict__.update(state)
    return made


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  a user exception whose __str__ raises
        return ""
