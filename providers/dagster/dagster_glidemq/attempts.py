"""Which attempts of a step count: an abandoned attempt may still write events.

The worker of a step may only seem to be lost: its machine was paused, or cut off. The executor then ends the
attempt in the log and may start another, while the process of the first still runs and writes. An event names
the process that wrote it, so events of an abandoned attempt can be ignored.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg
from dagster import DagsterEvent, DagsterEventType, EventLogEntry

from dagster_glidemq.step_job import StepJob

STARTS: Final = frozenset({DagsterEventType.STEP_START, DagsterEventType.STEP_RESTARTED})
GIVEN_UP: Final = frozenset({DagsterEventType.STEP_FAILURE, DagsterEventType.STEP_UP_FOR_RETRY})
"""How the executor ends an attempt whose worker is lost."""
ENDS: Final = GIVEN_UP | {DagsterEventType.STEP_SUCCESS}
"""How an attempt of a step ends in the event log."""
DECIDING: Final = ENDS | {DagsterEventType.RESOURCE_INIT_FAILURE, DagsterEventType.STEP_OUTPUT}


@dataclass(slots=True)
class _StepState:
    """The state of a step: its attempt (0 is the first), its process, and those of earlier attempts."""

    attempt: int = 0
    pid: int | None = None
    has_begun: bool = False
    is_over: bool = False
    former: set[int] = field(default_factory=set)


class Attempts:
    """Follows the attempts of steps by the events of a run, in their order."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, _StepState] = defaultdict(_StepState)

    @classmethod
    def of(cls, entries: Iterable[EventLogEntry]) -> Attempts:
        """The attempts from the log entries of a run, in order; events of ``STARTS`` and ``ENDS`` suffice."""
        attempts = cls()
        for entry in entries:
            if entry.dagster_event is not None:
                attempts.counts(entry.dagster_event)
        return attempts

    def counts(self, event: DagsterEvent) -> bool:
        """Process the next event; False if its attempt was abandoned, or has ended."""
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
            step.former.discard(pid or 0)  # in a separate container it may have the same number
        elif pid in step.former:
            return False
        elif kind is DagsterEventType.STEP_UP_FOR_RETRY:
            step.former |= {step.pid} if step.pid else set()
            step.attempt, step.pid, step.has_begun = step.attempt + 1, None, False
        elif kind in ENDS:
            step.is_over = True
        return True

    def has_ended(self, step_key: str, attempt: int) -> bool:
        """Whether an attempt of a step has ended, or was abandoned."""
        step = self._steps[step_key]
        return step.is_over or step.attempt > attempt

    def may_begin(self, step_key: str, attempt: int) -> bool:
        """Whether this is the next attempt to start, and has not started."""
        step = self._steps[step_key]
        return not step.is_over and not step.has_begun and step.attempt == attempt


logger = logging.getLogger("dagster_glidemq.warm")

POLL_SECONDS: Final = 1.0
_FENCED: Final = ENDS | {DagsterEventType.STEP_OUTPUT}


class StepAttempt:
    """An attempt of a step.

    Args:
        instance: The instance that stores its events.
        job: The job of the attempt.

    Attributes:
        number: 0 for the first one.
    """

    def __init__(self, instance: dg.DagsterInstance, job: StepJob) -> None:
        self._instance, self._run_id, self._key = instance, job.run_id, job.step_key
        self.number = job.unpacked_state().get_retry_state().get_attempt_count(job.step_key)

    def may_begin(self) -> bool:
        """Whether it has not begun, and was not abandoned. Dagster itself checks the first attempt.

        Dagster counts the events of all attempts, also those of an abandoned attempt that still writes.
        """
        if self.number == 0 or self._attempts().may_begin(self._key, self.number):
            return True
        logger.warning("attempt %s of step %s has begun, or was abandoned", self.number + 1, self._key)
        return False

    def fence(self) -> None:
        """Keep this process from writing outputs or the end of the attempt after it was abandoned.

        A step may have thousands of outputs, so this is checked at most once a second before outputs.
        """
        store, before, polled = self._instance.handle_new_event, self._given_up(), 0.0

        def is_given_up(kind: DagsterEventType) -> bool:
            nonlocal polled
            now = time.monotonic()
            if kind not in ENDS and now - polled < POLL_SECONDS:
                return False
            polled = now
            return self._given_up() != before and self._has_ended()

        def handle(event: Any, **options: Any) -> Any:
            found = event.dagster_event
            is_own = found is not None and found.step_key == self._key and found.event_type in _FENCED
            if is_own and is_given_up(found.event_type):
                logger.warning(
                    "%s of step %s is not written: the attempt was abandoned", event.user_message, self._key
                )
                return None
            return store(event, **options)

        self._instance.handle_new_event = handle  # type: ignore[method-assign]

    def _given_up(self) -> int:
        """The number of failed attempts of the step so far: few events, for a run of any size."""
        events = (entry.dagster_event for entry in self._log(GIVEN_UP))
        return sum(event is not None and event.step_key == self._key for event in events)

    def _has_ended(self) -> bool:
        return self._attempts().has_ended(self._key, self.number)

    def _attempts(self) -> Attempts:
        return Attempts.of(self._log(STARTS | ENDS))

    def _log(self, kinds: Iterable[DagsterEventType]) -> Sequence[dg.EventLogEntry]:
        return self._instance.all_logs(self._run_id, of_type=set(kinds))
