"""Calls that wait until writes are on disk or on replicas: ``WAITAOF`` and ``WAIT``.

They cover only the writes of their own connection.
"""

from __future__ import annotations

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys, mark_key


def mark(prefix: str, key: str) -> Call[str]:
    """Make a write that leaves no trace in the slot of a key; returns the replication id of the server.

    While that id stays the same, the server has lost no accepted write. Idempotent.
    """
    return function("gmo_mark", [mark_key(prefix, key)], (), replies.text, repeatable=True)


def wait_disk(timeout_ms: int) -> Call[bool]:
    """Wait until the writes of this connection are on the disk of the server; returns whether they are.

    An error if the append-only file is switched off.
    """
    return command(
        "WAITAOF", 1, 0, timeout_ms, decode=lambda reply: reply[0] >= 1, blocks_for=timeout_ms / 1000
    )


def wait_replicas(count: int, timeout_ms: int) -> Call[int]:
    """Wait until ``count`` replicas have the writes of this connection; returns how many have."""
    return command("WAIT", count, timeout_ms, decode=replies.integer, blocks_for=timeout_ms / 1000)


def mark_queue(queue: QueueKeys) -> Call[str]:
    """``mark`` in the slot of a queue."""
    return mark(queue.prefix, queue.base)
