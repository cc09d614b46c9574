"""Calls about broadcasts: each subscription is a consumer group of the queue's stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

MAX: Final = 100
_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of a subscription: the queue, the consumer group and the consumer."""

    queue: QueueKeys
    group: str
    consumer: str


class Begun(NamedTuple):
    """A begun message: its entry, its job, how often it has failed, and the fields of the job.

    ``unreadable``: why its job cannot be read, if so.
    """

    entry_id: str
    job_id: str
    failures: int
    fields: dict[str, str]
    unreadable: str = ""


class Result(NamedTuple):
    """The outcome of a message.

    ``done``: with a result.
    ``fail``: with a reason, the max attempts and the backoff in ms.
    ``pass``: it is not for this subscription; ``first`` is 1 for the retry of another one.
    """

    entry_id: str
    job_id: str
    kind: str
    text: str = ""
    first: int = 0
    second: int = 0


class SubscriptionState(NamedTuple):
    """A message in one subscription: its state, why it failed, and the number of failed attempts."""

    subscription: str
    state: str
    reason: str
    failures: int


def trim(queue: QueueKeys, count: int, now_ms: int) -> Call[int]:
    """Remove a slice of the messages beyond the newest ``count``; returns the rest. Idempotent."""
    return function("gmo_trim_messages", [queue.key("stream")], (now_ms, count), replies.integer)


def subscribe(queue: QueueKeys, group: str, start: str) -> Call[None]:
    """Create a subscription; error BUSYGROUP if it exists."""
    return command("XGROUP", "CREATE", queue.key("stream"), group, start, "MKSTREAM", decode=replies.anything)


def unsubscribe(queue: QueueKeys, group: str) -> Call[int]:
    """Remove a subscription with its unhandled messages; 0 if there is none. An error without a stream."""
    return command("XGROUP", "DESTROY", queue.key("stream"), group, decode=replies.integer)


def settle(queue: QueueKeys, after: str, removed: str, now_ms: int) -> Call[str]:
    """End messages in a page of the stream that all have handled; returns the next position, '' at the end.

    Also deletes all traces of a ``removed`` subscription there.
    """
    start = f"({after}" if after else "-"
    return function("gmo_settle_messages", [queue.key("stream")], (now_ms, start, MAX, removed), replies.text)


def read(member: Member, *, count: int, block_ms: int, start: str) -> Call[Any]:
    """Entries of a subscription: new ones (``>``), or those after ``start`` that this consumer holds."""
    words = ("XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count, "BLOCK", block_ms)
    return command(
        *words,
        "STREAMS",
        member.queue.key("stream"),
        start,
        decode=replies.stream_entries,
        blocks_for=block_ms / 1000,
    )


def begin(member: Member, entries: Sequence[tuple[str, str, bool]], now_ms: int) -> Call[list[Begun]]:
    """Begin messages that were read: entry id, job id, whether it is a retry. Idempotent."""
    words = chain.from_iterable((entry, job, int(is_retry)) for entry, job, is_retry in entries)
    return _of(member, "gmo_begin_messages", now_ms, words, _begun)


def take_over(  # noqa: PLR0913  what to take
    member: Member, *, lock_ms: int, max_stalled: int, wanted: int, suspects: bool, now_ms: int
) -> Call[list[Begun]]:
    """Begin up to ``wanted`` messages of silent workers; an error without a group.

    ``suspects``: whether one of them may be a message that may have ended its worker.
    """
    words = (lock_ms, max_stalled, wanted, int(suspects))
    return _of(member, "gmo_take_over_messages", now_ms, words, _begun)


def end(member: Member, results: Sequence[Result], now_ms: int) -> Call[list[str]]:
    """Report outcomes; returns a word for each. A repeat is refused as stale."""
    return _of(
        member, "gmo_end_messages", now_ms, chain.from_iterable(results), replies.texts_of(len(results))
    )


def renew(member: Member, held: Sequence[tuple[str, str]], now_ms: int) -> Call[list[int]]:
    """Renew leases (entry id, job id): 1 renewed, 0 the message was revoked, -1 lost. Idempotent."""
    return _of(member, "gmo_renew_messages", now_ms, chain.from_iterable(held), replies.integers)


def states(queue: QueueKeys, job_id: str, now_ms: int) -> Call[list[SubscriptionState]]:
    """The state of a message in each subscription."""

    def decode(reply: Any) -> list[SubscriptionState]:
        rows = replies.rows(_COLUMNS)(reply)
        return [SubscriptionState(name, state, reason, int(made)) for name, state, reason, made in rows]

    return function("gmo_message_states", [queue.job(job_id)], (now_ms, job_id), decode)


def retry(  # noqa: PLR0913, PLR0917  the arguments of one server call
    queue: QueueKeys, job_id: str, group: str, name: str, data: str, copy_id: str, now_ms: int
) -> Call[str]:
    """Retry a message, or a copy, in a subscription; returns its id, '' if it has not failed. Idempotent."""
    args = (now_ms, job_id, group, name, data, copy_id)
    return function("gmo_retry_message", [queue.job(job_id)], args, replies.text)


def progress(queue: QueueKeys, job_id: str, text: str) -> Call[int]:
    """Store the progress of a message, shared by all subscriptions; 0 if the message was removed."""
    return job_hash.touch(queue, job_id, "progress", text)


def _of(member: Member, name: str, now_ms: int, words: Any, decode: Any) -> Call[Any]:
    args: list[Word] = [now_ms, member.group, member.consumer, *words]
    return function(name, [member.queue.key("stream")], args, decode)


def _begun(reply: Any) -> list[Begun]:
    found = []
    for entry_id, job_id, third, *rest in reply:
        if rest:
            found.append(Begun(entry_id, job_id, int(third), replies.fields(rest[0])))
        else:
            found.append(Begun(entry_id, job_id, 0, {}, str(third)))
    return found
