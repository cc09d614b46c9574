"""Adds a job and waits for its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import InvalidJob, JobFailed, JobNotFound, WaitTimeout
from glidemq_orchestrate.events import Event, EventKind
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, Op, ask, side_by_side
from glidemq_orchestrate.wire.codec import decode
from glidemq_orchestrate.wire.keys import QueueKeys

REREAD_MS: Final = 1000
RESULT: Final = "returnvalue"
ENDS: Final = frozenset(
    {EventKind.COMPLETED, EventKind.FAILED, EventKind.EXPIRED, EventKind.REVOKED, EventKind.REMOVED}
)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A job to wait for, its deadline (monotonic ms), and a position in the events.

    ``may_have_ended``: the position may be after the end of the job.
    """

    job_id: JobId
    timeout_ms: int
    deadline: int
    position: str
    may_have_ended: bool


def add_awaited(
    queue: QueueKeys, new: NewJob, timeout_ms: int, clock: Clock, *, packed: bool = False
) -> Op[Awaited]:
    """Add a job for ``wait_for``; a separate operation, since only this part is confirmed."""
    if new.options.remove_on_complete or new.options.remove_on_fail:
        raise InvalidJob(
            "remove_on_complete and remove_on_fail must not be set: the job is read when it ends"
        )
    if timeout_ms <= 0:
        raise InvalidJob("timeout must be at least a millisecond")
    deadline = clock.monotonic_ms() + timeout_ms
    both: list[Op[Any]] = [
        add_job(queue, new, clock.now_ms(), packed=packed),
        ask(events.last_event(queue)),
    ]
    job_id, last = yield from side_by_side(both)
    is_own = last is not None and (last.kind, last.job_id) == (EventKind.ADDED, job_id)
    return Awaited(job_id, timeout_ms, deadline, events.after(last), may_have_ended=not is_own)


def wait_for(queue: QueueKeys, awaited: Awaited, clock: Clock) -> Op[Any]:
    """Wait for the result of a job. Events wake it; the job is also re-read, since events can be lost."""
    job_id, position, deadline = awaited.job_id, awaited.position, awaited.deadline
    reread = clock.monotonic_ms() if awaited.may_have_ended else 0
    while True:
        reread = reread or min(clock.monotonic_ms() + REREAD_MS, deadline)
        position, end = yield from _wait_for_end(queue, job_id, position, reread, clock)
        if end is not None and end.kind == EventKind.COMPLETED and RESULT in end.fields:
            return end.result
        state, result, reason = yield from ask(job_outcome(queue, job_id))
        if state == JobState.COMPLETED:
            return decode(result, where=f"result of job {job_id}")
        if state == JobState.FAILED:
            raise JobFailed(job_id, reason or "no reason given")
        if state is None:
            raise JobNotFound(f"job {job_id} of queue {queue.queue} was removed during the wait")
        if clock.monotonic_ms() >= deadline:
            raise WaitTimeout(f"job {job_id} is still {state} after {awaited.timeout_ms} ms")
        reread = 0


def _wait_for_end(
    queue: QueueKeys, job_id: str, position: str, until_ms: int, clock: Clock
) -> Op[tuple[str, Event | None]]:
    """Read events until one of them may be the end of the job, or until ``until_ms``."""
    while (left := until_ms - clock.monotonic_ms()) > 0:
        for event in (yield from events.read(queue, position, left)):
            position = event.id
            if event.job_id == job_id and event.kind in ENDS:
                return position, event
    return position, None


def job_outcome(queue: QueueKeys, job_id: str) -> Call[list[str | None]]:
    """State, result and reason of failure."""
    return job_hash.get_some(queue, job_id, ("state", "returnvalue", "failedReason"), list)
