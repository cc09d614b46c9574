"""The consumer groups of a queue, and the workers registered for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys


class ConsumerGroup(NamedTuple):
    """A consumer group: how many entries its consumers hold, the last delivered one, and how many follow it.

    ``lag``: None if the server cannot compute it.
    """

    name: str
    pending: int
    last: str
    lag: int | None


def create_group(queue: QueueKeys) -> Call[None]:
    """Create the consumer group of the workers; error BUSYGROUP if it exists."""
    return command("XGROUP", "CREATE", queue.key("stream"), GROUP, "0", "MKSTREAM", decode=replies.anything)


def register_worker(  # noqa: PLR0913  the arguments of one server call
    queue: QueueKeys, worker_id: str, description: str, ttl_ms: int, now_ms: int, *, runs_jobs: bool = True
) -> Call[None]:
    """Register a live worker until ``ttl_ms`` from now, even if memory is full. Idempotent.

    It is listed if it ``runs_jobs``; those of subscriptions are found as their consumers.
    """
    keys = [queue.worker(worker_id), *([queue.workers()] if runs_jobs else [])]
    args = now_ms, worker_id, ttl_ms, description
    return function("gmo_register_worker", keys, args, replies.anything, repeatable=True)


def forget_worker(queue: QueueKeys, worker_id: str) -> Call[None]:
    """Remove a registration. Idempotent."""
    return command("UNLINK", queue.worker(worker_id), decode=replies.anything, repeatable=True)


def worker_descriptions(queue: QueueKeys, worker_ids: list[str]) -> Call[list[str | None]]:
    """The registration of each worker; None if it has expired."""
    return command("MGET", *(queue.worker(worker) for worker in worker_ids), decode=list)


def consumers(queue: QueueKeys, group: str = GROUP) -> Call[list[dict[str, Any]]]:
    """The consumers of a group with their idle times; an error without the group."""
    return command(
        "XINFO",
        "CONSUMERS",
        queue.key("stream"),
        group,
        decode=lambda reply: [_consumer(replies.mapping(row)) for row in reply],
    )


def groups(queue: QueueKeys) -> Call[list[str]]:
    """The consumer groups of the stream; an error without a stream."""
    return command(
        "XINFO",
        "GROUPS",
        queue.key("stream"),
        decode=lambda reply: [str(replies.mapping(g)["name"]) for g in reply],
    )


def group_details(queue: QueueKeys) -> Call[list[ConsumerGroup]]:
    """The consumer groups of the stream; an error without a stream."""

    def decode(reply: Any) -> list[ConsumerGroup]:
        found = [replies.mapping(row) for row in reply]
        return [
            ConsumerGroup(
                str(row["name"]), int(row["pending"]), str(row["last-delivered-id"]), row.get("lag")
            )
            for row in found
        ]

    return command("XINFO", "GROUPS", queue.key("stream"), decode=decode)


def has_pending(queue: QueueKeys, consumer: str) -> Call[bool]:
    """Whether entries are still assigned to a consumer."""
    words = ("XPENDING", queue.key("stream"), GROUP, "-", "+", 1, consumer)
    return command(*words, decode=bool)


def drop_consumer(queue: QueueKeys, consumer: str) -> Call[None]:
    """Remove a consumer that holds no entry."""
    return command("XGROUP", "DELCONSUMER", queue.key("stream"), GROUP, consumer, decode=replies.anything)


def _consumer(fields: dict[str, Any]) -> dict[str, Any]:
    return {"name": str(fields["name"]), "pending": int(fields["pending"]), "idle": int(fields["idle"])}


def withdraw_worker(queue: QueueKeys, worker_id: str) -> Call[None]:
    """Remove a worker from the list of live workers. Idempotent."""
    return command("ZREM", queue.workers(), worker_id, decode=replies.anything, repeatable=True)


def registered_until(queue: QueueKeys, now_ms: int) -> Call[dict[str, int]]:
    """The expiry of each registration of our live workers, by worker id."""
    words = ("ZRANGEBYSCORE", queue.workers(), now_ms, "+inf", "WITHSCORES")

    def decode(reply: Any) -> dict[str, int]:
        return {name: int(float(at)) for name, at in zip(reply[::2], reply[1::2], strict=True)}

    return command(*words, decode=decode)


def live_workers(queue: QueueKeys, now_ms: int) -> Call[list[str]]:
    """The ids of our live workers."""
    return command("ZRANGEBYSCORE", queue.workers(), now_ms, "+inf", decode=list)
