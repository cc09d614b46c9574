"""The executor behind ``glidemq_executor``: Dagster's, for late event logs and runs that end elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import dagster as dg
from dagster import DagsterEvent

from dagster_glidemq.attempts import DECIDING, ENDS, STARTS, Attempts
from dagster_glidemq.private import (
    ConsolidatedSqliteEventLogStorage,
    EventLogCursor,
    InMemoryEventLogStorage,
    LegacyEventLogStorage,
    SqliteEventLogStorage,
    StepDelegatingExecutor,
)
from dagster_glidemq.step_handler import GlideMQStepHandler

LATE_SECONDS: Final = 10.0
"""How long the commit of an event may last while other events appear."""
AGAIN_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 5.0
OFFSET: Final = "DAGSTER_EXECUTOR_POP_EVENTS_OFFSET"
_IN_ORDER: Final = (ConsolidatedSqliteEventLogStorage, InMemoryEventLogStorage, SqliteEventLogStorage)
_ALL: Final = frozenset(dg.DagsterEventType)
_DECIDING: Final = STARTS | DECIDING | {dg.DagsterEventType.STEP_SKIPPED}
"""The events that decide what follows."""


class GlideMQStepExecutor(StepDelegatingExecutor):
    """Reads the event log again where events may appear late, and ends with its run.

    A database numbers events when they are written, and shows them when they are committed. So one with a
    smaller number may appear after one with a greater, and a cursor has passed it. Dagster's offset for that
    counts the events of all runs. Here what came within ``LATE_SECONDS`` is read again: whenever there is
    something new, before it is acted on, and each second for a while. A step writes its events one after the
    other, so with its end all that it wrote since its start is read, also what came later still. A late end
    is read when the health check finds a step ended for which the executor waits (``read_again``).

    A process that was given up, since its worker seemed to be lost, may write more: that counts for nothing
    (``Attempts``).

    A run that was ended by somebody else, or deleted, is noticed within ``LOOK_SECONDS`` or so: workers end
    its steps, and its own process ends here, without a success after the other end.

    Args:
        step_handler: The handler of steps.
        clock: For tests.
    """

    def __init__(
        self,
        step_handler: GlideMQStepHandler,
        *args: Any,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        super().__init__(step_handler, *args, **options)
        step_handler.missed = self.read_again
        self._clock = clock
        self._heads: deque[tuple[float, int]] = deque()  # when which number was the greatest
        self._attempts = Attempts()
        self._starts: dict[str, int] = {}  # the numbers of the starts of steps
        self._tail, self._is_doubted = 0, False  # up to which all events are known, it seems
        self._read_at = self._looked_at = -LOOK_SECONDS

    def read_again(self) -> None:
        """Read the log from its start at the next look: it has an end that was not read."""
        self._event_cursor, self._is_doubted = None, True

    def _pop_events(
        self, instance: dg.DagsterInstance, run_id: str, seen_storage_ids: set[int]
    ) -> Sequence[DagsterEvent]:
        """The new events of the run, in their order, without those of attempts that were given up.

        Raises:
            DagsterExecutionInterruptedError: The run has ended, or was deleted.
        """
        self._end_with_run(instance, run_id)
        if _is_in_order(instance):
            events = super()._pop_events(instance, run_id, seen_storage_ids)
        else:
            events = self._late_events(instance, run_id, seen_storage_ids)
        return [event for event in events if self._attempts.counts(event)]

    def _late_events(
        self, instance: dg.DagsterInstance, run_id: str, seen_storage_ids: set[int]
    ) -> Sequence[DagsterEvent]:
        now = self._clock()
        head = self._heads[-1][1] if self._heads else self._tail
        found = self._records(instance, run_id, 0 if self._is_doubted else head, _ALL)
        self._is_doubted = False
        if self._heads and now - self._read_at >= AGAIN_SECONDS:
            self._read_at = now
            found += self._records(instance, run_id, self._tail, _ALL)
        elif self._heads and found:
            found += self._records(instance, run_id, self._tail, _DECIDING)
        since = self._start_of_ended(one for one in found if one.storage_id not in seen_storage_ids)
        if since < self._tail:
            found += self._records(instance, run_id, since, _DECIDING)
        found = sorted({_number(record): record for record in found}.values(), key=_number)
        new = [record for record in found if record.storage_id not in seen_storage_ids]
        if new:
            seen_storage_ids.update(map(_number, new))
            self._heads.append((now, max(_number(new[-1]), head)))
        while self._heads and now - self._heads[0][0] > LATE_SECONDS:
            self._tail = self._heads.popleft()[1]
        return [event for record in new if (event := record.event_log_entry.dagster_event)]

    def _start_of_ended(self, new: Iterable[Any]) -> float:
        """The number of the first start of those steps that have ended; 0 if that is not known."""
        first = math.inf
        for record in sorted(new, key=_number):
            event = record.event_log_entry.dagster_event
            if event is not None and event.step_key is not None and event.event_type in STARTS:
                self._starts[event.step_key] = _number(record)
            elif event is not None and event.step_key is not None and event.event_type in ENDS:
                first = min(first, self._starts.get(event.step_key, 0))
        return first

    def _records(
        self, instance: dg.DagsterInstance, run_id: str, after: float, kinds: AbstractSet[dg.DagsterEventType]
    ) -> list[Any]:
        """All records of events with a greater number, read a page at a time."""
        found: list[Any] = []
        cursor = EventLogCursor.from_storage_id(int(after)).to_string()
        while True:
            page = instance.get_records_for_run(
                run_id, cursor, of_type=set(kinds), limit=self._pop_events_limit
            )
            found += page.records
            if not page.has_more:
                return found
            cursor = page.cursor

    def _end_with_run(self, instance: dg.DagsterInstance, run_id: str) -> None:
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            raise dg.DagsterExecutionInterruptedError


def _number(record: Any) -> int:
    return int(record.storage_id)


def _is_in_order(instance: dg.DagsterInstance) -> bool:
    """Whether events appear in the order of their numbers, or an offset was set that reads them again."""
    storage = instance.event_log_storage
    if isinstance(storage, LegacyEventLogStorage):
        storage = storage._storage.event_log_storage  # noqa: SLF001  there is no other way
    is_set = OFFSET in os.environ or bool(storage.default_run_scoped_event_tailer_offset())
    return is_set or isinstance(storage, _IN_ORDER)
