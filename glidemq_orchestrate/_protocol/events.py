"""Calls about the events stream of a queue."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command
from glidemq_orchestrate.keys import QueueKeys


def last_event(queue: QueueKeys) -> Call[str]:
    """The id of the newest event; ``0-0`` for none."""
    return command(
        "XREVRANGE",
        queue.key("events"),
        "+",
        "-",
        "COUNT",
        1,
        decode=lambda reply: reply[0][0] if reply else "0-0",
    )


def first_event(queue: QueueKeys) -> Call[str | None]:
    """The id of the oldest event that is not trimmed; None for none."""
    words = ("XRANGE", queue.key("events"), "-", "+", "COUNT", 1)
    return command(*words, decode=lambda reply: reply[0][0] if reply else None)


def has_lost_events(queue: QueueKeys) -> Call[bool]:
    """Whether events were ever trimmed; refused without a stream."""

    def decode(reply: Any) -> bool:
        info = replies.mapping(reply)
        return int(info["entries-added"]) > int(info["length"])

    return command("XINFO", "STREAM", queue.key("events"), decode=decode)


def read_events(queue: QueueKeys, position: str, count: int, block_ms: int | None) -> Call[Any]:
    """Events after ``position``; waits at most ``block_ms`` for one, not at all if it is None."""
    block: tuple[str | int, ...] = () if block_ms is None else ("BLOCK", block_ms)
    words = ("XREAD", "COUNT", count, *block, "STREAMS", queue.key("events"), position)
    return command(
        *words, decode=replies.stream_entries, blocks_for=None if block_ms is None else block_ms / 1000
    )
