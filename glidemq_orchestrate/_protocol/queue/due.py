"""Calls that move jobs which are due: delayed, rate-limited and suspended ones."""

from __future__ import annotations

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, function
from glidemq_orchestrate.keys import QueueKeys


def promote(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Move due delayed jobs to the stream. Repeatable."""
    keys = queue.keys("scheduled", "stream", "events")
    return function("glidemq_promote", keys, (now_ms,), replies.integer)


def promote_rate_limited(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Release parked jobs of groups whose waiting time has passed. Repeatable."""
    keys = queue.keys("ratelimited", "stream")
    return function("glidemq_promoteRateLimited", keys, (now_ms,), replies.integer)


def sweep_suspended(queue: QueueKeys, now_ms: int) -> Call[int]:
    """Fail suspended jobs past their deadline, a page of 100. Repeatable."""
    keys = queue.keys("suspended", "events", "failed", "metrics:failed")
    return function("glidemq_sweepSuspended", keys, (now_ms, f"{queue.base}:"), replies.integer)


def next_due(queue: QueueKeys) -> Call[int]:
    """When the next delayed job is due, ms since the epoch; -1 for never."""
    keys = queue.keys("scheduled", "ratelimited")
    return function("glidemq_nextDue", keys, (), replies.integer)
