"""The operator's life: submit, wait, finish; retry, clear, kill, time out."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQFlowTimeout,
)
from airflow_provider_glidemq.operators.glidemq import XCOM_FLOW_ID, flow_id_for
from airflow_provider_glidemq.ownership import owner_of
from airflow_provider_glidemq.task_attempt import TaskKey, began
from airflow_provider_glidemq.version_compat import (
    AirflowFailException,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)

from glidemq_orchestrate import Flow, FlowNode, FlowSpec, FlowState, Worker
from glidemq_orchestrate.errors import GlideMQError, InvalidFlow
from tests.providers.airflow.builders import (
    FLOW_ID,
    QUEUE,
    Contexts,
    Valkey,
    chain,
    event,
    operator,
)

OWNER = owner_of(TaskKey("d", "t", "r1").owner, 3600.0)

WRONG_IMPORT_STRINGS: list[str] = [
    "no.such.module:build",
    f"{__name__}:absent",
    "neither",
    "json:__doc__",
]


def wait_for_end(valkey: Valkey, flow_id: str = FLOW_ID) -> None:
    with valkey.producer() as producer:
        producer.get(flow_id).wait(timeout=timedelta(seconds=20))


def build(size: int = 2) -> FlowSpec:
    """For the import string."""
    return FlowSpec("built", nodes=[FlowNode(f"n{i}", queue=QUEUE, job="echo", data=i) for i in range(size)])


# -- identity ------------------------------------------------------------------------------------------------


def test_the_flow_id_is_pinned() -> None:
    assert flow_id_for("d", "t", "r1") == "af-652cb7b8350c63d0a4c25523af7f5aaf"


def test_the_flow_id_distinguishes_dag_run_task_and_map_index() -> None:
    ids = {
        flow_id_for("d", "t", "r"),
        flow_id_for("d2", "t", "r"),
        flow_id_for("d", "t2", "r"),
        flow_id_for("d", "t", "r2"),
        flow_id_for("d", "t", "r", 0),
        flow_id_for("d", "t", "r", 1),
    }
    assert len(ids) == 6


def test_no_map_index_is_the_same_as_minus_one() -> None:
    assert flow_id_for("d", "t", "r") == flow_id_for("d", "t", "r", -1)


# -- submitting ----------------------------------------------------------------------------------------------


def test_it_defers_after_submitting(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    made = context(map_index=3)
    flow_id = flow_id_for("d", "t", "r1", 3)
    with pytest.raises(TaskDeferred) as deferred:
        operator(chain("wait"), poll_interval=7).execute(made)
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.timeout is None
    path, kwargs = deferred.value.trigger.serialize()
    assert 0 < kwargs.pop("not_before") - time.time() <= 5
    assert path == "airflow_provider_glidemq.triggers.glidemq.GlideMQFlowTrigger"
    assert kwargs == {
        "flow_id": flow_id,
        "glidemq_conn_id": "glidemq_default",
        "poll_interval": 7,
        "deadline": None,
        "cancel_on_kill": True,
        "wait_for_flow": False,
        "generation": 0,
        "owner": "Airflow task d.t[3] of run r1",
        "lease": 86_400.0,
        "logging_interval": 10.0,
        "show_logs": False,
        "show_progress": False,
        "callbacks": [],
        "is_masked": False,
    }
    assert made["ti"].pushed == {XCOM_FLOW_ID: flow_id}
    with valkey.producer() as producer:
        status = producer.get(flow_id).status()
    assert status.idempotency_key == f"airflow:{flow_id}/2026-01-01T12:00:00.000000+00:00/1"
    assert len(status.idempotency_key) < 100
    assert status.labels == {
        "orchestrator": "airflow",
        "dag_id": "d",
        "task_id": "t",
        "run_id": "r1",
        "map_index": "3",
        "try": "1",
        "airflow_attempt": '{"clears":0,"max_tries":1,"retries":0,'
        '"run_after":"2026-01-01T00:00:00.000000+00:00","start":"2026-01-01T12:00:00.000000+00:00","owned":1}',
    }
    valkey.gate.set()


def test_no_xcom_when_switched_off(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    made = context()
    with pytest.raises(TaskDeferred):
        operator(chain("wait"), do_xcom_push=False).execute(made)
    assert made["ti"].pushed == {}
    valkey.gate.set()


def test_the_deadline_travels_with_the_trigger(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    made = context()
    with pytest.raises(TaskDeferred) as deferred:
        operator(chain("wait"), execution_timeout=timedelta(hours=1)).execute(made)
    deadline = deferred.value.trigger.serialize()[1]["deadline"]
    assert deadline == pytest.approx(made["ti"].start_date.timestamp() + 3600)
    assert deferred.value.timeout is not None
    assert timedelta(hours=1) < deferred.value.timeout < timedelta(hours=1, minutes=2)
    valkey.gate.set()


def test_a_flow_that_has_ended_already_finishes_immediately(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    with valkey.producer() as producer:
        producer.submit(chain(), flow_id=FLOW_ID).wait(timeout=timedelta(seconds=20))
    assert operator().execute(context()) == {"last": {"rows": 3}}


def test_a_short_flow_is_not_worth_deferring(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    assert operator(defer_after=10.0).execute(context()) == {"last": {"rows": 3}}
    start = time.monotonic()
    with pytest.raises(TaskDeferred):
        operator(chain("wait"), defer_after=0.3).execute(context(run_id="r2"))
    assert 0.3 <= time.monotonic() - start < 9, "not as long as the one before may wait"
    valkey.gate.set()


def test_a_flow_that_has_failed_already_fails_immediately(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    with valkey.producer() as producer:
        producer.submit(chain("fail"), flow_id=FLOW_ID).wait(timeout=timedelta(seconds=20))
    with pytest.raises(GlideMQFlowFailed) as caught:
        operator(chain("fail")).execute(context())
    assert [node.name for node in caught.value.failed] == ["middle", "last"]
    assert "no such month" in str(caught.value).splitlines()[1]
    assert "1 failed, 1 could not run" in str(caught.value)


def test_what_a_failed_node_has_logged_is_in_the_log_of_the_task(
    valkey: Valkey, worker: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GlideMQFlowFailed, match="as announced"):
        operator(chain("verbose"), deferrable=False).execute(context())
    told = capsys.readouterr().out
    assert "Node middle had logged" in told
    assert "line 10 x" not in told, "20 are shown: the traceback is the last"
    shown = ["\n    line 11 x", "\n    line 29 x", "\n    attempt 1 failed: Traceback"]
    found = [told.index(text) for text in (*shown, '\n            raise Unrecoverable("as announced")')]
    assert found == sorted(found)
    assert len(told) < 30_000
    assert "Node last" not in told


def test_unreadable_logs_do_not_hide_the_failure(
    valkey: Valkey, worker: Worker, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: Any, **__: Any) -> Any:
        raise GlideMQError("no")

    monkeypatch.setattr(Flow, "logs", unreadable)
    with pytest.raises(GlideMQFlowFailed, match="as announced"):
        operator(chain("verbose"), deferrable=False, show_logs=True).execute(context())


def test_progress_is_logged_at_the_interval(
    valkey: Valkey, worker: Worker, context: Contexts, capsys: pytest.CaptureFixture[str]
) -> None:
    threading.Timer(1.0, valkey.gate.set).start()
    operator(chain("wait"), deferrable=False, logging_interval=0.1).execute(context())
    assert "1/3 nodes completed" in capsys.readouterr().out


def test_no_worker_is_an_error_that_a_retry_may_cure(valkey: Valkey, context: Contexts) -> None:
    with pytest.raises(GlideMQException, match="no worker serves queue airflow-tests"):
        operator().execute(context())
    with valkey.producer() as producer, pytest.raises(Exception, match="no flow"):
        producer.get(FLOW_ID)


def test_without_require_workers_the_flow_waits(valkey: Valkey, context: Contexts) -> None:
    with pytest.raises(TaskDeferred):
        operator(require_workers=False).execute(context())


def test_a_flow_that_cannot_run_is_not_retried(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    wire = {
        "name": "x",
        "nodes": [{"name": "a", "queue": QUEUE, "job": "echo", "after": ["b"]}],
    }
    with pytest.raises(AirflowFailException, match="a waits for b"):
        operator(wire).execute(context())


def test_another_flow_under_the_same_id_is_refused(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    with valkey.producer() as producer:
        producer.submit(build(), flow_id=FLOW_ID).wait(timeout=timedelta(seconds=20))
    with pytest.raises(AirflowFailException, match="Only the task that began a flow can change it"):
        operator().execute(context())


def test_an_unknown_result_mode_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ValueError, match="result must be one of none, leaves, all"):
        operator(result="some")
    for wrong in (5, [5], None, {"last"}):
        with pytest.raises(ValueError, match="or a list of node names"):
            operator(result=wrong)


# -- the forms of a flow -------------------------------------------------------------------------------------


def test_a_flow_may_be_a_dict_a_file_or_an_import_string(
    valkey: Valkey, worker: Worker, context: Contexts, tmp_path: Path
) -> None:
    wire = {"name": "one", "nodes": [{"name": "only", "queue": QUEUE, "job": "echo", "data": 5}]}
    path = tmp_path / "flow.json"
    path.write_text(json.dumps(wire))
    for run, flow, kwargs in [
        ("dict", wire, {}),
        ("file", str(path), {}),
        ("import", f"{__name__}:build", {"flow_kwargs": {"size": 1}}),
    ]:
        values = operator(flow, deferrable=False, **kwargs).execute(context(run_id=run))
        assert list((values or {}).values()) == [5 if run != "import" else 0]


def test_a_wrong_import_string_is_explained(context: Contexts, subtests: pytest.Subtests) -> None:
    for flow in WRONG_IMPORT_STRINGS:
        with subtests.test(flow=flow), pytest.raises(AirflowFailException, match="flow "):
            operator(flow).execute(context())


# -- resuming ------------------------------------------------------------------------------------------------


def test_it_returns_the_results_after_the_event(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    made = context()
    with valkey.producer() as producer:
        producer.submit(chain(), flow_id=FLOW_ID).wait(timeout=timedelta(seconds=20))
    assert operator().execute_complete(made, event()) == {"last": {"rows": 3}}


def test_a_cancelled_flow_fails_the_task_with_the_reason(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    with valkey.producer() as producer:
        flow = producer.submit(chain("wait"), flow_id=FLOW_ID)
        flow.cancel("somebody said so")
        flow.wait(timeout=timedelta(seconds=20))
    with pytest.raises(GlideMQFlowCancelled, match="somebody said so"):
        operator().execute_complete(context(), event("cancelled"))


def test_a_flow_that_was_restarted_is_waited_for_again(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    with valkey.producer() as producer:
        producer.submit(chain("wait"), flow_id=FLOW_ID)
    with pytest.raises(TaskDeferred):
        operator().execute_complete(context(), event("failed"))
    valkey.gate.set()


def test_a_timeout_cancels_the_flow(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    with valkey.producer() as producer:
        flow = producer.submit(chain("wait"), flow_id=FLOW_ID, owner=OWNER)
        with pytest.raises(GlideMQFlowTimeout, match="of 3 nodes had completed"):
            operator().execute_complete(context(), event("timeout"))
        assert flow.wait(timeout=timedelta(seconds=20)).status.state is FlowState.CANCELLED


def test_a_timeout_that_airflow_saw_first_cancels_the_flow_too(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    with valkey.producer() as producer:
        flow = producer.submit(chain("wait"), flow_id=FLOW_ID, owner=OWNER)
        with pytest.raises(GlideMQFlowTimeout):
            operator().resume_execution("__fail__", {"error": "Trigger timeout"}, context())
        assert flow.wait(timeout=timedelta(seconds=20)).status.state is FlowState.CANCELLED


@pytest.mark.parametrize(("try_number", "state"), [(1, FlowState.RUNNING), (2, FlowState.CANCELLED)])
def test_a_failed_trigger_costs_the_flow_only_without_a_retry_left(
    valkey: Valkey, worker: Worker, context: Contexts, try_number: int, state: FlowState
) -> None:
    with valkey.producer() as producer:
        flow = producer.submit(chain("wait"), flow_id=FLOW_ID, owner=OWNER)
        with pytest.raises((TaskDeferralError, TaskDeferralTimeout)):
            operator().resume_execution(
                "__fail__", {"error": "Trigger failure"}, context(try_number=try_number)
            )
        assert flow.status().state is state
    valkey.gate.set()


def test_an_unusable_event_is_an_error(context: Contexts, subtests: pytest.Subtests) -> None:
    for wrong in (None, {}, {"status": "completed"}):
        with subtests.test(wrong=wrong), pytest.raises(GlideMQException, match="no usable event"):
            operator().execute_complete(context(), wrong)


def test_an_error_of_the_trigger_is_reported(context: Contexts) -> None:
    with pytest.raises(GlideMQException, match="cannot be watched"):
        operator().execute_complete(context(), event("error"))


@pytest.mark.parametrize("count", [0, 9, 10, 16, 24])
def test_a_flow_with_labels_keeps_them_all_and_its_owner(
    valkey: Valkey, worker: Worker, context: Contexts, count: int
) -> None:
    labels = {f"{n}: =,'\"~ü/{{{{ ds }}}}": f"{n}\t" for n in range(count)} if count < 10 else {}
    labels |= {str(n): "task_group" for n in range(len(labels), count)} | {"task_group": "x"}
    labels = dict(list(labels.items())[-max(count, 1) :])
    operator(replace(chain(), labels=labels), deferrable=False).execute(context())
    with valkey.producer() as producer:
        status = producer.get(FLOW_ID).status()
        found = {name: status.labels[name] for name in labels if name in status.labels}
        assert (len(found), found["task_group"]) == (len(labels), "x")
        by = began(status)
        assert by is not None
        assert (by.seen.get("owned"), by.seen.get("group")) == (1, None)
        for label in (("task_id", "t"), ("task_group", "x")):
            assert [one.id for one in producer.list(label=label)] == [FLOW_ID]


def test_more_labels_than_there_is_room_for_are_refused_at_parse_time() -> None:
    message = r"^task t: flow \w+ has 25 labels; the limit is 24, as the .*\. Fix: leave 1 of them out$"
    with DAG("d", schedule=None), pytest.raises(InvalidFlow, match=message):
        operator(replace(chain(), labels={str(n): "x" for n in range(25)}))


def test_a_label_that_is_too_long_is_refused_with_task_flow_and_key() -> None:
    message = r"^task t: flow \w+: the value of label 'team' must have 1 to 256 characters, got 257$"
    with DAG("d", schedule=None), pytest.raises(InvalidFlow, match=message):
        operator(replace(chain(), labels={"team": "x" * 257}))


# -- retry, clear, kill --------------------------------------------------------------------------------------


def test_a_retry_repairs_what_failed(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    task = operator(chain("fail"), deferrable=False, result="all")
    with pytest.raises(GlideMQFlowFailed):
        task.execute(context())
    valkey.gate.set()
    values = task.execute(context(try_number=2))
    assert values == {"first": 1, "middle": "repaired", "last": {"rows": 3}}
    with valkey.producer() as producer:
        attempts = {node.name: node.attempts for node in producer.get(FLOW_ID).nodes()}
    assert attempts["first"] == 1


def test_a_retry_attaches_to_a_running_flow(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    for try_number in (1, 2):
        with pytest.raises(TaskDeferred):
            operator(chain("wait")).execute(context(try_number=try_number))
    valkey.gate.set()
    wait_for_end(valkey)
    assert operator(chain("wait")).execute_complete(context(try_number=2), event()) is not None


def test_a_kill_cancels_the_flow(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    task = operator(chain("wait"))
    with pytest.raises(TaskDeferred):
        task.execute(context())
    task.on_kill()
    wait_for_end(valkey)
    with valkey.producer() as producer:
        status = producer.get(FLOW_ID).status()
    assert (status.state, status.reason) == (FlowState.CANCELLED, "the Airflow task was killed")


def test_a_kill_before_submitting_or_without_leave_does_nothing(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    operator().on_kill()
    task = operator(chain("wait"), cancel_on_kill=False)
    with pytest.raises(TaskDeferred):
        task.execute(context())
    task.on_kill()
    with valkey.producer() as producer:
        assert producer.get(FLOW_ID).status().state is FlowState.RUNNING
    valkey.gate.set()


def test_without_deferring_it_waits_in_the_worker(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    threading.Timer(0.5, valkey.gate.set).start()
    start = time.monotonic()
    assert operator(chain("wait"), deferrable=False).execute(context()) == {"last": {"rows": 3}}
    assert time.monotonic() - start < 10
