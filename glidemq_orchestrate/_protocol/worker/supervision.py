"""Calls of a supervisor: its lock, how far it has come, and what Node workers have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate.keys import QueueKeys

LOOK: Final = 200


Ended = Literal["completed", "failed"]


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a set of ended jobs: a score, and how many jobs of that score are behind."""

    score: str = "-inf"
    passed: int = 0


def renew_lock(queue: QueueKeys, token: str, ttl_ms: int) -> Call[int]:
    """Keep the supervisor's lock; 0 when another holds it or nobody. Repeatable."""
    keys = [queue.supervisor()]
    return function("glidemq_renewLock", keys, (token, ttl_ms), replies.integer, repeatable=True)


def try_lock(queue: QueueKeys, token: str, ttl_ms: int) -> Call[int]:
    """Take the supervisor's lock; 0 when it is held, by this token too."""
    return function("glidemq_tryLock", [queue.supervisor()], (token, ttl_ms), replies.integer)


def unlock(queue: QueueKeys, token: str) -> Call[int]:
    """Give the supervisor's lock up; 0 when this token does not hold it. Repeatable."""
    return function("glidemq_unlock", [queue.supervisor()], (token,), replies.integer)


def progress(queue: QueueKeys) -> Call[dict[str, str]]:
    """How far the supervisors of the queue have come."""
    return command("HGETALL", queue.supervised(), decode=replies.pairs)


def note_progress(queue: QueueKeys, fields: Mapping[str, str | int]) -> Call[None]:
    """Store how far it is. An older position does no harm: what lies after it is looked at again."""
    pairs = [word for pair in fields.items() for word in pair]
    return command("HSET", queue.supervised(), *pairs, decode=replies.anything)


def settle_foreign(
    queue: QueueKeys, ended: Ended, place: Position, now_ms: int
) -> Call[tuple[Position, bool, int]]:
    """Tell flows of jobs that have ended: where to go on, if more is there, how many were told."""

    def decode(reply: Any) -> tuple[Position, bool, int]:
        score, passed, more, settled = reply
        return Position(score, int(passed)), more == 1, settled

    args = (now_ms, place.score, place.passed, LOOK)
    return function("gmo_settle_foreign", [queue.key(ended)], args, decode)
