"""Messages between a worker and a session host: pickled, over a socket that only these two have.

===========  =======================================================  ======================================
from worker  value                                                    reply
===========  =======================================================  ======================================
``open``     ``Opening``, once                                        ``done``, or ``raised`` and the end
``step``     the fields of a context, and whether it has a flow       ``done``, ``raised`` or see below
``cancel``   None: stop the step                                      nothing
``answer``   the packed error of a call of the step, or None;         nothing
             and what the call has returned
``publish``  the accepted ``Publication`` list, and an epoch          ``done`` or ``raised``
``probe``    None                                                     ``done``, or ``lost``, or nothing
===========  =======================================================  ======================================

A step that has no outcome ends with ``closed`` (its session has ended), ``lost`` (all sessions of the host
have ended) or ``unfit`` (no session has ended, but the step needs another one). A host sends ``call`` when a
step calls its worker (progress, a line of its log, ...), with the method and its arguments, and ``logged``
with a record of its logging. Every message has the number of the step or request that it belongs to. The
connection ends with either side, and a host ends with its worker.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.spark.setup.spark_settings import SparkSettings

logger = logging.getLogger("glidemq_orchestrate.spark")


class Message(NamedTuple):
    """See the module. The value is unpickled by its receiver, so an error in it affects no one else."""

    kind: str
    number: int
    packed: bytes

    @classmethod
    def of(cls, kind: str, number: int, value: Any = None) -> Message:
        """A message with a value."""
        return cls(kind, number, pickle.dumps(value))

    @property
    def value(self) -> Any:
        """Its value."""
        return pickle.loads(self.packed)  # noqa: S301  from our own child or parent


@dataclass(frozen=True, slots=True)
class Opening:
    """What a host needs to know before its first step.

    Attributes:
        settings: The settings of its session.
        path: ``sys.path`` of the worker.
        levels: Levels of loggers by name; the root has the empty name.
    """

    settings: SparkSettings
    path: list[str]
    levels: Mapping[str, int]


class StepOutcome(NamedTuple):
    """What a step has returned, as JSON, and what it has published, which counts once that is accepted."""

    result: str
    published: list[Publication]


class Wire:
    """One end of the connection. Any thread may send; one receives. A forked child has no connection."""

    def __init__(self, own: socket.socket) -> None:
        self._socket, self._owner = own, os.getpid()
        self._reader = own.makefile("rb")
        own.set_inheritable(False)
        self._lock = threading.Lock()

    def send(self, kind: str, number: int = 0, value: Any = None) -> None:
        """Send a whole message; waits while the other side does not read.

        Raises:
            OSError: The connection has ended, or this process was forked from its owner.
            Exception: The value cannot be pickled; nothing was sent.
        """
        packed = self._packed(Message.of(kind, number, value))
        with self._lock:
            self._socket.sendall(packed)

    def try_to_send(self, kind: str, number: int) -> None:
        """Send a message without a value, unless that would have to wait."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if select.select([], [self._socket], [], 0)[1]:
                self._socket.sendall(self._packed(Message.of(kind, number)))
        finally:
            self._lock.release()

    def receive(self) -> Message | None:
        """The next message; None once the other side has ended."""
        with suppress(OSError, EOFError, pickle.UnpicklingError):  # the last one was cut off
            return Message(*pickle.load(self._reader))  # noqa: S301  a text, a number and bytes
        return None

    def end(self) -> None:
        """Stop sending, in all threads; the other side sees the end of the connection. Repeatable."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection."""
        self.end()
        with self._lock:
            os.close(self._socket.detach())

    def after_fork(self) -> None:
        """Leave the connection to the parent: a copy would keep it open."""
        os.close(self._socket.detach())

    def _packed(self, message: Message) -> bytes:
        if os.getpid() != self._owner:
            raise OSError("the connection belongs to the parent of this forked process")
        return pickle.dumps(tuple(message))


def levels_now() -> dict[str, int]:
    """The levels of the loggers in this process that have one."""
    known = list(logging.getLogger().manager.loggerDict.items())
    named = {name: one.level for name, one in known if isinstance(one, logging.Logger) and one.level}
    return {"": logging.getLogger().level, **named}


def log_record(message: Message) -> None:
    """Pass a record of a session host to the loggers of this process."""
    try:
        record = logging.makeLogRecord(message.value)
        known = logging.getLogger(record.name)
        if known.isEnabledFor(record.levelno):
            known.handle(record)
    except Exception:
        logger.exception("a record of a session host cannot be logged")
