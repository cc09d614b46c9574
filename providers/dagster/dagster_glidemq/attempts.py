"""Which events of a step count: an attempt that was given up may still write some. Pure.

The worker of a step may only seem to be lost: its machine was paused, or cut off. The executor then ends the
attempt in the log, and may begin another, while the process of the first still runs and writes. An event
names the process that wrote it, so what a given-up one writes is told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dagster import DagsterEvent, DagsterEventType, EventLogEntry

STARTS: Final = frozenset({DagsterEventType.STEP_START, DagsterEventType.STEP_RESTARTED})
GIVEN_UP: Final = frozenset({DagsterEventType.STEP_FAILURE, DagsterEventType.STEP_UP_FOR_RETRY})
"""How the executor ends an attempt whose worker is lost."""
ENDS: Final = GIVEN_UP | {DagsterEventType.STEP_SUCCESS}
"""How an attempt of a step ends in the event log."""
DECIDING: Final = ENDS | {DagsterEventType.RESOURCE_INIT_FAILURE, DagsterEventType.STEP_OUTPUT}


@dataclass(slots=True)
class _Step:
    """What is known of a step: its attempt (0 is the first), the process of that, those of earlier ones."""

    attempt: int = 0
    pid: int | None = None
    has_begun: bool = False
    is_over: bool = False
    former: set[int] = field(default_factory=set)


class Attempts:
    """Follows the attempts of steps by the events of a run, in their order."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, _Step] = defaultdict(_Step)

    @classmethod
    def of(cls, entries: Iterable[EventLogEntry]) -> Attempts:
        """What the entries of a run's log show, in their order; those of ``STARTS`` and ``ENDS`` suffice."""
        attempts = cls()
        for entry in entries:
            if entry.dagster_event is not None:
                attempts.counts(entry.dagster_event)
        return attempts

    def counts(self, event: DagsterEvent) -> bool:
        """Take in the next event; False if it is one of an attempt that was given up, or has ended."""
        kind, pid = event.event_type, event.pid
        if event.step_key is None or kind not in STARTS | DECIDING:
            return True
        step = self._steps[event.step_key]
        if step.is_over:
            return False
        if kind in STARTS:
            if step.has_begun:
                return False
            step.has_begun, step.pid = True, pid
            step.former.discard(pid or 0)  # in a container of its own it may have the same number
        elif pid in step.former:
            return False
        elif kind is DagsterEventType.STEP_UP_FOR_RETRY:
            step.former |= {step.pid} if step.pid else set()
            step.attempt, step.pid, step.has_begun = step.attempt + 1, None, False
        elif kind in ENDS:
            step.is_over = True
        return True

    def has_ended(self, step_key: str, attempt: int) -> bool:
        """Whether an attempt of a step has ended, or was given up."""
        step = self._steps[step_key]
        return step.is_over or step.attempt > attempt

    def may_begin(self, step_key: str, attempt: int) -> bool:
        """Whether this is the attempt to begin, and has not begun."""
        step = self._steps[step_key]
        return not step.is_over and not step.has_begun and step.attempt == attempt
