"""Exceptions as bytes, to send them from the process of a handler to the worker."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES
from glidemq_orchestrate.worker.handlers.tracebacks import ProcessTraceback, traceback_text

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
    """The exception, in its own class if that can be restored; never one that would end a worker."""
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
            made = pickle.loads(packed)  # noqa: S301  it was pickled on the line before
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
