"""Counts of ended jobs by minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues.removal import ENDED
from glidemq_orchestrate.wire.call import Call, Op, ask_all, command, whole_hash
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number

MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One minute: how many jobs ended in a state, and their average run time."""

    at: datetime
    count: int
    mean: timedelta


def ended(queue: QueueKeys, state: str, since_ms: int, until_ms: int) -> Call[int]:
    """How many jobs ended in a state in these whole minutes, which must be few."""
    minutes = range(since_ms, until_ms + 1, 60_000)
    words = [f"m:{minute}:c" for minute in minutes]
    return command("HMGET", queue.metrics(state), *words, decode=lambda reply: sum(map(number, reply)))


def metrics(queues: Sequence[QueueKeys], state: JobState) -> Op[list[MetricPoint]]:
    """How many jobs ended in each minute, in all these queues, oldest first."""
    if state not in ENDED:
        raise ConfigurationError(f"there are metrics of completed and failed jobs only, not of {state} ones")
    sums: dict[str, tuple[int, int]] = {}
    for fields in (yield from ask_all([whole_hash(queue.metrics(ENDED[state])) for queue in queues])):
        for name in fields:
            _, minute, kind = (*name.split(":"), "", "")[:3]
            if kind == "c":
                count, total = sums.get(minute, (0, 0))
                sums[minute] = count + number(fields[name]), total + number(fields.get(f"m:{minute}:d"))
    points = [
        MetricPoint(at, count, timedelta(milliseconds=total / count if count else 0))
        for minute, (count, total) in sums.items()
        if (at := moment(minute)) is not None
    ]
    return sorted(points, key=lambda point: point.at)
