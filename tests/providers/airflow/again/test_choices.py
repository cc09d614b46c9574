"""The choices of ``on_existing``, and flows of other clients under the id of a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQFlowFailed,
)
from airflow_provider_glidemq.version_compat import AirflowFailException

from glidemq_orchestrate import FlowProducer
from tests.providers.airflow.again.generations import generations
from tests.providers.airflow.builders import (
    CLEARED,
    FLOW_ID,
    LONG,
    RETRIED,
    Contexts,
    FakeRun,
    Valkey,
    blocking,
    deferred,
    fired,
    load,
    until,
)


def test_another_client_s_flow_is_joined_and_never_restarted(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    flows.submit(load("fail"), flow_id="shared").wait(timeout=LONG)
    made = blocking(load("fail"), flow_id="shared")
    with pytest.raises(GlideMQFlowFailed):
        made.execute(context())
    valkey.gate.set()
    for now in (RETRIED, CLEARED, {**CLEARED, "run": FakeRun(start_date=None)}):
        assert made.execute(context(**now)) == {"extract": 1, "load": "repaired"}
    assert (valkey.ran, generations(flows, "shared")) == (["extract"], ["completed"])


def test_a_flow_of_another_run_that_had_ended_is_reported(
    flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each DAG run is given the same id: the second one runs nothing, and shows the first."""
    made, told = blocking(flow_id="nightly"), list[str]()
    monkeypatch.setattr(made.log, "warning", lambda text, *args: told.append(text % args))
    first = made.execute(context())
    assert (made.execute(context(run_id="r2")), valkey.ran) == (first, ["extract", "load"])
    (line,) = told
    assert line.startswith("Flow nightly had ended before (completed), and was begun by Airflow task d.t of ")
    assert "of run r1: nothing runs" in line


@pytest.mark.parametrize("now", [{}, RETRIED, CLEARED])
def test_another_task_s_flow_is_never_changed(
    flows: FlowProducer, valkey: Valkey, context: Contexts, now: dict[str, Any]
) -> None:
    blocking(load("wait"), flow_id="shared", deferrable=True)
    deferred(blocking(load("wait"), flow_id="shared"), context(task_id="other"))
    with pytest.raises(AirflowFailException, match="Only the task that began a flow can change it"):
        blocking(load("echo"), flow_id="shared").execute(context(**now))
    assert generations(flows, "shared") == ["running"]


async def test_the_next_generation_of_another_task_s_flow_is_followed(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    shared = {"flow_id": "odd: +/ü'\"~" + "x" * 200}
    deferred(blocking(load("wait"), **shared), context(task_id="other"))
    joined = deferred(blocking(load("wait"), **shared), context())
    watching = asyncio.create_task(fired(joined))
    await until(lambda: valkey.ran)
    deferred(blocking(load("wait"), **shared), context(task_id="other", **CLEARED))
    await until(lambda: joined.generation == 1)
    valkey.gate.set()
    assert (await watching)["status"] == "completed"


def test_restart_runs_all_on_each_try(flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
    flows.submit(load(), flow_id=FLOW_ID).wait(timeout=LONG)
    made = blocking(on_existing="restart")
    assert made.execute(context()) == {"extract": 3, "load": 4}
    assert made.execute(context()) == {"extract": 3, "load": 4}, "the same try, again"
    assert made.execute(context(**RETRIED)) == {"extract": 5, "load": 6}


def test_attach_and_retry_failed_show_what_exists_after_a_clear_too(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    with pytest.raises(GlideMQFlowFailed):
        blocking(load("fail")).execute(context())
    valkey.gate.set()
    with pytest.raises(GlideMQFlowFailed):
        blocking(load("fail"), on_existing="attach").execute(context(**CLEARED))
    repaired = blocking(load("fail"), on_existing="retry_failed").execute(context(**CLEARED))
    assert repaired == {"extract": 1, "load": "repaired"}
    assert generations(flows) == ["completed"]


def test_a_flow_with_the_max_number_of_labels_is_still_told_apart(
    flows: FlowProducer, valkey: Valkey, context: Contexts
) -> None:
    full = load(labels={f"label{n}": "x" for n in range(10)})
    assert blocking(full).execute(context()) == {"extract": 1, "load": 2}
    assert blocking(full).execute(context(**RETRIED)) == {"extract": 1, "load": 2}
    assert blocking(full).execute(context(**CLEARED)) == {"extract": 3, "load": 4}
