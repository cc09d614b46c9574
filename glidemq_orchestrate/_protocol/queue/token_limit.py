"""Counters of glide-mq's rate limit by tokens: ``tpm:<window>``, where the window is now / length."""

from __future__ import annotations

from glidemq_orchestrate._protocol import job_hash
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number


def spent(queue: QueueKeys, window: int) -> Call[int]:
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
