"""One attempt of a step in the event log, as the process that runs it sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import dagster as dg
from dagster import DagsterEventType

from dagster_glidemq.attempts import ENDS, GIVEN_UP, STARTS, Attempts
from dagster_glidemq.step_job import StepJob

logger = logging.getLogger("dagster_glidemq.warm")

LOOK_SECONDS: Final = 1.0
_FENCED: Final = ENDS | {DagsterEventType.STEP_OUTPUT}


class StepAttempt:
    """An attempt of a step.

    Args:
        instance: Where its events go.
        job: Its job.

    Attributes:
        number: 0 for the first one.
    """

    def __init__(self, instance: dg.DagsterInstance, job: StepJob) -> None:
        self._instance, self._run_id, self._key = instance, job.run_id, job.step_key
        self.number = job.unpacked_state().get_retry_state().get_attempt_count(job.step_key)

    def may_begin(self) -> bool:
        """Whether it has not begun, and was not given up. Of the first one Dagster itself looks.

        Dagster counts the events of all attempts, also those of one that was given up and writes on.
        """
        if self.number == 0 or self._attempts().may_begin(self._key, self.number):
            return True
        logger.warning("attempt %s of step %s has begun, or was given up", self.number + 1, self._key)
        return False

    def fence(self) -> None:
        """Let this process write no output or end of the attempt after it was given up.

        A step may have thousands of outputs, so before these it looks once a second.
        """
        store, before, looked = self._instance.handle_new_event, self._given_up(), 0.0

        def is_given_up(kind: DagsterEventType) -> bool:
            nonlocal looked
            now = time.monotonic()
            if kind not in ENDS and now - looked < LOOK_SECONDS:
                return False
            looked = now
            return self._given_up() != before and self._has_ended()

        def handle(event: Any, **options: Any) -> Any:
            found = event.dagster_event
            is_own = found is not None and found.step_key == self._key and found.event_type in _FENCED
            if is_own and is_given_up(found.event_type):
                logger.warning("%s of step %s is not written: it was given up", event.user_message, self._key)
                return None
            return store(event, **options)

        self._instance.handle_new_event = handle  # type: ignore[method-assign]

    def _given_up(self) -> int:
        """How many attempts of the step have failed so far: few events, for a run of any size."""
        events = (entry.dagster_event for entry in self._log(GIVEN_UP))
        return sum(event is not None and event.step_key == self._key for event in events)

    def _has_ended(self) -> bool:
        return self._attempts().has_ended(self._key, self.number)

    def _attempts(self) -> Attempts:
        return Attempts.of(self._log(STARTS | ENDS))

    def _log(self, kinds: Iterable[DagsterEventType]) -> Sequence[dg.EventLogEntry]:
        return self._instance.all_logs(self._run_id, of_type=set(kinds))
