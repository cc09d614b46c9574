"""What a worker and a session host say to each other: pickled messages over a socket that only they have.

===========  =======================================================  ======================================
from worker  value                                                    answered by
===========  =======================================================  ======================================
``open``     ``Opening``, once                                        ``ready``, or ``raised`` and the end
``step``     the fields of a context                                  ``done``, ``raised`` or ``lost``
``cancel``   None: the step is to stop                                nothing
``answer``   what a call of the step has returned, or its error       nothing
``publish``  what is to count, as ``Publication``                     ``done`` or ``raised``
``stop``     None: no more comes                                      its end
===========  =======================================================  ======================================

A host says ``call`` for what a step asks of its worker (progress, a line of its log, ...), with the method
and its arguments, and ``logged`` with a record of its own logging. Every message has the number of what it
belongs to. The end of either side is the end of the connection; a host ends with its worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from glidemq_orchestrate.spark.session import SparkSettings


class Message(NamedTuple):
    """See the module."""

    kind: str
    number: int
    value: Any = None


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
    """What a step has returned, and what it has published, which counts when the result is accepted."""

    result: Any
    published: list[Any]


class Wire:
    """One end of the connection. Any thread may send; one receives."""

    def __init__(self, descriptor: int) -> None:
        self._connection: Connection[Message, Message] = Connection(descriptor)
        self._lock = threading.Lock()

    def send(self, kind: str, number: int = 0, value: Any = None) -> None:
        """Send a message, as a whole.

        Raises:
            OSError: The other side has ended.
        """
        with self._lock:
            self._connection.send(Message(kind, number, value))

    def receive(self) -> Message | None:
        """The next message; None when the other side has ended."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def levels_now() -> dict[str, int]:
    """The levels of loggers in this process, as far as they were set."""
    known = logging.getLogger().manager.loggerDict
    named = {name: one.level for name, one in known.items() if isinstance(one, logging.Logger) and one.level}
    return {"": logging.getLogger().level, **named}
