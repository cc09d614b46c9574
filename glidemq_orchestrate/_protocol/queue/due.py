"""The call that releases delayed messages of a broadcast; ``gmo_expire_due`` releases jobs of queues."""

from __future__ import annotations

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, function
from glidemq_orchestrate.keys import QueueKeys


def promote(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Move due delayed jobs to the stream. Repeatable."""
    keys = queue.keys("scheduled", "stream", "events")
    return function("glidemq_promote", keys, (now_ms,), replies.integer)
