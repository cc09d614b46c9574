"""What accepted attempts have written and nobody has made visible yet; see ``published.lua``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glidemq_orchestrate.jobs.pages import sorted_ids
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE: Final = 500


def some_lines(queue: QueueKeys, first: int, count: int) -> Call[list[str]]:
    """Some of the lines, the oldest first."""
    return sorted_ids(queue.key("gmo:published"), first, count, newest_first=False)


def forget_page(queue: QueueKeys, some: Sequence[str]) -> Call[int]:
    """Remove lines: what they name is visible, or gone. Repeatable."""
    return command("ZREM", queue.key("gmo:published"), *some, decode=replies.integer)


def lines(queue: QueueKeys) -> Op[list[str]]:
    """All lines that are there, the oldest first."""
    found: list[str] = []
    while len(page := (yield from ask(some_lines(queue, len(found), PAGE)))) == PAGE:
        found += page
    return found + page


def forget(queue: QueueKeys, some: Sequence[str]) -> Op[None]:
    """Remove lines. Repeatable."""
    for first in range(0, len(some), PAGE):
        yield from ask(forget_page(queue, some[first : first + PAGE]))
