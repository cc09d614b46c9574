"""The executor reads events that a database shows late, in the order in which what follows needs them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.execution.plan.objects import StepSuccessData
from dagster._core.execution.plan.outputs import StepOutputData, StepOutputHandle
from dagster._core.execution.retries import RetryMode
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.executor import LATE_SECONDS, GlideMQStepExecutor
from dagster_glidemq.queues import Queues
from dagster_glidemq.step_handler import GlideMQStepHandler

RUN = "11111111-1111-1111-1111-111111111111"


class Hiding:
    """The event log of an instance, with events that are not committed yet."""

    def __init__(self, real: SqlEventLogStorage) -> None:
        self.real = real
        self.hidden: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def get_records_for_run(self, *args: Any, **options: Any) -> Any:
        found = self.real.get_records_for_run(*args, **options)
        records = [one for one in found.records if one.event_log_entry.user_message not in self.hidden]
        return type(found)(records=records, cursor=found.cursor, has_more=found.has_more)


class Reading:
    """An executor with an event log, and its own clock."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        assert isinstance(instance.event_log_storage, SqliteEventLogStorage)
        self.instance, self.log = instance, Hiding(instance.event_log_storage)
        instance._event_storage = self.log  # type: ignore[assignment]
        handler = GlideMQStepHandler(
            Queues(GlideMQConnection(url="valkey://127.0.0.1:1")),
            "steps",
            start_timeout=1,
            lease=timedelta(seconds=1),
            grace=1,
        )
        self.now = 0.0
        self.executor = GlideMQStepExecutor(handler, RetryMode.ENABLED, clock=lambda: self.now)
        self.handler, self.seen = handler, set[int]()

    def write(self, text: str, data: Any = None, step: str | None = None) -> None:
        kind = DagsterEventType.STEP_OUTPUT if data else DagsterEventType.STEP_SUCCESS
        data = data or StepSuccessData(duration_ms=1.0)  # type: ignore[no-untyped-call]  # of Dagster
        event = DagsterEvent(kind.value, "job", message=text, event_specific_data=data, step_key=step)
        entry = dg.EventLogEntry(  # type: ignore[no-untyped-call]  # of Dagster
            error_info=None, level=10, user_message=text, run_id=RUN, timestamp=1.0, dagster_event=event
        )
        self.log.real.store_event(entry)

    def read(self, after: float = 0.1) -> list[str | None]:
        self.now += after
        return [event.message for event in self.executor._pop_events(self.instance, RUN, self.seen)]


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        instance.run_storage.add_run(dg.DagsterRun("job", RUN, status=dg.DagsterRunStatus.STARTED))
        yield Reading(instance)


@pytest.mark.long
def test_an_event_that_appears_after_a_later_one_is_read(reading: Reading) -> None:
    reading.log.hidden = {"late"}
    reading.write("late")
    reading.write("soon")
    assert reading.read() == ["soon"]
    assert reading.read() == []
    reading.log.hidden.clear()
    assert reading.read(1.0) == ["late"]
    assert reading.read(1.0) == []


@pytest.mark.long
def test_a_late_output_is_read_before_the_end_of_its_step(reading: Reading) -> None:
    reading.log.hidden = {"output of a", "end of a"}
    reading.write("output of a", StepOutputData(StepOutputHandle("a")))
    reading.write("end of b")
    assert reading.read() == ["end of b"]
    reading.write("end of a")
    reading.log.hidden.clear()
    assert reading.read() == ["output of a", "end of a"]


def test_with_the_end_of_a_step_all_is_read_that_it_wrote(reading: Reading) -> None:
    reading.log.hidden = {"output of a"}
    reading.write("output of a", StepOutputData(StepOutputHandle("a")), "a")
    reading.write("end of b", step="b")
    assert reading.read() == ["end of b"]
    reading.read(LATE_SECONDS + 1)
    reading.log.hidden.clear()
    reading.write("end of a", step="a")
    assert reading.read() == ["output of a", "end of a"]


@pytest.mark.long
def test_many_events_are_read_once(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.executor, "_pop_events_limit", 3)
    for number in range(10):
        reading.write(str(number))
    assert reading.read() == [str(number) for number in range(10)]
    assert reading.read(LATE_SECONDS + 1) == []
    reading.write("new")
    assert reading.read() == ["new"]
    assert reading.executor._tail == 10


@pytest.mark.long
def test_what_was_missed_after_all_is_read_when_the_health_check_finds_it(reading: Reading) -> None:
    reading.log.hidden = {"very late"}
    reading.write("very late")
    reading.write("soon")
    assert reading.read() == ["soon"]
    reading.read(LATE_SECONDS + 1)
    reading.log.hidden.clear()
    assert reading.read(1.0) == []
    reading.handler.missed()
    assert reading.read() == ["very late"]


@pytest.mark.long
@pytest.mark.parametrize("ending", ["canceled", "deleted"])
def test_a_run_that_somebody_else_has_ended_ends_its_executor(reading: Reading, ending: str) -> None:
    reading.write("one")
    assert reading.read() == ["one"]
    run = reading.instance.get_run_by_id(RUN)
    assert run is not None
    if ending == "canceled":
        reading.instance.report_run_canceled(run)
    else:
        reading.instance.run_storage.delete_run(RUN)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        reading.read(6.0)
