"""The rate limit by tokens: checked before a run, charged after it with the usage of the job."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.usage import usage_of
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number


def counter(queue: QueueKeys, window: int) -> Call[int]:
    """Tokens that all workers of the queue have spent in a window."""
    return command("GET", queue.tokens(window), decode=number)


def begin(queue: QueueKeys, window: int, length_ms: int) -> Call[bool]:
    """Make the counter of a window, with its end, unless there is one. Repeatable."""
    return command("SET", queue.tokens(window), 0, "PX", length_ms, "NX", decode=bool)


def spend(queue: QueueKeys, window: int, tokens: int) -> Call[int]:
    """Count tokens; not repeatable."""
    return command("INCRBY", queue.tokens(window), tokens, decode=replies.integer)


def forget_after(queue: QueueKeys, window: int, length_ms: int) -> Call[int]:
    """Let the counter, which may be a Node worker's without an end, expire. Repeatable."""
    return command("PEXPIRE", queue.tokens(window), length_ms, decode=replies.integer)


def reported(queue: QueueKeys, job_id: str) -> Call[int]:
    """Tokens that ``report_tokens`` reported, for this limit only."""
    return job_hash.get(queue, job_id, "tpmTokens", number)


def spent(queue: QueueKeys, window: int) -> Op[int]:
    """Tokens that all workers of the queue have spent in a window."""
    return (yield from ask(counter(queue, window)))


def used(queue: QueueKeys, job_id: str) -> Op[int]:
    """Tokens of a completed job: its usage, or the tokens reported for the limit if those are more."""
    usage = yield from usage_of(queue, job_id)
    total = usage.to_wire().get("totalTokens", 0) if usage is not None else 0
    return max(round(total), (yield from ask(reported(queue, job_id))))


def charge(queue: QueueKeys, window: int, tokens: int, length_ms: int) -> Op[None]:
    """Count tokens in a window. Not repeatable; a kill in between leaves a counter that expires."""
    todo: list[Call[Any]] = [
        begin(queue, window, length_ms),
        spend(queue, window, tokens),
        forget_after(queue, window, length_ms),
    ]
    yield from ask_all(todo)
