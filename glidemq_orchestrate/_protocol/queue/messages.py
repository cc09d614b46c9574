"""Calls that read the messages of jobs, which ``gmo_write_messages`` has written."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate._protocol import job_hash
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs.message import AcceptedAttempt, JobMessage
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import exact


def page(queue: QueueKeys, job_id: str, after: str, count: int) -> Call[list[JobMessage]]:
    """Messages in the stream of a job after a position."""
    start = f"({after}" if after else "-"

    def decode(reply: Any) -> list[JobMessage]:
        return [_message(entry_id, fields) for entry_id, fields in reply]

    return command("XRANGE", queue.messages(job_id), start, "+", "COUNT", count, decode=decode)


def accepted(queue: QueueKeys, job_id: str) -> Call[AcceptedAttempt | None]:
    """The attempt whose messages count; None if there is none."""

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
