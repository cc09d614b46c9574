"""Which calls are sent again when a connection breaks, and how writes are confirmed. Pure.

A call that was refused or not sent has changed nothing: it is repeated. A call with an unknown outcome is
repeated if it is safe to repeat (``Call.repeatable``), so one dropped connection goes unnoticed. A call that
timed out is not repeated: the server is slow, and the caller has already waited. A server that never replied
is not tried again: its address may be wrong.

The calls that confirm writes are in the same pipeline, on the connection that wrote: a server that takes over
in between cannot confirm writes that it never had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.exceptions import TimeoutError as RedisTimeoutError

from glidemq_orchestrate.errors import (
    ConnectionFailed,
    GlideMQError,
    LibraryMissing,
    OutcomeUnknown,
    ServerBusy,
    TransportError,
)
from glidemq_orchestrate.foundation.durations import milliseconds, seconds
from glidemq_orchestrate.io.slots import first_key, is_for_all
from glidemq_orchestrate.io.topology import ASKING, Parcel, Replies
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Call, Unconfirmed
from glidemq_orchestrate.wire.confirmation import Confirmation, mark, wait_disk, wait_replicas

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


def followed(parcel: Parcel, settings: ConnectionSettings) -> Parcel | None:
    """The parcel with the calls that confirm its writes; None if none need to be confirmed."""
    if settings.confirm is None or (required := settings.confirmation) is None:
        return None
    if not (writes := [call for call in parcel.calls if _is_relied_on(call)]):
        return None
    # The mark goes to the server of the last write, also while its slot is being moved.
    asking = (ASKING,) if parcel.calls[parcel.calls.index(writes[-1]) - 1] is ASKING else ()
    marking = mark(settings.prefix, str(first_key(writes[-1].words)))
    limit_ms = max(milliseconds(settings.confirm_timeout), 1)
    return replace(parcel, calls=(*parcel.calls, *asking, marking, *_waits(required, limit_ms)))


def _is_relied_on(call: Call[Any]) -> bool:
    return call.confirms and call.writes


def _waits(required: Confirmation, limit_ms: int) -> Iterator[Call[Any]]:
    if required.replicas:
        yield wait_replicas(required.replicas, limit_ms)
    if required.disk:
        yield wait_disk(limit_ms)


def confirmed_replies(
    whole: Parcel, replies: Replies, parcel: Parcel, settings: ConnectionSettings
) -> Replies:
    """The replies to the calls of a parcel, with an error for each write that is not confirmed."""
    replies_to_calls, after = replies[: len(parcel.calls)], replies[len(parcel.calls) :]
    accepted = [
        number
        for number, (call, reply) in enumerate(zip(parcel.calls, replies_to_calls, strict=True))
        if _is_relied_on(call) and not isinstance(reply, GlideMQError)
    ]
    why, cause = _shortfall(whole.calls[len(parcel.calls) :], after, settings)
    if not why or not accepted:
        return replies_to_calls
    text = f"{settings.node(parcel.place)}: written, but {why}. The write stands; a repeat waits again"
    for number in accepted:
        if isinstance(cause, LibraryMissing) and parcel.calls[number].repeatable:
            replies_to_calls[number] = cause  # the caller loads the library and repeats the call
            continue
        replies_to_calls[number] = error = Unconfirmed(text, replies_to_calls[number])
        error.code = cause.code if cause else None
    return replies_to_calls


def _shortfall(
    calls: tuple[Call[Any], ...], replies: Replies, settings: ConnectionSettings
) -> tuple[str, GlideMQError | None]:
    """Which confirmation is missing, in words, and the error that caused it; '' if none is."""
    within, required = f"within {seconds(settings.confirm_timeout):g} s", settings.confirmation
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, GlideMQError):
            advice = (
                ". Fix: set appendonly yes on the server" if "appendonly is disabled" in str(reply) else ""
            )
            return f"the server cannot confirm it: {reply}{advice}", reply
        if call.words[0] == "WAIT" and required and (count := call.read(reply)) < required.replicas:
            return f"only {count} of {required.replicas} replicas got it {within}", None
        if call.words[0] == "WAITAOF" and not call.read(reply):
            return f"it was not on the disk of the server {within}", None
    return "", None
