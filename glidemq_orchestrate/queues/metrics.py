"""Counts of ended jobs by minute."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues.removal import ENDED
from glidemq_orchestrate.wire.call import Op, ask, whole_hash
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import moment, number

MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One minute: how many jobs ended in a state, and their average run time."""

    at: datetime
    count: int
    mean: timedelta


def metrics(queue: QueueKeys, state: JobState) -> Op[list[MetricPoint]]:
    """How many jobs ended in each minute, oldest first."""
    if state not in ENDED:
        raise ConfigurationError(f"there are metrics of completed and failed jobs only, not of {state} ones")
    fields = yield from ask(whole_hash(queue.metrics(ENDED[state])))
    points = []
    for name in fields:
        _, minute, kind = (*name.split(":"), "", "")[:3]
        count, total, at = number(fields[name]), number(fields.get(f"m:{minute}:d")), moment(minute)
        if kind == "c" and at is not None:
            points.append(MetricPoint(at, count, timedelta(milliseconds=total / count if count else 0)))
    return sorted(points, key=lambda point: point.at)
