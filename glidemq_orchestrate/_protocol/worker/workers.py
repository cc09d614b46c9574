"""Calls about the workers of a queue: the live ones, and the jobs and consumers of dead ones."""

from __future__ import annotations

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate.keys import GROUP, QueueKeys


def reclaim(
    queue: QueueKeys, consumer: str, *, lock_ms: int, max_stalled: int, now_ms: int
) -> Call[list[str]]:
    """Reclaim the jobs of dead workers. Returns the flows that need ``advance_flow``."""
    args = (now_ms, GROUP, consumer, lock_ms, lock_ms, max_stalled)
    return function("gmo_reclaim", [queue.key("stream")], args, replies.texts)


def forget_workers(queue: QueueKeys, group: str, silent_ms: int, now_ms: int) -> Call[int]:
    """Remove registrations and consumers of killed workers; returns how many consumers. Repeatable."""
    return function("gmo_forget_workers", [queue.key("stream")], (now_ms, group, silent_ms), replies.integer)


def announce_worker(queue: QueueKeys, worker_id: str, until_ms: int) -> Call[None]:
    """List a worker as live until ``until_ms``. Repeatable."""
    words = ("ZADD", queue.workers(), until_ms, worker_id)
    return command(*words, decode=replies.anything, repeatable=True)


def withdraw_worker(queue: QueueKeys, worker_id: str) -> Call[None]:
    """Take a worker off the list. Repeatable."""
    return command("ZREM", queue.workers(), worker_id, decode=replies.anything, repeatable=True)


def live_workers(queue: QueueKeys, now_ms: int) -> Call[list[str]]:
    """The ids of our live workers."""
    return command("ZRANGEBYSCORE", queue.workers(), now_ms, "+inf", decode=list)
