"""Calls about the workers of a queue: the live ones, and the jobs and consumers of dead ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys


def reclaim(
    queue: QueueKeys, consumer: str, *, lock_ms: int, max_stalled: int, now_ms: int
) -> Call[list[LostWorker]]:
    """Reclaim the jobs of lost workers. Flows that need ``advance_flow`` are noted on the server."""
    args = (now_ms, GROUP, consumer, lock_ms, lock_ms, max_stalled)
    return function("gmo_reclaim", [queue.key("stream")], args, _lost)


class LostWorker(NamedTuple):
    """A lost worker: how many jobs were taken back, how many of them had begun, and some of these."""

    worker: str
    jobs: int
    begun: int
    ids: list[str]


def _lost(reply: Any) -> list[LostWorker]:
    rows = ((readable(name), jobs, begun, replies.texts(ids)) for name, jobs, begun, *ids in reply[1])
    return [LostWorker(*row) for row in rows]


def renew(queue: QueueKeys, group: str, worker_id: str, goes_on: str, now_ms: int) -> Call[tuple[int, str]]:
    """Renew a page of the leases of a worker; how many, and where to go on or ''. Repeatable."""
    args = (now_ms, group, worker_id, goes_on)

    def decode(reply: Any) -> tuple[int, str]:
        return replies.integer(reply[0]), replies.text(reply[1])

    return function("gmo_renew", [queue.key("stream")], args, decode, repeatable=True)


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


def registered_until(queue: QueueKeys, now_ms: int) -> Call[dict[str, int]]:
    """The ids of our live workers, and until when each is registered."""
    words = ("ZRANGEBYSCORE", queue.workers(), now_ms, "+inf", "WITHSCORES")

    def decode(reply: Any) -> dict[str, int]:
        return {name: int(float(at)) for name, at in zip(reply[::2], reply[1::2], strict=True)}

    return command(*words, decode=decode)


def live_workers(queue: QueueKeys, now_ms: int) -> Call[list[str]]:
    """The ids of our live workers."""
    return command("ZRANGEBYSCORE", queue.workers(), now_ms, "+inf", decode=list)
