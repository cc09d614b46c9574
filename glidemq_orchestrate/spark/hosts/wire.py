"""What a worker and a session host say to each other: pickled messages over a socket that only they have.

===========  =======================================================  ======================================
from worker  value                                                    answered by
===========  =======================================================  ======================================
``open``     ``Opening``, once                                        ``done``, or ``raised`` and the end
``step``     the fields of a context, and whether it has a flow       ``done``, ``raised`` or an end of it
``cancel``   None: the step is to stop                                nothing
``answer``   what a call of the step has returned, or its error       nothing
``publish``  what is to count, as ``Publication``                     ``done`` or ``raised``
``look``     None                                                     ``done``, or ``lost``, or nothing
===========  =======================================================  ======================================

The end of a step without an outcome: ``closed`` is that of its session, ``lost`` that of all sessions here,
and ``unfit``: none ends, and the step needs another.
A host says ``call`` for what a step asks of its worker (progress, a line of its log, ...), with the method
and its arguments, and ``logged`` with a record of its own logging. Every message has the number of what it
belongs to. The end of either side is the end of the connection; a host ends with its worker.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.spark.published.version import Publication
from glidemq_orchestrate.spark.settings import SparkSettings

_SIZE: Final = struct.Struct(">Q")


class Message(NamedTuple):
    """See the module. Its value is restored by whom it is for: where that fails, it concerns nobody else."""

    kind: str
    number: int
    packed: bytes

    @classmethod
    def of(cls, kind: str, number: int, value: Any = None) -> Message:
        """A message with a value."""
        return cls(kind, number, pickle.dumps(value))

    @property
    def value(self) -> Any:
        """What it says."""
        return pickle.loads(self.packed)  # noqa: S301  from our own child, or parent


@dataclass(frozen=True, slots=True)
class Opening:
    """What a host needs to know before its first step.

    Attributes:
        settings: Of its session.
        path: Where it imports from, as its worker does.
        levels: Of loggers, by name; the root is the empty name.
    """

    settings: SparkSettings
    path: list[str]
    levels: Mapping[str, int]


class Outcome(NamedTuple):
    """What a step has returned, as JSON, and what it has published, which counts when that is accepted."""

    result: str
    published: list[Publication]


class Wire:
    """One end of the connection. Any thread may send; one receives. A forked child has none."""

    def __init__(self, own: socket.socket) -> None:
        self._socket, self._owner = own, os.getpid()
        own.set_inheritable(False)
        self._lock = threading.Lock()

    def send(self, kind: str, number: int = 0, value: Any = None) -> None:
        """Send a message, as a whole; waits while the other side does not read.

        Raises:
            OSError: The connection has ended, or this process was forked from that which has it.
            Exception: The value cannot be pickled; nothing was sent.
        """
        frame = self._frame(Message.of(kind, number, value))
        with self._lock:
            self._socket.sendall(frame)

    def try_to_send(self, kind: str, number: int) -> None:
        """Send a message without a value; does nothing where that would have to wait."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if select.select([], [self._socket], [], 0)[1]:
                self._socket.sendall(self._frame(Message.of(kind, number)))
        finally:
            self._lock.release()

    def receive(self) -> Message | None:
        """The next message; None when the other side has ended."""
        with suppress(OSError):
            if (head := self._read(_SIZE.size)) and (body := self._read(_SIZE.unpack(head)[0])):
                return Message(*pickle.loads(body))  # noqa: S301  a text, a number and bytes
        return None

    def end(self) -> None:
        """Send no more, also what others are about to: the other side learns of it. Repeatable."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection."""
        self.end()
        with self._lock:
            self._socket.close()

    def after_fork(self) -> None:
        """Leave the connection to the parent, which a copy would keep alive."""
        self._socket.close()

    def _frame(self, message: Message) -> bytes:
        if os.getpid() != self._owner:
            raise OSError("the connection belongs to the process that this one was forked from")
        body = pickle.dumps(tuple(message))
        return _SIZE.pack(len(body)) + body

    def _read(self, size: int) -> bytes | None:
        body = bytearray()
        while len(body) < size:
            more = self._socket.recv(min(size - len(body), 1 << 20))
            if not more:
                return None
            body += more
        return bytes(body)


def levels_now() -> dict[str, int]:
    """The levels of loggers in this process, as far as they were set."""
    known = list(logging.getLogger().manager.loggerDict.items())
    named = {name: one.level for name, one in known if isinstance(one, logging.Logger) and one.level}
    return {"": logging.getLogger().level, **named}
