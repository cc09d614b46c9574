"""glidemq_executor: each step of a Dagster job becomes a job of a queue, run by a warm worker."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from dagster import DagsterEvent

from dagster_glidemq.attempts import DECIDING, ENDS, STARTS, Attempts
from dagster_glidemq.connection import LEASE_SECONDS, GlideMQConnection, connection_fields, connection_of
from dagster_glidemq.durations import DAY, ZERO, duration_field, in_seconds
from dagster_glidemq.launcher import GlideMQRunLauncher
from dagster_glidemq.private import (
    ConsolidatedSqliteEventLogStorage,
    EventLogCursor,
    Executor,
    InitExecutorContext,
    InMemoryEventLogStorage,
    LegacyEventLogStorage,
    RetryMode,
    SqliteEventLogStorage,
    StepDelegatingExecutor,
    StepDependencyConfig,
    get_retries_config,
    get_step_dependency_config_field,
    get_tag_concurrency_limits_config,
    multiple_process_executor_requirements,
)
from dagster_glidemq.queues import Queues
from dagster_glidemq.step_handler import GlideMQStepHandler
from glidemq_orchestrate.errors import ConfigurationError

STEP_QUEUE: Final = "dagster-steps"
HEALTH_SECONDS: Final = 3

_CONFIG: Final[Mapping[str, dg.Field]] = {
    **connection_fields(),
    "queue": dg.Field(
        dg.StringSource,
        is_required=False,
        description=(
            "The queue of steps without the tag dagster-glidemq/queue; by default that of the run launcher "
            f"if it is GlideMQRunLauncher, else {STEP_QUEUE}."
        ),
    ),
    "poll_interval": duration_field(
        0.1,
        "Time between reads of the event log, and so between a step and the steps after it.",
    ),
    "start_timeout": duration_field(
        300.0,
        "A step fails if no live worker has served its queue for this long. Busy workers do not count.",
    ),
    "lease": duration_field(
        LEASE_SECONDS,
        "A step is lost if its worker has not renewed its lease for this long (at least 1s), even if the "
        "server was unreachable.",
    ),
    "grace": duration_field(
        15.0, "How long a step may take to end after an interrupt; then its process is killed."
    ),
    "max_concurrent": dg.Field(
        dg.Noneable(dg.Int),
        default_value=None,
        description="How many steps of one run are queued at a time; by default all that are ready.",
    ),
    "tag_concurrency_limits": get_tag_concurrency_limits_config(),  # type: ignore[no-untyped-call]  # of Dagster
    "retries": get_retries_config(),  # type: ignore[no-untyped-call]  # of Dagster
    "step_dependency_config": get_step_dependency_config_field(),  # type: ignore[no-untyped-call]  # of Dagster
}


@dg.executor(
    name="glidemq",
    config_schema=dict(_CONFIG),
    requirements=multiple_process_executor_requirements(),
)
def glidemq_executor(init_context: InitExecutorContext) -> Executor:
    """Run each step of a job as a job of a queue, in a child of a warm process.

    Workers run them: ``glidemq worker --app dagster_glidemq.worker --queue dagster-steps``. They need the
    code location and a ``DAGSTER_HOME`` with the same storages. The tags of a step determine where and how it
    is queued: ``dagster-glidemq/queue``, ``/priority`` (higher first), ``/concurrency_key``,
    ``/concurrency_limit``, ``/rate_limit``. The tags of its run apply where the step has none.

    A step whose worker is lost fails, and runs again only if it has a retry policy. The connection comes from
    the config, or else from the run launcher if it is ``GlideMQRunLauncher``, or else from ``GLIDEMQ_URL``.

    Raises:
        ConfigurationError: There is no server URL, or a value is invalid.

    Example:
        .. code-block:: python

            @dg.job(executor_def=glidemq_executor.configured({"url": {"env": "GLIDEMQ_URL"}}))
            def nightly():
                report(clean(extract()))
    """
    config: Mapping[str, Any] = init_context.executor_config
    of_instance = init_context.instance.run_launcher
    launcher = of_instance if isinstance(of_instance, GlideMQRunLauncher) else None
    queue = config.get("queue") or (launcher.step_queue if launcher else STEP_QUEUE)
    if launcher is not None and queue == launcher.run_queue:
        raise ConfigurationError(
            f"steps and runs are both in queue {queue}: runs that wait for their steps would occupy all slots"
        )
    handler = GlideMQStepHandler(
        Queues(_connection(config, launcher)),
        str(queue),
        start_timeout=_seconds(config, "start_timeout"),
        lease=timedelta(seconds=_seconds(config, "lease", min_=timedelta(seconds=1))),
        grace=_seconds(config, "grace", max_=DAY),
    )
    return GlideMQStepExecutor(
        handler,
        retries=RetryMode.from_config(config.get("retries") or {}) or RetryMode.ENABLED,
        sleep_seconds=_seconds(config, "poll_interval"),
        check_step_health_interval_seconds=HEALTH_SECONDS,
        max_concurrent=config.get("max_concurrent"),
        tag_concurrency_limits=config.get("tag_concurrency_limits"),
        should_verify_step=True,
        step_dependency_config=StepDependencyConfig.from_config(config.get("step_dependency_config") or {}),
    )


def _connection(config: Mapping[str, Any], launcher: GlideMQRunLauncher | None) -> GlideMQConnection:
    if config.get("url") is not None:
        return connection_of(config)
    if launcher is not None:
        return launcher.connection
    if not (url := os.environ.get("GLIDEMQ_URL")):
        raise ConfigurationError(
            "glidemq_executor needs the URL of a server: set url in its config, or GLIDEMQ_URL in the "
            "environment, or use GlideMQRunLauncher"
        )
    return connection_of({**config, "url": url})


def _seconds(
    config: Mapping[str, Any], name: str, *, min_: timedelta = ZERO, max_: timedelta = 7 * DAY
) -> float:
    return in_seconds(name, config[name], min_=min_, max_=max_)


LATE_SECONDS: Final = 10.0
"""The longest expected commit of an event while other events appear."""
AGAIN_SECONDS: Final = 1.0
POLL_SECONDS: Final = 5.0
OFFSET: Final = "DAGSTER_EXECUTOR_POP_EVENTS_OFFSET"
_IN_ORDER: Final = (ConsolidatedSqliteEventLogStorage, InMemoryEventLogStorage, SqliteEventLogStorage)
_ALL: Final = frozenset(dg.DagsterEventType)
_DECIDING: Final = STARTS | DECIDING | {dg.DagsterEventType.STEP_SKIPPED}
"""The events that determine the next steps."""


class GlideMQStepExecutor(StepDelegatingExecutor):
    """Reads the event log again where events may appear late, and ends with its run.

    A database numbers events when they are written, and shows them when they are committed. So an event with
    a smaller number may appear after one with a greater number, when the cursor has already passed it.
    Dagster's offset for this case counts the events of all runs. Here all events of the last ``LATE_SECONDS``
    are read again: before each new event is processed, and every second for a while. A step writes its events
    in sequence, so at its end all its events since its start are read, even those that appear later still. A
    late end is read when the health check finds that an awaited step has ended (``read_again``).

    An abandoned process, whose worker seemed to be lost, may still write events: these are ignored
    (``Attempts``).

    If another process ends the run, or the run is deleted, the executor notices within about
    ``POLL_SECONDS``. Then workers end the steps, and this process ends without reporting success.

    Args:
        step_handler: The handler that launches steps.
        clock: The clock, for tests.
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
        self._heads: deque[tuple[float, int]] = deque()  # the greatest number at each time
        self._attempts = Attempts()
        self._starts: dict[str, int] = {}  # the event numbers of the starts of steps
        self._tail, self._is_doubted = 0, False  # all events up to here seem to be known
        self._read_at = self._polled_at = -POLL_SECONDS

    def read_again(self) -> None:
        """Read the log from its start at the next poll: it has an end that was not read."""
        self._event_cursor, self._is_doubted = None, True

    def _pop_events(
        self, instance: dg.DagsterInstance, run_id: str, seen_storage_ids: set[int]
    ) -> Sequence[DagsterEvent]:
        """The new events of the run, in order, without those of abandoned attempts.

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
        found = sorted({_storage_id(record): record for record in found}.values(), key=_storage_id)
        new = [record for record in found if record.storage_id not in seen_storage_ids]
        if new:
            seen_storage_ids.update(map(_storage_id, new))
            self._heads.append((now, max(_storage_id(new[-1]), head)))
        while self._heads and now - self._heads[0][0] > LATE_SECONDS:
            self._tail = self._heads.popleft()[1]
        return [event for record in new if (event := record.event_log_entry.dagster_event)]

    def _start_of_ended(self, new: Iterable[Any]) -> float:
        """The number of the first start of the steps that have ended; 0 if unknown."""
        first = math.inf
        for record in sorted(new, key=_storage_id):
            event = record.event_log_entry.dagster_event
            if event is not None and event.step_key is not None and event.event_type in STARTS:
                self._starts[event.step_key] = _storage_id(record)
            elif event is not None and event.step_key is not None and event.event_type in ENDS:
                first = min(first, self._starts.get(event.step_key, 0))
        return first

    def _records(
        self, instance: dg.DagsterInstance, run_id: str, after: float, kinds: AbstractSet[dg.DagsterEventType]
    ) -> list[Any]:
        """All event records with a greater number, read page by page."""
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
        if now - self._polled_at < POLL_SECONDS:
            return
        self._polled_at = now
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            raise dg.DagsterExecutionInterruptedError


def _storage_id(record: Any) -> int:
    return int(record.storage_id)


def _is_in_order(instance: dg.DagsterInstance) -> bool:
    """Whether events appear in the order of their numbers, or an offset is set that reads them again."""
    storage = instance.event_log_storage
    if isinstance(storage, LegacyEventLogStorage):
        storage = storage._storage.event_log_storage  # noqa: SLF001  there is no other way
    is_set = OFFSET in os.environ or bool(storage.default_run_scoped_event_tailer_offset())
    return is_set or isinstance(storage, _IN_ORDER)
