"""In a separate process: run handlers, one after the other, and send each result to the worker.

Results, errors and messages reach the worker as frames: a letter, a length, a body. The worker sends
``(function, job)`` pickled by name; the job's payload in it is JSON, never code. While a handler runs the
worker sends nothing but the answer to a check.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from glidemq_orchestrate.errors import LeaseLost, PayloadTooLarge
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES, JsonLike, encode
from glidemq_orchestrate.worker.context import Cancelled, Context, Unheard
from glidemq_orchestrate.worker.raised import ProcessTraceback, traceback_text

HEAD: Final = struct.Struct(">cI")
TASK: Final = b"T"
BEGUN: Final = b"B"
PROGRESS: Final = b"P"
LOG: Final = b"L"
MESSAGE: Final = b"M"
CHECK: Final = b"C"
DONE: Final = b"D"
RAISED: Final = b"R"
KINDS: Final = (BEGUN, PROGRESS, LOG, MESSAGE, CHECK, DONE, RAISED)
MAX_FRAME: Final = 8 * MAX_PAYLOAD_BYTES
_MAX_TEXT: Final = 100_000


def serve(sock: socket.socket) -> None:
    """Run the received tasks until the worker closes the connection."""
    # A separate session: Ctrl-C reaches the worker only, and what a handler starts can be killed with it.
    os.setsid()
    own, messenger = os.getpid(), _Messenger(sock)
    while (task := _receive(sock)) is not None:
        messenger.send(BEGUN, b"")
        try:
            function, job = pickle.loads(task)  # noqa: S301  the worker's own
            kind, body = DONE, _run(function, job, messenger)
        except BaseException as exc:  # noqa: BLE001  nothing that a handler does may end this loop
            kind, body = RAISED, pack(exc)
        if os.getpid() != own:  # a handler has forked and let the copy return here
            os._exit(1)
        messenger.send(kind, body)


class _Messenger:
    """Sends frames to the worker; any thread may use it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()

    def send(self, kind: bytes, body: bytes) -> None:
        with self._lock:
            self._sock.sendall(HEAD.pack(kind, len(body)) + body)

    def ask(self, kind: bytes) -> bytes | None:
        """The worker's answer; None when the worker is gone."""
        self.send(kind, b"")
        return _receive(self._sock)


class _Speaker(Unheard):
    """Sends progress, log lines and messages of a handler to the worker."""

    def __init__(self, messenger: _Messenger, name: str) -> None:
        self._messenger, self._name = messenger, name
        self._checking, self._is_over = threading.Lock(), False

    def progress(self, value: JsonLike) -> None:
        self._messenger.send(PROGRESS, encode(value, where=f"progress of job {self._name}").encode())

    def log(self, line: str) -> None:
        body = line.encode(errors="replace")
        if len(body) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(
                f"a line of a log is {len(body):,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}", where="log"
            )
        self._messenger.send(LOG, body)

    def write_message(self, text: str) -> None:
        self._messenger.send(MESSAGE, text.encode())

    def check_owner(self) -> None:
        with self._checking:
            if self._is_over:  # a thread that outlived the handler: what comes now is the next task
                raise LeaseLost("this attempt has ended")
            answer = self._messenger.ask(CHECK)
        if answer is None:
            raise LeaseLost("the worker of this attempt has ended")
        if answer:
            raise unpack(answer)

    async def check_owner_async(self) -> None:
        self.check_owner()  # this process has no loop of a worker to block

    def end(self) -> None:
        """The handler has returned."""
        with self._checking:
            self._is_over = True


def _receive(sock: socket.socket) -> bytes | None:
    head = _read(sock, HEAD.size)
    return None if head is None else _read(sock, HEAD.unpack(head)[1])


def _read(sock: socket.socket, size: int) -> bytes | None:
    body = bytearray()
    while len(body) < size:
        more = sock.recv(size - len(body))
        if not more:
            return None
        body += more
    return bytes(body)


def _run(function: Callable[[Context], JsonLike], job: dict[str, Any], messenger: _Messenger) -> bytes:
    speaker = _Speaker(messenger, job["name"])
    context = Context(**job, speaker=speaker, cancelled=Cancelled())
    try:
        return encode(function(context), where=f"result of job {job['name']}").encode()
    finally:
        speaker.end()


# --- exceptions on their way to the worker ---


class HandlerRaised(Exception):
    """Base of the stand-in for an exception that cannot be pickled: a class of the same name."""


def pack(error: BaseException) -> bytes:
    """An exception of any kind as bytes."""
    fields = {
        "name": type(error).__name__,
        "text": _text(error)[:_MAX_TEXT],
        "trace": traceback_text(error),
        "whole": _whole(error) if isinstance(error, Exception) else "",
    }
    return json.dumps(fields).encode()


def unpack(body: bytes) -> Exception:
    """The exception, of its own class if that can be restored; never one that would end a worker."""
    fields = json.loads(body)
    error: Any = None
    with suppress(BaseException):  # user code
        error = pickle.loads(base64.b64decode(fields["whole"]))  # noqa: S301  from our own process
    # The last two would become something else on their way out of a coroutine.
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        error = type(fields["name"], (HandlerRaised,), {})(fields["text"])
    error.__cause__ = ProcessTraceback(fields["trace"])
    made: Exception = error
    return made


def _whole(error: Exception) -> str:
    """The exception pickled; empty unless it can be restored with the same class and text."""
    for way in (error, _Remade(error)):
        with suppress(BaseException):  # user code
            packed = pickle.dumps(way)
            made = pickle.loads(packed)  # noqa: S301  it was pickled on the line before
            if type(made) is type(error) and str(made) == str(error) and len(packed) < MAX_PAYLOAD_BYTES:
                return base64.b64encode(packed).decode()
    return ""


class _Remade:
    """Pickles an exception past its constructor, which may need other arguments than ``args``."""

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
