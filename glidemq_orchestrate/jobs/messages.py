"""Reads the messages of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glidemq_orchestrate.errors import ConfigurationError, ProtocolError
from glidemq_orchestrate.events import check_position
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.bounds import whole
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import exact

PAGE = 500
MAX = 10_000


@dataclass(frozen=True, slots=True)
class JobMessage:
    """One message.

    Attributes:
        id: The position after which reading continues.
        attempt: The attempt that wrote it.
        number: Its number within the attempt, from 1.
        text: The text that was written.
    """

    id: str
    attempt: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class AcceptedAttempt:
    """The attempt with the accepted result, if it has written messages.

    Attributes:
        attempt: Its id, as in its messages.
        count: How many messages it has written. Fewer can be read after some have expired.
        job_id: The job to read them from; a different one if its result was carried over.
    """

    attempt: str
    count: int
    job_id: str


def page(queue: QueueKeys, job_id: str, after: str, count: int) -> Call[list[JobMessage]]:
    """Messages in the stream of a job after a position."""
    start = f"({after}" if after else "-"

    def decode(reply: Any) -> list[JobMessage]:
        return [_message(entry_id, fields) for entry_id, fields in reply]

    return command("XRANGE", queue.messages(job_id), start, "+", "COUNT", count, decode=decode)


def accepted_attempt(queue: QueueKeys, job_id: str) -> Call[AcceptedAttempt | None]:
    """The attempt with the accepted result; None if there is none."""

    def decode(reply: Any) -> AcceptedAttempt | None:
        if not reply:
            return None
        count, token, processed_on, writer = reply.split(" ", 3)
        return AcceptedAttempt(f"{token} {processed_on}", exact(count) or 0, writer)

    return job_hash.get(queue, job_id, "gmo:accepted", decode)


def _message(entry_id: str, fields: Any) -> JobMessage:
    found = replies.pairs(fields)
    number = exact(found.get("number"))
    if number is None or "text" not in found:
        raise ProtocolError("a message of a job lacks its number or text")
    return JobMessage(entry_id, found.get("attempt", ""), number, found["text"])


def messages(queue: QueueKeys, job_id: str, after: str | None, limit: int) -> Op[list[JobMessage]]:
    """The messages of all attempts of a job, after a position."""
    whole("limit", limit, 1, MAX, error=ConfigurationError)
    position = check_position(after) if after is not None else ""
    return (yield from ask(page(queue, job_id, position, limit)))


def accepted(queue: QueueKeys, job_ids: Sequence[str]) -> Op[Mapping[str, AcceptedAttempt]]:
    """The attempts with accepted results, by job; reads many jobs in a pipeline."""
    found: dict[str, AcceptedAttempt] = {}
    for first in range(0, len(job_ids), PAGE):
        some = job_ids[first : first + PAGE]
        rows = yield from ask_all([accepted_attempt(queue, job_id) for job_id in some])
        found |= {job_id: one for job_id, one in zip(some, rows, strict=True) if one is not None}
    return found
