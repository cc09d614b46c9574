"""Renews and checks the leases of a worker, also after a failover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from glidemq_orchestrate.attempts import exchange as wire
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, Request
from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys

_BEATS: Final = 500


def stands(queue: QueueKeys, outcome: Outcome, verdict: str) -> Op[bool]:
    """Whether a verdict still holds on a server that has just taken over and refuses to repeat it.

    It does not if the job did not end by this attempt: then the verdict was lost and another attempt ran.
    """
    ends = {"ok": "completed", "failed": "failed"}
    if outcome.kind not in (Kind.DONE, Kind.SKIP, Kind.FAIL) or verdict not in ends:
        return True  # the job continues in either case
    names: tuple[JobField, ...] = ("state", "gmo:token", "processedOn")
    attempt = outcome.attempt
    state, token, started = yield from ask(job_hash.get_some(queue, attempt.job_id, names, list))
    if state is None:  # it was removed after its end
        return True
    return (state, token, started) == (ends[verdict], attempt.token, attempt.processed_on)


def check_owner(queue: QueueKeys, attempt: Attempt) -> Op[None]:
    """Check that an attempt still owns its job, and that the job was not revoked.

    Raises:
        LeaseLost: The lease was lost or the job was revoked.
    """
    names: tuple[JobField, ...] = ("state", "gmo:token", "processedOn", "revoked")
    state, token, started, revoked = yield from ask(job_hash.get_some(queue, attempt.job_id, names, list))
    if (state, token, started) != ("active", attempt.token, attempt.processed_on):
        now = f"is {readable(state)}" if state else "was removed"
        raise LeaseLost(f"this attempt no longer owns job {attempt.job_id}, which {now}")
    if revoked == "1":
        raise LeaseLost(f"job {attempt.job_id} was cancelled")


def heartbeat(queue: QueueKeys, held: Sequence[Attempt], now_ms: int) -> Op[list[int]]:
    """Renew the leases of one queue: 1 renewed, 0 renewed but to be stopped, -1 lost."""
    pages = [held[first : first + _BEATS] for first in range(0, len(held), _BEATS)]
    renewed = yield from ask_all([wire.heartbeat(queue, page, now_ms) for page in pages])
    return [beat for page in renewed for beat in page]


def renew_all(queue: QueueKeys, group: str, worker_id: str, clock: Clock) -> Op[int]:
    """Renew all leases of a worker in a queue or subscription; returns how many."""
    total, goes_on = 0, ""
    while True:
        count, goes_on = yield from ask(renew(queue, group, worker_id, goes_on, clock.now_ms()))
        total += count
        if not goes_on:
            return total


def begin(queue: QueueKeys, consumer: str, attempt: Attempt, clock: Clock) -> Op[bool]:
    """Report that the handler of an attempt begins. Returns whether the attempt still owns its job."""
    request = Request([Outcome(attempt, Kind.BEGUN)], 0, "")
    answer = yield from ask(wire.finish_and_fetch(queue, consumer, request, clock.now_ms()))
    return answer.verdicts == ["ok"]


def renew(queue: QueueKeys, group: str, worker_id: str, goes_on: str, now_ms: int) -> Call[tuple[int, str]]:
    """Renew a page of the leases of a worker; returns how many, and where to continue or ''. Idempotent."""
    args = (now_ms, group, worker_id, goes_on)

    def decode(reply: Any) -> tuple[int, str]:
        return replies.integer(reply[0]), replies.text(reply[1])

    return function("gmo_renew", [queue.key("stream")], args, decode, repeatable=True)
