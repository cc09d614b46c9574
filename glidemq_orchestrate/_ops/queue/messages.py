"""Reading the messages of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glidemq_orchestrate._protocol.queue import messages as calls
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.events import check_position
from glidemq_orchestrate.jobs.bounds import whole
from glidemq_orchestrate.jobs.message import AcceptedAttempt, JobMessage
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE = 500
MAX = 10_000


def messages(queue: QueueKeys, job_id: str, after: str | None, limit: int) -> Op[list[JobMessage]]:
    """The messages of all attempts of a job, after a position."""
    whole("limit", limit, 1, MAX, error=ConfigurationError)
    position = check_position(after) if after is not None else ""
    return (yield from ask(calls.page(queue, job_id, position, limit)))


def accepted(queue: QueueKeys, job_ids: Sequence[str]) -> Op[Mapping[str, AcceptedAttempt]]:
    """The attempts whose messages count, by job; many jobs in a pipeline."""
    found: dict[str, AcceptedAttempt] = {}
    for first in range(0, len(job_ids), PAGE):
        some = job_ids[first : first + PAGE]
        replies = yield from ask_all([calls.accepted(queue, job_id) for job_id in some])
        found |= {job_id: one for job_id, one in zip(some, replies, strict=True) if one is not None}
    return found
