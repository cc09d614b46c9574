"""Adds the calls that confirm writes, and reads whether they did. Pure.

They are in the same pipeline as the writes, on the connection that wrote: a server that takes over in between
cannot confirm writes that it never had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from glidemq_orchestrate.errors import GlideMQError, LibraryMissing
from glidemq_orchestrate.foundation.durations import milliseconds, seconds
from glidemq_orchestrate.io.slots import first_key
from glidemq_orchestrate.io.topology import ASKING, Parcel, Replies
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Call, Unconfirmed
from glidemq_orchestrate.wire.confirmation import Confirmation, mark, wait_disk, wait_replicas


def followed(parcel: Parcel, settings: ConnectionSettings) -> Parcel | None:
    """The parcel with the calls that confirm its writes; None if none need to be confirmed."""
    if (required := settings.confirmation) is None:
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
