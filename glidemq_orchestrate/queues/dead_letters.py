"""Dead letters: copies of failed jobs in another queue, in the form that glide-mq's workers write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from glidemq_orchestrate.attempts.dead_letters import queue_of
from glidemq_orchestrate.broadcasts.messages import retry
from glidemq_orchestrate.errors import (
    ConfigurationError,
    JobNotFound,
)
from glidemq_orchestrate.jobs import changes as jobs
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.job import Job, JobId, get_job
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import limits as queue_settings
from glidemq_orchestrate.queues import listing, removal
from glidemq_orchestrate.queues.listing import JobFilter
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import encode
from glidemq_orchestrate.wire.keys import QueueKeys, check_queue_name


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A failed job as stored in the dead-letter queue.

    Attributes:
        id: The id of the letter, in the dead-letter queue.
        job_id: The id of the job that failed, in its own queue.
        name: The name of the job.
        data: The data of the job.
        failed_reason: Why it failed.
        attempts_made: The number of attempts; one too few if a Node worker wrote the letter.
        buried_at: When the letter was written.
        subscription: Where a broadcast message failed; None for other jobs.
    """

    id: JobId
    job_id: JobId
    name: str
    data: Any
    failed_reason: str
    attempts_made: int
    buried_at: datetime | None
    subscription: str | None = None


def set_queue(queue: QueueKeys, name: str | None) -> Op[None]:
    """Set the queue for the dead letters of a queue."""
    if name is None:
        yield from ask(queue_settings.drop_meta(queue, "deadLetterQueueName"))
        return
    if check_queue_name(name) == queue.queue:
        raise ConfigurationError("the dead-letter queue must be another queue")
    yield from ask(queue_settings.set_meta(queue, "deadLetterQueueName", name))


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
    yield from removal.remove((yield from _target(queue)), letter_id, now_ms)


def replay(queue: QueueKeys, letter_id: str, now_ms: int) -> Op[JobId]:
    """Rerun the failed job, or a copy if it was removed; then delete the letter."""
    letter = yield from get(queue, letter_id)
    if letter.subscription is not None:
        job_id = yield from _replay_message(queue, letter, letter.subscription, now_ms)
    else:
        try:
            yield from jobs.retry(queue, letter.job_id, now_ms)
            job_id = letter.job_id
        except JobNotFound:
            job_id = yield from add_job(queue, NewJob(letter.name, letter.data), now_ms)
    yield from removal.remove((yield from _target(queue)), letter_id, now_ms)
    return job_id


def _replay_message(queue: QueueKeys, letter: DeadLetter, subscription: str, now_ms: int) -> Op[JobId]:
    """Retry the message, or a copy if it was removed, in the subscription that failed only."""
    data, copy_id = encode(letter.data, where="data"), f"again-{letter.id.removeprefix('dead-')}"
    call = retry(queue, letter.job_id, subscription, letter.name, data, copy_id, now_ms)
    return JobId((yield from ask(call)) or letter.job_id)


def _target(queue: QueueKeys) -> Op[QueueKeys]:
    name = yield from queue_of(queue)
    if name is None:
        raise JobNotFound(f"queue {queue.queue} has no dead-letter queue")
    return QueueKeys(queue.prefix, name)


def _letter(queue: QueueKeys, job: Job) -> DeadLetter | None:
    """Read a job of the dead-letter queue as a letter of this queue; None if it is not one."""
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
