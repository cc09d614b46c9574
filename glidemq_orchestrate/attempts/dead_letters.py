"""Writing dead letters: copies of failed jobs in another queue, in the form that glide-mq's workers write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from glidemq_orchestrate.errors import (
    DecodeError,
    EncodeError,
    GlideMQError,
    ProtocolError,
    TransportError,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.adding import EncodedJob, job_words
from glidemq_orchestrate.jobs.job import JobId, job_fields
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command, fields_of, function
from glidemq_orchestrate.wire.codec import Json, decode, encode, readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

PAGE: Final = 20
_CUSTOM_ID: Final = 16


@dataclass(frozen=True, slots=True)
class FailureNote:
    """The server's note of a failed job without retries left; with its data if the job may be removed.

    ``job_id`` is the field of the note: for a message ``<its id>||<the subscription in which it failed>``.
    """

    job_id: str
    failed_at: str
    name: str = ""
    data: str | None = None
    reason: str = ""
    attempts: int = 0

    @property
    def message_id(self) -> str:
        """The id of the job, without the subscription."""
        return self.job_id.partition("||")[0]

    @property
    def subscription(self) -> str | None:
        """The subscription in which a message failed; None for other jobs."""
        _, bars, name = self.job_id.partition("||")
        return name if bars and self.data is not None else None


def count(queue: QueueKeys) -> Call[int]:
    """How many failed jobs have no letter yet."""
    return command("HLEN", _key(queue), decode=replies.integer)


def noted(queue: QueueKeys) -> Call[list[str]]:
    """The ids of a page of noted jobs."""
    return command("HRANDFIELD", _key(queue), PAGE, decode=list)


def read_note(queue: QueueKeys, job_id: str) -> Call[FailureNote | None]:
    """The note of a job; None if there is none."""

    def decode(reply: Any) -> FailureNote | None:
        if not reply:
            return None
        failed_at, _, copy = str(reply).partition("\n")
        if not copy:
            return FailureNote(job_id, failed_at)
        try:
            name, data, reason, attempts = json.loads(copy)
            return FailureNote(job_id, failed_at, str(name), str(data), str(reason), int(attempts))
        except (ValueError, TypeError) as exc:
            raise ProtocolError(f"the note of failed job {job_id} cannot be read: {exc}") from exc

    return command("HGET", _key(queue), job_id, decode=decode)


def write(target: QueueKeys, letter_id: str, name: str, data: str, now_ms: int) -> Call[str]:
    """Add a letter without options, as Node does; ``duplicate`` if it exists. Idempotent."""
    keys = target.keys("id", "stream", "scheduled", "events")
    words = list(job_words(EncodedJob(name, data, DEFAULT_OPTIONS), now_ms))
    words[_CUSTOM_ID] = letter_id
    return function("glidemq_addJob", keys, words, replies.text)


def forget_note(queue: QueueKeys, note: FailureNote) -> Call[int]:
    """Remove the note, unless the job has failed again since."""
    return function("gmo_letter_written", [_key(queue)], (0, note.job_id, note.failed_at), replies.integer)


def forget_all(queue: QueueKeys) -> Call[int]:
    """Remove all notes: the queue no longer has a dead-letter queue."""
    return command("UNLINK", _key(queue), decode=replies.integer)


def _key(queue: QueueKeys) -> str:
    return queue.key("gmo:letters")


def queue_of(queue: QueueKeys) -> Op[str | None]:
    """The queue for the dead letters of a queue; None if none is set."""
    (name,) = yield from ask(fields_of(queue.key("meta"), "deadLetterQueueName"))
    return name or None


def write_noted(queues: Sequence[QueueKeys], clock: Clock) -> Op[list[JobId]]:
    """Write the letters of all noted jobs.

    Idempotent. It may be interrupted anywhere, or run twice at the same time: the id of a letter identifies
    the failure. A letter that cannot be written remains noted and delays no other letter; its error is raised
    at the end.
    """
    written: list[JobId] = []
    refused: GlideMQError | None = None
    for queue in queues:
        job_ids = yield from ask(noted(queue))
        name = (yield from queue_of(queue)) if job_ids else None
        if name is None:
            if job_ids:  # the dead-letter queue was unset in between
                yield from ask(forget_all(queue))
            continue
        for job_id in job_ids:
            try:
                written += yield from _write(queue, job_id, QueueKeys(queue.prefix, name), clock.now_ms())
            except TransportError:
                raise
            except GlideMQError as exc:
                refused = refused or exc
    if refused is not None:
        raise refused
    return written


def _write(queue: QueueKeys, job_id: str, target: QueueKeys, now_ms: int) -> Op[list[JobId]]:
    """Write the letter of one noted job; returns its id if it is new."""
    note = yield from ask(read_note(queue, job_id))
    if note is None:
        return []
    letter = yield from _letter_of(queue, note)
    if letter is None:
        return []
    failure = f"{queue.queue}\n{job_id}\n{note.failed_at}"
    mark = hashlib.sha256(failure.encode("utf-8", "surrogateescape")).hexdigest()
    word = yield from ask(
        write(
            target, f"dead-{mark[:32]}", readable(letter.name) or "unnamed", _envelope(queue, letter), now_ms
        )
    )
    yield from ask(forget_note(queue, note))
    return [] if word == "duplicate" else [JobId(word)]


def _letter_of(queue: QueueKeys, note: FailureNote) -> Op[FailureNote | None]:
    """The content of the letter, from the job, or the note if the job was removed; None: no letter (yet)."""
    if note.subscription is not None:
        return note
    try:
        fields = yield from ask(job_fields(queue, note.job_id))
    except ProtocolError as exc:
        return replace(note, name="unnamed", reason=f"the job cannot be read: {exc}")
    state = fields.get("state")
    if state == JobState.FAILED:
        return replace(
            note,
            name=readable(fields.get("name", "")) or "unnamed",
            data=fields.get("data"),
            reason=fields.get("failedReason", ""),
            attempts=number(fields.get("attemptsMade")),
        )
    if state is None and note.data is not None:
        return note
    if state != JobState.SUSPENDED:  # a suspended job has timed out and is about to fail
        yield from ask(forget_note(queue, note))
    return None


def _envelope(queue: QueueKeys, letter: FailureNote) -> str:
    """The data of the letter. Data that is too large is omitted; the failed job may still have it."""
    try:
        data = decode(letter.data, where="data")
    except DecodeError:
        data = None
    envelope: dict[str, Json] = {
        "originalQueue": queue.queue,
        "originalJobId": letter.message_id,
        "data": data,
        "failedReason": readable(letter.reason),
        "attemptsMade": letter.attempts,
    }
    if letter.subscription is not None:
        envelope["subscription"] = letter.subscription
    try:
        return encode(envelope, where="dead letter")
    except EncodeError:  # too large, or an id that JSON cannot represent
        small: dict[str, Json] = {"originalJobId": readable(letter.message_id), "data": None}
        return encode(envelope | small, where="dead letter")
