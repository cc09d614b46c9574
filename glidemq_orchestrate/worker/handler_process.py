"""The process that runs handlers, one at a time, and sends each result to the worker.

Results, errors and messages are frames: a letter, a length, a body. The worker sends ``(function, job)``: the
function is pickled by name, the payload of the job is JSON. While a handler runs, the worker sends only
replies to checks.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from glidemq_orchestrate.errors import LeaseLost, PayloadTooLarge
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES, JsonLike, encode
from glidemq_orchestrate.worker.handlers.context import Cancelled, Context, Reporter
from glidemq_orchestrate.worker.handlers.results import encode_result
from glidemq_orchestrate.worker.handlers.tracebacks import pack, unpack

HEAD: Final = struct.Struct(">cI")
TASK: Final = b"T"
STARTED: Final = b"B"
PROGRESS: Final = b"P"
LOG: Final = b"L"
MESSAGE: Final = b"M"
CHECK: Final = b"C"
DONE: Final = b"D"
RAISED: Final = b"R"
KINDS: Final = (STARTED, PROGRESS, LOG, MESSAGE, CHECK, DONE, RAISED)
MAX_FRAME: Final = 8 * MAX_PAYLOAD_BYTES


def serve(sock: socket.socket) -> None:
    """Run the received tasks until the worker closes the connection."""
    # A separate session: Ctrl-C reaches only the worker, and processes of a handler can be killed with it.
    os.setsid()
    own, frames = os.getpid(), FrameSender(sock)
    while (task := _receive(sock)) is not None:
        frames.send(STARTED, b"")
        try:
            function, job = pickle.loads(task)  # noqa: S301  from our own worker
            kind, body = DONE, _run(function, job, frames)
        except BaseException as exc:  # noqa: BLE001  nothing that a handler does may end this loop
            kind, body = RAISED, pack(exc)
        if os.getpid() != own:  # a handler has forked, and the copy has returned here
            os._exit(1)
        frames.send(kind, body)


class FrameSender:
    """Sends frames to the worker; any thread may use it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()

    def send(self, kind: bytes, body: bytes) -> None:
        with self._lock:
            self._sock.sendall(HEAD.pack(kind, len(body)) + body)

    def request(self, kind: bytes) -> bytes | None:
        """Send a frame and return the worker's reply; None if the worker has ended."""
        self.send(kind, b"")
        return _receive(self._sock)


class ProcessReporter(Reporter):
    """Sends progress, log lines and messages of a handler to the worker."""

    def __init__(self, frames: FrameSender, name: str) -> None:
        self._frames, self._name = frames, name
        self._checking, self._is_over = threading.Lock(), False

    def progress(self, value: JsonLike) -> None:
        self._frames.send(PROGRESS, encode(value, where=f"progress of job {self._name}").encode())

    def log(self, line: str) -> None:
        body = line.encode(errors="replace")
        if len(body) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(
                f"a line of a log is {len(body):,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}", where="log"
            )
        self._frames.send(LOG, body)

    def write_message(self, text: str) -> None:
        self._frames.send(MESSAGE, text.encode())

    def check_owner(self) -> None:
        with self._checking:
            if self._is_over:  # a thread that outlived the handler: the next frame is the next task
                raise LeaseLost("this attempt has ended")
            reply = self._frames.request(CHECK)
        if reply is None:
            raise LeaseLost("the worker of this attempt has ended")
        if reply:
            raise unpack(reply)

    async def check_owner_async(self) -> None:
        self.check_owner()  # this process has no loop of a worker to block

    def end(self) -> None:
        """Refuse further checks: the handler has returned."""
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


def _run(function: Callable[[Context], JsonLike], job: dict[str, Any], frames: FrameSender) -> bytes:
    reporter = ProcessReporter(frames, job["name"])
    context = Context(**job, reporter=reporter, cancelled=Cancelled())
    try:
        return encode_result(function(context), where=f"result of job {job['name']}").encode()
    finally:
        reporter.end()
