"""The calls that follow writes so that they are confirmed, and what their replies mean. Pure.

They travel in the same pipeline, on the connection that wrote: a server that takes over in between cannot
confirm what it never had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from glidemq_orchestrate.errors import GlideMQError, LibraryMissing
from glidemq_orchestrate.io.slots import first_key
from glidemq_orchestrate.io.topology import ASKING, Parcel, Replies
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Call, Unconfirmed
from glidemq_orchestrate.wire.confirmation import Confirmation
from glidemq_orchestrate.wire.wait import mark, wait_disk, wait_replicas


def followed(parcel: Parcel, settings: ConnectionSettings) -> Parcel | None:
    """The parcel with the calls that confirm its writes; None if it has none, or none are asked for."""
    wanted = settings.confirmation
    if wanted is None or not (writes := [call for call in parcel.calls if _is_relied_on(call)]):
        return None
    # The mark goes where the last write goes, also while its slot is being moved.
    asking = (ASKING,) if parcel.calls[parcel.calls.index(writes[-1]) - 1] is ASKING else ()
    marking = mark(settings.prefix, str(first_key(writes[-1].words)))
    limit_ms = max(int(settings.confirm_timeout * 1000), 1)
    return replace(parcel, calls=(*parcel.calls, *asking, marking, *_waits(wanted, limit_ms)))


def _is_relied_on(call: Call[Any]) -> bool:
    return call.confirms and call.writes


def _waits(wanted: Confirmation, limit_ms: int) -> Iterator[Call[Any]]:
    if wanted.replicas:
        yield wait_replicas(wanted.replicas, limit_ms)
    if wanted.disk:
        yield wait_disk(limit_ms)


def judged(whole: Parcel, replies: Replies, parcel: Parcel, settings: ConnectionSettings) -> Replies:
    """The replies to the calls of a parcel; accepted writes that are not confirmed get an error instead."""
    own, after = replies[: len(parcel.calls)], replies[len(parcel.calls) :]
    accepted = [
        number
        for number, (call, reply) in enumerate(zip(parcel.calls, own, strict=True))
        if _is_relied_on(call) and not isinstance(reply, GlideMQError)
    ]
    why, cause = _shortfall(whole.calls[len(parcel.calls) :], after, settings)
    if not why or not accepted:
        return own
    text = f"{settings.node(parcel.place)}: written, but {why}. The work stands; a repeat waits again"
    for number in accepted:
        if isinstance(cause, LibraryMissing) and parcel.calls[number].repeatable:
            own[number] = cause  # it is loaded, and the call repeated
            continue
        own[number] = error = Unconfirmed(text, own[number])
        error.code = cause.code if cause else None
    return own


def _shortfall(
    calls: tuple[Call[Any], ...], replies: Replies, settings: ConnectionSettings
) -> tuple[str, GlideMQError | None]:
    """What was not reached, in words, and the refusal that is the cause; '' when everything was."""
    within, wanted = f"within {settings.confirm_timeout:g} s", settings.confirmation
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, GlideMQError):
            advice = ": set appendonly yes on the server" if "appendonly is disabled" in str(reply) else ""
            return f"the server cannot confirm it: {reply}{advice}", reply
        if call.words[0] == "WAIT" and wanted and (count := call.read(reply)) < wanted.replicas:
            return f"only {count} of {wanted.replicas} replicas got it {within}", None
        if call.words[0] == "WAITAOF" and not call.read(reply):
            return f"it was not on the disk of the server {within}", None
    return "", None
