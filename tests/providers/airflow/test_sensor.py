"""Waiting for a flow that another task runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow_provider_glidemq.exceptions import GlideMQException, GlideMQFlowCancelled, GlideMQFlowFailed
from airflow_provider_glidemq.operators.glidemq import flow_id_for
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor
from airflow_provider_glidemq.version_compat import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferralError,
    TaskDeferred,
)

from glidemq_orchestrate import FlowSpec, Worker
from tests.providers.airflow.builders import Contexts, Valkey, chain

WRONG_NAMES_OF_FLOWS: list[dict[str, str]] = [
    {"flow_id": "f", "external_dag_id": "d"},
    {"external_dag_id": "d"},
    {"external_dag_id": "d", "external_task_id": "t"},
    {},
]


def sensor(**kwargs: Any) -> GlideMQFlowSensor:
    if "external_dag_id" not in kwargs:
        kwargs.setdefault("flow_id", "f")
    return GlideMQFlowSensor(task_id="s", **kwargs)


def ended(valkey: Valkey, spec: FlowSpec, flow_id: str = "f") -> None:
    with valkey.producer() as producer:
        producer.submit(spec, flow_id=flow_id).wait(timeout=timedelta(seconds=20))


def test_a_flow_that_has_completed_is_a_success(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    ended(valkey, chain())
    assert sensor().execute(context()) is None
    assert sensor(result="leaves").execute(context()) == {"last": {"rows": 3}}
    assert sensor(result="leaves", deferrable=False).execute(context()) == {"last": {"rows": 3}}


def test_a_flow_that_does_not_exist_yet_is_waited_for(valkey: Valkey, context: Contexts) -> None:
    made = sensor(poke_interval=7, timeout=100)
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(context())
    _, kwargs = deferred.value.trigger.serialize()
    assert (kwargs["flow_id"], kwargs["wait_for_flow"], kwargs["cancel_on_kill"]) == ("f", True, False)
    assert kwargs["poll_interval"] == 7
    assert kwargs["not_before"] > time.time()


def test_a_flow_is_found_by_the_task_that_runs_it(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    ended(valkey, chain(), flow_id_for("d", "t", "r"))
    made = sensor(
        external_dag_id="d", external_task_id="t", external_run_id="r", deferrable=False, poke_interval=0
    )
    assert made.execute(context()) is None


def test_a_flow_that_failed_fails_the_sensor(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    ended(valkey, chain("fail"))
    for deferrable in (True, False):
        with pytest.raises(GlideMQFlowFailed, match="no such month"):
            sensor(deferrable=deferrable).execute(context())
    with pytest.raises(GlideMQFlowFailed):
        sensor().execute_complete(context(), {"status": "failed", "flow_id": "f"})


def test_a_failure_may_be_allowed(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    ended(valkey, chain("fail"))
    assert sensor(allowed_states=["completed", "failed"], result="all").execute(context()) == {"first": 1}


def test_a_cancelled_flow_fails_the_sensor(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    with valkey.producer() as producer:
        producer.submit(chain("wait"), flow_id="f").cancel("no longer wanted")
    with pytest.raises(GlideMQFlowCancelled, match="no longer wanted"):
        sensor().execute(context())


def test_a_timeout_is_a_sensor_timeout_and_tells_how_the_flow_is(valkey: Valkey, context: Contexts) -> None:
    event = {"status": "timeout", "flow_id": "f"}
    with pytest.raises(AirflowSensorTimeout, match=r"flow f: not within 9 seconds\. There is no such flow"):
        sensor(timeout=9).execute_complete(context(), event)
    with valkey.producer() as producer:
        flow = producer.submit(chain("wait"), flow_id="f")
    with pytest.raises(AirflowSensorTimeout, match="It is running: 0 of 3 nodes have completed"):
        sensor().execute_complete(context(), event)
    with valkey.producer() as producer:
        producer.get(flow.id).cancel("no longer wanted")
    with pytest.raises(GlideMQFlowCancelled):
        sensor().execute_complete(context(), event)


def test_a_timeout_is_one_also_when_the_server_is_gone(context: Contexts) -> None:
    with pytest.raises(AirflowSensorTimeout, match=r"not within 9 seconds\.$"):
        sensor(timeout=9, glidemq_conn_id="away").execute_complete(context(), {"status": "timeout"})


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ``away``."""
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", "glidemq://127.0.0.1:1")


@pytest.mark.parametrize("deferrable", [True, False])
class TestSoftly:
    """As of every sensor: only a time-out is skipped softly, and all with ``never_fail``."""

    @pytest.mark.parametrize("resumed", [True, False])
    def test_a_flow_that_failed(
        self, valkey: Valkey, worker: Worker, context: Contexts, deferrable: Any, resumed: Any
    ) -> None:
        ended(valkey, chain("fail"))
        event = {"event": {"status": "failed", "flow_id": "f"}}

        def run(**kwargs: Any) -> None:
            made = sensor(deferrable=deferrable, **kwargs)
            if resumed:
                made.resume_execution("execute_complete", event, context())
            made.execute(context())

        with pytest.raises(GlideMQFlowFailed):
            run(soft_fail=True)
        with pytest.raises(AirflowSkipException, match="no such month" if deferrable else "never_fail"):
            run(never_fail=True)

    @pytest.mark.parametrize(
        "uri", ["glidemq://127.0.0.1:1", "glidemq://u:p@127.0.0.1:{port}", "glidemq://x?odd=1", None]
    )
    def test_a_connection_that_is_wrong(
        self,
        valkey: Valkey,
        context: Contexts,
        monkeypatch: pytest.MonkeyPatch,
        deferrable: Any,
        uri: str | None,
    ) -> None:
        """It fails at once at the first look; a retry may find another password."""
        if uri is not None:
            monkeypatch.setenv("AIRFLOW_CONN_BAD", uri.format(port=valkey.url.rpartition(":")[2]))
        made = {"deferrable": deferrable, "glidemq_conn_id": "bad"}
        with pytest.raises(GlideMQException) as caught:
            sensor(soft_fail=True, **made).execute(context())
        assert not isinstance(caught.value, AirflowFailException | AirflowSkipException)
        with pytest.raises(AirflowSkipException):
            sensor(never_fail=True, **made).execute(context())

    @pytest.mark.parametrize("how", ["soft_fail", "never_fail"])
    def test_a_time_out(self, valkey: Valkey, context: Contexts, deferrable: Any, how: str) -> None:
        made = sensor(deferrable=deferrable, timeout=0.2, poke_interval=0.1, **{how: True})
        for failed in ("Trigger timeout", "Trigger failure"):
            error = {"error": failed}
            is_skipped = how == "never_fail" or "timeout" in failed
            with pytest.raises(AirflowSkipException if is_skipped else TaskDeferralError):
                made.resume_execution("__fail__", error, context())
        with pytest.raises(AirflowSkipException, match="not within"):
            made.resume_execution("execute_complete", {"event": {"status": "timeout"}}, context())
        if not deferrable and how == "soft_fail":
            with pytest.raises(AirflowSkipException, match="timed out"):
                made.execute(context())


class TestExecutionTimeout:
    """It counts while the sensor is deferred."""

    def test_it_is_the_deadline_where_it_comes_first(self, valkey: Valkey, context: Contexts) -> None:
        now = context()
        for execution, seconds in ((30, 30), (90, 60)):
            made = sensor(timeout=60, execution_timeout=timedelta(seconds=execution))
            with pytest.raises(TaskDeferred) as deferred:
                made.execute(now)
            deadline = now["ti"].start_date.timestamp() + seconds
            assert deferred.value.trigger.serialize()[1]["deadline"] == deadline
            assert deferred.value.timeout is not None
            assert timedelta(seconds=seconds) < deferred.value.timeout < timedelta(seconds=seconds + 61)

    @pytest.mark.parametrize("seen_by", ["trigger", "airflow"])
    def test_the_task_may_be_retried_as_any_that_took_too_long(
        self, valkey: Valkey, context: Contexts, seen_by: str
    ) -> None:
        made = sensor(timeout=60, execution_timeout=timedelta(seconds=30))
        calls: dict[str, tuple[str, dict[str, Any]]] = {
            "trigger": ("execute_complete", {"event": {"status": "timeout"}}),
            "airflow": ("__fail__", {"error": "Trigger timeout"}),
        }
        method, kwargs = calls[seen_by]
        with pytest.raises(AirflowTaskTimeout, match=r"not within its execution_timeout, 0:00:30\. There is"):
            made.resume_execution(method, kwargs, context())


def test_the_time_out_counts_from_the_start_of_the_task(valkey: Valkey, context: Contexts) -> None:
    began = datetime.now(UTC) - timedelta(seconds=60)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(timeout=100).execute(context(start_date=began))
    assert deferred.value.trigger.serialize()[1]["deadline"] == began.timestamp() + 100


def test_an_error_of_the_trigger_is_reported(context: Contexts) -> None:
    with pytest.raises(GlideMQException, match="why not"):
        sensor().execute_complete(context(), {"status": "error", "flow_id": "f", "reason": "why not"})


def test_the_flow_is_named_in_one_way_only(subtests: pytest.Subtests) -> None:
    for kwargs in WRONG_NAMES_OF_FLOWS:
        with (
            subtests.test(kwargs=kwargs),
            pytest.raises(ValueError, match=r"^task s: give either flow_id or"),
        ):
            GlideMQFlowSensor(task_id="s", **kwargs)  # type: ignore[arg-type]


def test_an_unknown_state_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ValueError, match=r"^task s: allowed_states .*got done"):
        sensor(allowed_states=["done"])
