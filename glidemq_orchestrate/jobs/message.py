"""What an attempt of a job has written by ``ctx.write_message``, as readers see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobMessage:
    """One message.

    Attributes:
        id: The position after which reading continues.
        attempt: The attempt that wrote it.
        number: Its place among the messages of the attempt, from 1.
        text: What was written.
    """

    id: str
    attempt: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class AcceptedAttempt:
    """The attempt whose result was accepted, if it has written messages.

    Attributes:
        attempt: As in its messages.
        count: How many it has written. Fewer can be read when they have expired.
        job_id: The job to read them from: another one where a result was carried over from it.
    """

    attempt: str
    count: int
    job_id: str
