"""What accepted attempts have written and nobody has made visible yet; see ``published.lua``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glidemq_orchestrate._protocol.queue import published as calls
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE: Final = 500


def lines(queue: QueueKeys) -> Op[list[str]]:
    """All lines that are there, the oldest first."""
    found: list[str] = []
    while len(page := (yield from ask(calls.lines(queue, len(found), PAGE)))) == PAGE:
        found += page
    return found + page


def forget(queue: QueueKeys, some: Sequence[str]) -> Op[None]:
    """Remove lines. Repeatable."""
    for first in range(0, len(some), PAGE):
        yield from ask(calls.forget(queue, some[first : first + PAGE]))
