"""Calls about what accepted attempts have written; see ``lua/glidemq_orchestrate/parts/published.lua``."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_orchestrate._protocol.queue.reads import sorted_ids
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys


def lines(queue: QueueKeys, first: int, count: int) -> Call[list[str]]:
    """Some of the lines, the oldest first."""
    return sorted_ids(queue.key("gmo:published"), first, count, newest_first=False)


def forget(queue: QueueKeys, some: Sequence[str]) -> Call[int]:
    """Remove lines: what they name is visible, or gone. Repeatable."""
    return command("ZREM", queue.key("gmo:published"), *some, decode=replies.integer)
