"""Fetching entries, and what arrives in them, by ChasquiMQ's rules; renewing them, and giving them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.chasquimq.dead_letters import DeadReason
from glidemq_orchestrate.chasquimq.envelope import MAX_PAYLOAD_BYTES, Envelope
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.msgpack import from_word
from glidemq_orchestrate.chasquimq.scripts import CLAIM, LEAVE, OPEN, script
from glidemq_orchestrate.errors import DecodeError, ProtocolError
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, command

GIVEN_BACK_MS: Final = 1_000_000_000
"""The idle time of entries that are given back: longer than that after which any worker takes them."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer of a queue.

    Attributes:
        keys: The keys of the queue.
        group: Its consumer group.
        name: Its name in the group.
        max_attempts: The max number of runs of a job without a number of its own.
    """

    keys: ChasquiKeys
    group: str
    name: str
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """An entry that holds a job.

    Attributes:
        entry_id: Its position in the stream.
        name: The name of the job as stored.
        envelope: The job.
        deliveries: How often it was handed to a worker before.
    """

    entry_id: str
    name: str
    envelope: Envelope
    deliveries: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that no handler may run.

    Attributes:
        entry_id: Its position in the stream.
        reason: Why.
        payload: What it holds.
        name: The name of the job; empty if it cannot be trusted.
        detail: More about the reason.
        job_id: The job; empty if it cannot be read.
        runs: How many runs there were.
    """

    entry_id: str
    reason: DeadReason
    payload: bytes
    name: str = ""
    detail: str = ""
    job_id: str = ""
    runs: int = 0


Entry = tuple[str, Mapping[str, str]]


def open_group(consumer: Consumer) -> Call[None]:
    """Create the group, which begins at the start of the stream, unless it exists."""
    keys = [consumer.keys.key("stream")]
    return script(OPEN, keys, [consumer.group], replies.anything, repeatable=True)


def read(consumer: Consumer, count: int, wait_ms: int) -> Call[list[Arrived | Refused]]:
    """New entries; waits for the first, unless ``wait_ms`` is 0."""

    def decode(reply: Any) -> list[Arrived | Refused]:
        found = replies.stream_entries(reply)
        return [_arrived(consumer, entry, 0) for entries in found.values() for entry in entries]

    block: list[Word] = ["BLOCK", wait_ms] if wait_ms else []
    words = (
        "XREADGROUP", "GROUP", consumer.group, consumer.name, "COUNT", count, *block,
        "STREAMS", consumer.keys.key("stream"), ">",
    )  # fmt: skip
    return Call(words, decode, blocks_for=wait_ms / 1000)


def take_over(
    consumer: Consumer, idle_ms: int, count: int, held: Iterable[str]
) -> Op[list[Arrived | Refused]]:
    """Entries whose consumer has been silent for so long; not those that this one holds."""
    stream, known = consumer.keys.key("stream"), set(held)
    words = ("XAUTOCLAIM", stream, consumer.group, consumer.name, idle_ms, "0-0", "COUNT", count)
    claimed: list[Entry] = yield from ask(Call(words, _claimed))
    found = [entry for entry in claimed if entry[0] not in known]
    pending = yield from ask_all(_deliveries(consumer, entry_id) for entry_id, _ in found)
    # The number includes this delivery.
    return [_arrived(consumer, entry, count - 1) for entry, count in zip(found, pending, strict=True)]


def _claimed(reply: Any) -> list[Entry]:
    return [(entry_id, replies.pairs(fields)) for entry_id, fields in reply[1] if fields is not None]


def _deliveries(consumer: Consumer, entry_id: str) -> Call[int]:
    words = ("XPENDING", consumer.keys.key("stream"), consumer.group, entry_id, entry_id, 1)
    return command(*words, decode=lambda reply: int(reply[0][3]) if reply else 1)


def _arrived(consumer: Consumer, entry: Entry, deliveries: int) -> Arrived | Refused:
    """Check an entry; ``deliveries``: how often it was delivered before."""
    (entry_id, fields), name = entry, entry[1].get("n", "")
    if "d" not in fields:
        detail = "missing or non-bytes payload field"
        return Refused(entry_id, DeadReason.MALFORMED, b"", detail=detail)
    payload = from_word(fields["d"])
    if len(payload) > MAX_PAYLOAD_BYTES:
        return Refused(entry_id, DeadReason.OVERSIZE_PAYLOAD, payload, name)
    try:
        envelope = Envelope.read(payload)
    except DecodeError:
        return Refused(entry_id, DeadReason.DECODE_FAILED, payload)
    runs = max(envelope.attempt, deliveries - 1, 0)
    if runs + 1 > max_attempts_of(consumer, envelope):
        reason = DeadReason.RETRIES_EXHAUSTED
        return Refused(entry_id, reason, payload, name, job_id=envelope.job_id, runs=runs)
    return Arrived(entry_id, name, envelope, deliveries)


def max_attempts_of(consumer: Consumer, envelope: Envelope) -> int:
    """The max number of runs of a job."""
    own = envelope.options.max_attempts
    return consumer.max_attempts if own is None else own


def claim(consumer: Consumer, entries: Sequence[str], idle_ms: int = 0) -> Call[list[str]]:
    """Renew entries, or give them back; returns those that the consumer does not hold."""
    words: list[Word] = [consumer.group, consumer.name, idle_ms, *entries]
    return script(CLAIM, [consumer.keys.key("stream")], words, replies.texts, repeatable=True)


def give_back_all(consumer: Consumer) -> Op[int]:
    """Give back everything that the consumer holds, also what it has not seen; returns how many."""
    return (yield from _claim_all(consumer, GIVEN_BACK_MS))


def renew_all(consumer: Consumer) -> Op[int]:
    """Renew everything that the consumer holds; returns how many."""
    return (yield from _claim_all(consumer, 0))


def _claim_all(consumer: Consumer, idle_ms: int) -> Op[int]:
    count, first = 0, "-"
    while True:
        words = ("XPENDING", consumer.keys.key("stream"), consumer.group, first, "+", 500, consumer.name)
        try:
            found = yield from ask(command(*words, decode=lambda reply: [str(row[0]) for row in reply]))
        except ProtocolError as exc:
            if exc.code != "NOGROUP":
                raise
            return count  # somebody has deleted the queue
        if not found:
            return count
        yield from ask(claim(consumer, found, idle_ms))
        count, first = count + len(found), f"({found[-1]}"


def leave(consumer: Consumer) -> Call[None]:
    """Remove the consumer from its group if it holds nothing, and its locks."""
    keys = consumer.keys
    names = [keys.key("stream"), keys.key("promoter:lock"), keys.key("scheduler:lock")]
    return script(LEAVE, names, [consumer.group, consumer.name], replies.anything, repeatable=True)
