"""Calls about broadcasts: each subscription is a consumer group of the queue's stream."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate._protocol import job_hash, replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate.keys import QueueKeys


def trim(queue: QueueKeys, count: int) -> Call[int]:
    """Keep the newest messages of the stream; their hashes stay."""
    return command("XTRIM", queue.key("stream"), "MAXLEN", "=", count, decode=replies.integer)


def subscribe(queue: QueueKeys, group: str, start: str) -> Call[None]:
    """Create a subscription; refused with BUSYGROUP if it exists."""
    return command("XGROUP", "CREATE", queue.key("stream"), group, start, "MKSTREAM", decode=replies.anything)


def read(  # noqa: PLR0913  the arguments of one server call
    queue: QueueKeys, group: str, consumer: str, *, count: int, block_ms: int, start: str
) -> Call[Any]:
    """Entries of a subscription: new ones (``>``), or those after ``start`` that this consumer holds."""
    words = ("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "BLOCK", block_ms, "STREAMS")
    return command(
        *words, queue.key("stream"), start, decode=replies.stream_entries, blocks_for=block_ms / 1000
    )


def acknowledge(queue: QueueKeys, group: str, entry_id: str) -> Call[int]:
    """Acknowledge an entry of a subscription. Repeatable."""
    return command("XACK", queue.key("stream"), group, entry_id, decode=replies.integer)


def activate(queue: QueueKeys, job_id: str, entry_id: str, group: str, now_ms: int) -> Call[Any]:
    """Start a run: the fields of the job, or a status text."""

    def decode(reply: Any) -> Any:
        return reply if isinstance(reply, str) else replies.fields(reply)

    keys = [queue.job(job_id), queue.key("stream")]
    return function("glidemq_moveToActive", keys, (now_ms, entry_id, group, job_id, 1), decode)


def complete(  # noqa: PLR0913, PLR0917  the arguments of one server call
    queue: QueueKeys, job_id: str, entry_id: str, group: str, result: str, now_ms: int
) -> Call[int]:
    """Complete the run of this subscription."""
    keys = queue.keys("stream", "completed", "events")
    keys += [queue.job(job_id), queue.key("metrics:completed")]
    args = (job_id, entry_id, result, now_ms, group, 0, 0, 0, "", "", 1)
    return function("glidemq_complete", keys, args, replies.integer)


def beat(queue: QueueKeys, job_id: str, now_ms: int) -> Call[None]:
    """Send a heartbeat of a run."""
    return job_hash.put(queue, job_id, {"lastActive": now_ms})


def reclaim(  # noqa: PLR0913, PLR0917  the arguments of one server call
    queue: QueueKeys, group: str, consumer: str, lock_ms: int, max_stalled: int, now_ms: int
) -> Call[int]:
    """Reclaim the messages of dead consumers of the subscription."""
    args = (group, consumer, lock_ms, max_stalled, now_ms, queue.key("failed"), 1, lock_ms)
    return function(
        "glidemq_reclaimStalled", [queue.key("stream"), queue.key("events")], args, replies.integer
    )


def fail(  # noqa: PLR0913  the arguments of one server call
    queue: QueueKeys,
    job_id: str,
    entry_id: str,
    group: str,
    *,
    reason: str,
    max_attempts: int,
    backoff_ms: int,
    now_ms: int,
) -> Call[str]:
    """Fail the run of this subscription; returns ``retrying`` or ``failed``."""
    keys = queue.keys("stream", "failed", "scheduled", "events")
    keys += [queue.job(job_id), queue.key("metrics:failed")]
    args = (job_id, entry_id, reason, now_ms, max_attempts, backoff_ms, group, 0, 0, 0, 1)
    return function("glidemq_fail", keys, args, replies.text)


def attempts(queue: QueueKeys, job_id: str, group: str) -> Call[int]:
    """How often runs of this subscription have failed so far."""
    return command("HGET", queue.job(job_id) + f":sub:{group}", "a", decode=lambda reply: int(reply or 0))


def progress(queue: QueueKeys, job_id: str, text: str) -> Call[None]:
    """Store the progress of a message, shared by all subscriptions."""
    return job_hash.put(queue, job_id, {"progress": text})
