"""Decides which calls are sent again when a connection breaks, and after which pauses. Pure.

A call that was refused or not sent has changed nothing: it is repeated. A call with an unknown outcome is
repeated if it is safe to repeat (``Call.repeatable``), so one dropped connection goes unnoticed. A call that
timed out is not repeated: the server is slow, and the caller has already waited. A server that never replied
is not tried again: its address may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import TimeoutError as RedisTimeoutError

from glidemq_orchestrate.errors import (
    ConnectionFailed,
    GlideMQError,
    OutcomeUnknown,
    ServerBusy,
    TransportError,
)
from glidemq_orchestrate.io.slots import is_for_all
from glidemq_orchestrate.wire.call import Call

PAUSES: Final = (0.05, 0.2, 0.5)
# With each of these errors the server has executed nothing.
_PASSING: Final = frozenset(
    {"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "NOREPLICAS"}
)


@dataclass(slots=True)
class Delivered:
    """The result of sending some calls: their replies, or the error that all of them share."""

    replies: list[Any]
    error: GlideMQError | None = None

    def again(self, calls: Sequence[Call[Any]], *, is_known: bool) -> list[int]:
        """The numbers of the calls to send again. ``is_known``: the server has replied before."""
        if self.error is not None:
            is_all = all(_may_repeat(call, self.error) for call in calls)
            return list(range(len(calls))) if is_all and _passes(self.error, is_known=is_known) else []
        return [
            number
            for number, reply in enumerate(self.replies)
            if isinstance(reply, TransportError)
            and _may_repeat(calls[number], reply)
            and _passes(reply, is_known=is_known)
        ]

    def merge(self, numbers: Sequence[int], later: Delivered) -> None:
        """Put the replies to repeated calls in their places."""
        if self.error is not None:
            self.replies, self.error = later.replies, later.error
        elif later.error is None:
            for number, reply in zip(numbers, later.replies, strict=True):
                self.replies[number] = reply

    def outcome(self) -> list[Any]:
        """The replies; raises the error that all of them share."""
        if self.error is not None:
            raise self.error
        return self.replies


def _may_repeat(call: Call[Any], error: GlideMQError) -> bool:
    """Whether a call may be repeated; some of several primaries may have executed it."""
    return call.repeatable or not (isinstance(error, OutcomeUnknown) or is_for_all(call.words))


def is_timeout(error: OutcomeUnknown) -> bool:
    """Whether the server did not reply in time on an open connection."""
    return isinstance(error.__cause__, TimeoutError | RedisTimeoutError)


def _passes(error: GlideMQError, *, is_known: bool) -> bool:
    """Whether an error may pass within a pause, so that a repeat makes sense."""
    if isinstance(error, OutcomeUnknown):
        return not is_timeout(error)
    if isinstance(error, ConnectionFailed):
        return is_known
    return isinstance(error, ServerBusy) and error.code in _PASSING
