"""A clear of a task runs what failed, and after a success begins a new generation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQFlowFailed,
    GlideMQFlowTimeout,
)

from glidemq_orchestrate import FlowProducer, FlowSpec
from tests.providers.airflow.again.generations import generations
from tests.providers.airflow.builders import (
    CLEARED,
    FLOW_ID,
    LONG,
    Contexts,
    FakeRun,
    Valkey,
    blocking,
    deferred,
    load,
    waiting,
)


@pytest.mark.parametrize("flow", [None, load("echo", 7)])
def test_a_clear_of_a_success_shows_no_old_result(
    flows: FlowProducer, valkey: Valkey, context: Contexts, flow: FlowSpec | None
) -> None:
    assert blocking().execute(context()) == {"extract": 1, "load": 2}
    results = blocking(flow).execute(context(**CLEARED))
    assert results == ({"extract": 3, "load": 4} if flow is None else {"extract": 3, "load": 7})
    assert generations(flows) == ["completed", "completed"]


@pytest.mark.parametrize("on_existing", [None, "retry_failed"])
def test_a_clear_of_a_failure_runs_what_failed_and_of_a_success_all(
    flows: FlowProducer, valkey: Valkey, context: Contexts, on_existing: Any
) -> None:
    made = blocking(load("fail"), on_existing=on_existing)
    with pytest.raises(GlideMQFlowFailed, match="clear this task: the nodes that did not complete"):
        made.execute(context())
    with pytest.raises(GlideMQFlowFailed):
        made.execute(context(**CLEARED))
    assert valkey.ran == ["extract"]
    valkey.gate.set()
    assert made.execute(context(try_number=3, max_tries=3)) == {"extract": 1, "load": "repaired"}
    assert generations(flows) == ["completed"]
    again = context(try_number=4, max_tries=4)
    assert made.execute(again) == {"extract": 2, "load": "repaired"}, "the success was cleared"
    assert generations(flows) == ["completed", "completed"]


@pytest.mark.parametrize("how", ["retry", "restart"])
def test_a_clear_shows_what_was_started_by_hand_before_it(
    flows: FlowProducer, valkey: Valkey, context: Contexts, how: str
) -> None:
    with pytest.raises(GlideMQFlowFailed):
        blocking(load("fail")).execute(context())
    valkey.gate.set()
    flow = flows.get(FLOW_ID)
    flow.retry_failed() if how == "retry" else flow.restart()
    ran = 1 if how == "retry" else 2
    for number in (2, 3):  # the second one died before it could tell of the end
        cleared = context(try_number=number, max_tries=2, run=FakeRun(clear_number=1))
        assert blocking(load("fail")).execute(cleared) == {"extract": ran, "load": "repaired"}
    assert len(valkey.ran) == ran
    now = context(try_number=4, max_tries=4, run=FakeRun(clear_number=2))
    assert blocking(load("fail")).execute(now) == {"extract": ran + 1, "load": "repaired"}


def test_a_clear_after_a_timeout_runs_what_did_not_complete(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    made = blocking(load("wait"))
    waiting(made, context(), flows)
    with pytest.raises(GlideMQFlowTimeout, match="clear this task"):
        made.resume_execution("__fail__", {"error": "Trigger timeout"}, context())
    flows.get(FLOW_ID).wait(timeout=LONG)
    valkey.gate.set()
    assert blocking(load("wait")).execute(context(**CLEARED)) == {"extract": 1, "load": "done"}


def test_a_clear_runs_all_if_an_upstream_task_has_run_again(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    seconds = 1.5

    def task(**now: Any) -> Any:
        made = context(**now)
        rows = [{"task_id": "fetch", "map_index": -1, "state": "success", "duration": seconds}]
        made["ti"].get_task_breadcrumbs = lambda *_: [*rows, {**rows[0], "task_id": "other"}]
        return made

    def etl() -> Any:
        made = blocking(load("fail"))
        made.upstream_task_ids = {"fetch"}
        return made

    with pytest.raises(GlideMQFlowFailed):
        etl().execute(task())
    with pytest.raises(GlideMQFlowFailed):
        etl().execute(task(**CLEARED))
    assert valkey.ran == ["extract"]
    seconds = 1.6
    with pytest.raises(GlideMQFlowFailed):
        etl().execute(task(try_number=3, max_tries=4))
    assert valkey.ran == ["extract", "extract"]


def test_a_run_that_was_created_again_runs_all(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    blocking().execute(context())
    later = FakeRun(start_date=datetime(2026, 1, 2, tzinfo=UTC))
    assert blocking().execute(context(run=later)) == {"extract": 3, "load": 4}


def test_two_tries_at_once_begin_one_generation(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    deferred(blocking(load("wait")), context())
    contexts = [context(**{**CLEARED, "try_number": 2}) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda one: deferred(blocking(load("wait")), one), contexts))
    assert generations(flows) == ["cancelled", "running"]


def test_a_clear_of_a_killed_task_runs_all(flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
    first = blocking(load("wait"))
    waiting(first, context(), flows)
    first.on_kill()
    flows.get(FLOW_ID).wait(timeout=LONG)
    valkey.gate.set()
    cleared = context(try_number=2, run=FakeRun(clear_number=1))
    assert blocking(load("wait")).execute(cleared) == {"extract": 2, "load": "done"}
    blocking(load("wait")).execute(context(try_number=3, run=FakeRun(clear_number=1)))
    assert generations(flows) == ["cancelled", "completed"]


def test_a_clear_after_retries_were_lowered_runs_all(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    blocking(retries=2).execute(context(max_tries=2))
    now = {"try_number": 2, "max_tries": 2, "run": FakeRun(clear_number=1)}
    assert blocking(retries=1).execute(context(**now)) == {"extract": 3, "load": 4}
    assert blocking(retries=1).execute(context(**{**now, "try_number": 3})) == {"extract": 3, "load": 4}
