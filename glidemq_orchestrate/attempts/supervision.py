"""Calls of a supervisor: its lock, its progress, and nodes that were ended by Node workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

LOOK: Final = 200


Ended = Literal["completed", "failed"]


@dataclass(frozen=True, slots=True)
class SweepPosition:
    """A position in a set of ended jobs: a score, and how many jobs of that score are done."""

    score: str = "-inf"
    passed: int = 0


def renew_lock(queue: QueueKeys, token: str, ttl_ms: int) -> Call[int]:
    """Renew the supervisor's lock; 0 if this token does not hold it. Repeatable."""
    keys = [queue.supervisor()]
    return function("glidemq_renewLock", keys, (token, ttl_ms), replies.integer, repeatable=True)


def try_lock(queue: QueueKeys, token: str, ttl_ms: int) -> Call[int]:
    """Take the supervisor's lock; 0 if it is held, also by this token."""
    return function("glidemq_tryLock", [queue.supervisor()], (token, ttl_ms), replies.integer)


def unlock(queue: QueueKeys, token: str) -> Call[int]:
    """Release the supervisor's lock; 0 if this token does not hold it. Repeatable."""
    return function("glidemq_unlock", [queue.supervisor()], (token,), replies.integer)


def leader(queue: QueueKeys) -> Call[str | None]:
    """The token of the supervisor that leads a queue; None where nobody does."""
    return command("GET", queue.supervisor(), decode=lambda reply: reply)


def progress(queue: QueueKeys) -> Call[dict[str, str]]:
    """The stored progress of the queue's supervisors."""
    return command("HGETALL", queue.supervised(), decode=replies.pairs)


def note_progress(queue: QueueKeys, fields: Mapping[str, str | int]) -> Call[None]:
    """Store the progress. An older position does no harm: the jobs after it are checked again."""
    pairs = [word for pair in fields.items() for word in pair]
    return command("HSET", queue.supervised(), *pairs, decode=replies.anything)


def cleanup(queue: QueueKeys, now_ms: int) -> Call[bool]:
    """Remove a slice of what the queue no longer needs; whether there is more to do now. Repeatable."""
    return function("gmo_cleanup", [queue.key("stream")], (now_ms,), bool)


def settle_foreign(
    queue: QueueKeys, ended: Ended, place: SweepPosition, now_ms: int
) -> Call[tuple[SweepPosition, bool, int]]:
    """Settle nodes whose jobs have ended: the next position, whether there is more, how many were settled."""

    def decode(reply: Any) -> tuple[SweepPosition, bool, int]:
        score, passed, more, settled = reply
        return SweepPosition(replies.text(score), int(passed)), more == 1, replies.integer(settled)

    args = (now_ms, place.score, place.passed, LOOK)
    return function("gmo_settle_foreign", [queue.key(ended)], args, decode)
