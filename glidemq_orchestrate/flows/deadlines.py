"""The deadlines of jobs, nodes and flows of a home queue."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys


def is_due(queue: QueueKeys, now_ms: int) -> Call[bool]:
    """Whether ``expire_due`` has anything to do in a home queue."""
    return command("ZCOUNT", queue.key("gmo:due"), "-inf", now_ms, decode=bool)


def expire_due(queue: QueueKeys, now_ms: int) -> Call[tuple[int, int]]:
    """End expired jobs, nodes and flows of a home queue; returns how many, and the next time or -1."""

    def decode(reply: Any) -> tuple[int, int]:
        count, next_ms = replies.integers(reply)
        return count, next_ms

    return function("gmo_expire_due", [queue.key("gmo:due")], (now_ms,), decode)
