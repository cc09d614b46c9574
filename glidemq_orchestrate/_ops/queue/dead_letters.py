"""Dead letters: copies of failed jobs in another queue, in the form that glide-mq's workers write."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from glidemq_orchestrate._ops.queue import jobs, listing
from glidemq_orchestrate._ops.queue.adding import NewJob, add_job, get_job
from glidemq_orchestrate._ops.queue.listing import JobFilter
from glidemq_orchestrate._protocol.queue import admin, broadcast, reads
from glidemq_orchestrate._protocol.queue import dead_letters as letters
from glidemq_orchestrate._protocol.queue import jobs as job_calls
from glidemq_orchestrate._protocol.queue.dead_letters import Note
from glidemq_orchestrate.errors import (
    ConfigurationError,
    DecodeError,
    EncodeError,
    GlideMQError,
    JobNotFound,
    ProtocolError,
    TransportError,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.job import Job, JobId
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import Json, decode, encode, readable
from glidemq_orchestrate.wire.keys import QueueKeys, check_queue_name
from glidemq_orchestrate.wire.stored import number


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A failed job as stored in the dead-letter queue.

    Attributes:
        id: The id of the letter, in the dead-letter queue.
        job_id: The id of the job that failed, in its own queue.
        name: The handler that ran it.
        data: The data of the job.
        failed_reason: Why it failed.
        attempts_made: How often it was tried; one less when a Node worker wrote the letter.
        buried_at: When the letter was written.
        subscription: The one in which a message of a broadcast failed; None for other jobs.
    """

    id: JobId
    job_id: JobId
    name: str
    data: Json
    failed_reason: str
    attempts_made: int
    buried_at: datetime | None
    subscription: str | None = None


def set_queue(queue: QueueKeys, name: str | None) -> Op[None]:
    """Set the queue for the dead letters of a queue."""
    if name is None:
        yield from ask(admin.drop_meta(queue, "deadLetterQueueName"))
        return
    if check_queue_name(name) == queue.queue:
        raise ConfigurationError("the dead-letter queue must be another queue")
    yield from ask(admin.set_meta(queue, "deadLetterQueueName", name))


def queue_of(queue: QueueKeys) -> Op[str | None]:
    """The queue for the dead letters of a queue; None if none is set."""
    (name,) = yield from ask(reads.meta(queue, "deadLetterQueueName"))
    return name or None


def write_noted(queues: Sequence[QueueKeys], clock: Clock) -> Op[list[JobId]]:
    """Write the letters of jobs that have failed for good, as noted by the calls that failed them.

    Repeatable, may be interrupted anywhere or run twice at the same time: the id of a letter identifies the
    failure. One that cannot be written remains noted and delays no other; its error is raised at the end.
    """
    written: list[JobId] = []
    refused: GlideMQError | None = None
    for queue in queues:
        job_ids = yield from ask(letters.noted(queue))
        name = (yield from queue_of(queue)) if job_ids else None
        if name is None:
            if job_ids:  # the dead-letter queue was unset meanwhile
                yield from ask(letters.forget_all(queue))
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
    note = yield from ask(letters.note(queue, job_id))
    if note is None:
        return []
    letter = yield from _letter_of(queue, note)
    if letter is None:
        return []
    failure = f"{queue.queue}\n{job_id}\n{note.failed_at}"
    mark = hashlib.sha256(failure.encode("utf-8", "surrogateescape")).hexdigest()
    word = yield from ask(
        letters.write(
            target, f"dead-{mark[:32]}", readable(letter.name) or "unnamed", _envelope(queue, letter), now_ms
        )
    )
    yield from ask(letters.written(queue, note))
    return [] if word == "duplicate" else [JobId(word)]


def _letter_of(queue: QueueKeys, note: Note) -> Op[Note | None]:
    """The content of the letter: from the job, or the note if the job was removed; None: no letter (yet)."""
    if note.subscription is not None:
        return note
    try:
        fields = yield from ask(job_calls.job_fields(queue, note.job_id))
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
        yield from ask(letters.written(queue, note))
    return None


def _envelope(queue: QueueKeys, letter: Note) -> str:
    """The data of the letter; data too large for it is left out, as the failed job may still have it."""
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


def dead_letters(queue: QueueKeys, offset: int, limit: int) -> Op[list[DeadLetter]]:
    """The dead letters of a queue, oldest first."""
    name = yield from queue_of(queue)
    if name is None:
        return []
    wanted = JobFilter(JobState.WAITING, data={"originalQueue": queue.queue})
    found = yield from listing.get_jobs(QueueKeys(queue.prefix, name), wanted, range(offset, offset + limit))
    return [letter for job in found if (letter := _letter(queue, job))]


def get(queue: QueueKeys, letter_id: str) -> Op[DeadLetter]:
    """Read one dead letter."""
    target = yield from _target(queue)
    letter = _letter(queue, (yield from get_job(target, letter_id)))
    if letter is None:
        raise JobNotFound(
            f"job {letter_id} of queue {target.queue} is not a dead letter of queue {queue.queue}"
        )
    return letter


def remove(queue: QueueKeys, letter_id: str, now_ms: int) -> Op[None]:
    """Delete a dead letter; the failed job remains."""
    yield from get(queue, letter_id)
    yield from jobs.remove((yield from _target(queue)), letter_id, now_ms)


def replay(queue: QueueKeys, letter_id: str, now_ms: int) -> Op[JobId]:
    """Run the failed job again, or a copy of it if it was removed; then delete the letter."""
    letter = yield from get(queue, letter_id)
    if letter.subscription is not None:
        job_id = yield from _replay_message(queue, letter, letter.subscription, now_ms)
    else:
        try:
            yield from jobs.retry(queue, letter.job_id, now_ms)
            job_id = letter.job_id
        except JobNotFound:
            job_id = yield from add_job(queue, NewJob(letter.name, letter.data), now_ms)
    yield from jobs.remove((yield from _target(queue)), letter_id, now_ms)
    return job_id


def _replay_message(queue: QueueKeys, letter: DeadLetter, subscription: str, now_ms: int) -> Op[JobId]:
    """Let the subscription that failed try the message again, or a copy if it was removed; no other does."""
    data, copy_id = encode(letter.data, where="data"), f"again-{letter.id.removeprefix('dead-')}"
    call = broadcast.retry(queue, letter.job_id, subscription, letter.name, data, copy_id, now_ms)
    return JobId((yield from ask(call)) or letter.job_id)


def _target(queue: QueueKeys) -> Op[QueueKeys]:
    name = yield from queue_of(queue)
    if name is None:
        raise JobNotFound(f"queue {queue.queue} has no dead-letter queue")
    return QueueKeys(queue.prefix, name)


def _letter(queue: QueueKeys, job: Job) -> DeadLetter | None:
    """A job of the dead-letter queue as a letter of this queue; None if it is not one."""
    envelope: Mapping[str, Any] = job.data if isinstance(job.data, dict) else {}
    if envelope.get("originalQueue") != queue.queue:
        return None
    attempts, subscription = envelope.get("attemptsMade"), envelope.get("subscription")
    return DeadLetter(
        id=job.id,
        job_id=JobId(str(envelope.get("originalJobId", ""))),
        name=job.name,
        data=envelope.get("data"),
        failed_reason=str(envelope.get("failedReason", "")),
        attempts_made=attempts if isinstance(attempts, int) else 0,
        buried_at=job.created_at,
        subscription=subscription if isinstance(subscription, str) else None,
    )
