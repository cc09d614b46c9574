"""One job behind one task: its result, its end, and that it lives as a flow does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQResultTooLarge,
)
from airflow_provider_glidemq.operators.glidemq import XCOM_FLOW_ID, GlideMQOperator, flow_id_for
from airflow_provider_glidemq.results import MAX_RESULT_BYTES
from airflow_provider_glidemq.version_compat import AirflowFailException, AirflowSkipException, TaskDeferred

from glidemq_orchestrate import FlowState, JobOptions, Ordering, Worker
from tests.providers.airflow.builders import DAY, QUEUE, Contexts, FakeRun, Valkey

FLOW_ID = flow_id_for("d", "t", "r1")
LONG = timedelta(seconds=20)

WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"queue_name": "a:b"}, "queue name"),
    ({"queue_name": 5.5}, "queue"),
    ({"job": ""}, "name"),
    ({"data": {1, 2}}, "is not JSON"),
    ({"options": {"attempts": 0}}, "attempts"),
    ({"options": {"color": 1}}, "color"),
    ({"options": 5}, "task t: options must be JobOptions"),
    ({"options": JobOptions(job_id="x")}, "job_id is set by the flow"),
    ({"retention": "long"}, "retention must be"),
    ({"retention": -1}, "retention must not be negative"),
    ({"on_existing": "x"}, "on_existing"),
    ({"lease": 1}, "lease"),
]


def job(name: str = "echo", data: Any = None, **kwargs: Any) -> GlideMQOperator:
    given: dict[str, Any] = {"task_id": "t", "deferrable": False, "defer_after": 0.0, "queue_name": QUEUE}
    return GlideMQOperator(**{**given, "job": name, "data": data, **kwargs})


class TestEnds:
    @pytest.mark.parametrize("data", [{"rows": [1, None]}, "text", 5, None])
    def test_the_result_is_that_of_the_job(
        self, valkey: Valkey, worker: Worker, context: Contexts, data: Any
    ) -> None:
        made = context()
        assert job(data=data).execute(made) == data
        assert made["ti"].pushed == {XCOM_FLOW_ID: FLOW_ID}

    def test_it_defers_and_resumes(self, valkey: Valkey, worker: Worker, context: Contexts) -> None:
        with pytest.raises(TaskDeferred) as deferred:
            job("wait", deferrable=True).execute(context())
        assert deferred.value.trigger.serialize()[1]["flow_id"] == FLOW_ID
        valkey.gate.set()
        with valkey.producer() as producer:
            producer.get(FLOW_ID).wait(timeout=LONG)
        event = {"status": "completed", "flow_id": FLOW_ID}
        assert job("wait").execute_complete(context(), event) == "done"

    def test_a_failure_says_why(self, valkey: Valkey, worker: Worker, context: Contexts) -> None:
        with pytest.raises(GlideMQFlowFailed, match="fail: no such month"):
            job("fail").execute(context())

    @pytest.mark.parametrize("resumed", [False, True])
    def test_a_job_that_skips_skips_the_task(
        self, valkey: Valkey, worker: Worker, context: Contexts, *, resumed: bool
    ) -> None:
        with pytest.raises(AirflowSkipException, match=r"job skip was skipped: .*nothing to do for May"):
            job("skip", "May").execute(context())
        if resumed:
            event = {"status": "completed", "flow_id": FLOW_ID}
            with pytest.raises(AirflowSkipException, match="nothing to do for May"):
                job("skip", "May").execute_complete(context(), event)

    def test_a_result_too_large_for_xcom(self, valkey: Valkey, worker: Worker, context: Contexts) -> None:
        text = "x" * MAX_RESULT_BYTES
        with pytest.raises(GlideMQResultTooLarge, match="Largest: echo"):
            job(data=text).execute(context())
        assert job(data=text, do_xcom_push=False).execute(context()) == text

    def test_no_worker(self, valkey: Valkey, context: Contexts) -> None:
        with pytest.raises(GlideMQException, match="no worker serves queue"):
            job().execute(context())


class TestLife:
    def test_a_retry_runs_it_again_after_a_failure_and_else_not(
        self, valkey: Valkey, worker: Worker, context: Contexts
    ) -> None:
        with pytest.raises(GlideMQFlowFailed):
            job("fail").execute(context())
        valkey.gate.set()
        assert job("fail").execute(context(try_number=2)) == "repaired"
        assert job("count").execute(context(run_id="r2")) == 1
        assert job("count").execute(context(run_id="r2", try_number=2)) == 1

    def test_a_clear_runs_it_anew(self, valkey: Valkey, worker: Worker, context: Contexts) -> None:
        assert job("count").execute(context()) == 1
        cleared = context(try_number=2, max_tries=2, run=FakeRun(clear_number=1))
        assert job("count").execute(cleared) == 2

    def test_a_kill_cancels_it(self, valkey: Valkey, worker: Worker, context: Contexts) -> None:
        made = job("wait", deferrable=True)
        with pytest.raises(TaskDeferred):
            made.execute(context())
        made.on_kill()
        with valkey.producer() as producer:
            assert producer.get(FLOW_ID).wait(timeout=LONG).status.state is FlowState.CANCELLED
        event = {"status": "cancelled", "flow_id": FLOW_ID}
        with pytest.raises(GlideMQFlowCancelled):
            job("wait").execute_complete(context(), event)

    def test_options_and_retention_reach_the_job(
        self, valkey: Valkey, worker: Worker, context: Contexts
    ) -> None:
        ordering = {"key": "k-{{ ds }}"}
        for run, options in (
            ("r1", JobOptions(ordering=Ordering("k-{{ ds }}"))),
            ("r2", {"ordering": ordering}),
        ):
            with DAG("d", schedule=None):
                made = job(options=options, retention=60)
            made.render_template_fields(dict(DAY))  # type: ignore[arg-type]
            spec = made._described(context(run_id=run))
            assert spec.nodes[0].options == JobOptions(ordering=Ordering("k-2026-01-01"))
            assert spec.retention == timedelta(minutes=1)
            made.execute(context(run_id=run))


class TestParameters:
    def test_queue_is_still_that_of_airflow(self) -> None:
        assert (job(queue="high-mem").queue, job(queue="high-mem").queue_name) == ("high-mem", QUEUE)
        assert job().queue == "default"

    @pytest.mark.parametrize("native", [False, True])
    def test_are_rendered(self, valkey: Valkey, worker: Worker, context: Contexts, *, native: bool) -> None:
        with DAG("d", schedule=None, render_template_as_native_obj=native):
            made = job("{{ 'echo' }}", {"n": "{{ params.n }}", "same": "07\n", "file": "x.json"})
        made.resolve_template_files()
        made.render_template_fields(dict(DAY))  # type: ignore[arg-type]
        assert made.execute(context()) == {"n": 3 if native else "3", "same": "07\n", "file": "x.json"}

    def test_may_be_numbers_after_native_rendering(self) -> None:
        made: Any = job()
        made.queue_name, made.job = 20260101, 7
        (node,) = made._described({}).nodes
        assert (node.queue, node.job, node.name) == ("20260101", "7", "7")

    def test_that_cannot_be_right_are_refused_when_the_dag_is_parsed(self, subtests: pytest.Subtests) -> None:
        for given, why in WRONG_OPTIONS:
            with subtests.test(given=given):
                with DAG("d", schedule=None), pytest.raises((ValueError, TypeError), match=why):
                    job(**given)
                with DAG("e", schedule=None) as dag:
                    pass
                late = job()
                late.dag = dag
                late.options = {"attempts": 0}
                with pytest.raises(ValueError, match=r"task t: .*attempts"):
                    late.resolve_template_files()

    def test_that_are_templates_or_come_from_other_tasks_are_not(self) -> None:
        with DAG("d", schedule=None):
            first = job()
            output: Any = first.output
            job("{{ ds }}", output, options=output, queue_name="q-{{ ds }}", task_id="u")

    def test_that_rendering_shows_to_be_wrong_fail_for_good(
        self, valkey: Valkey, worker: Worker, context: Contexts
    ) -> None:
        for given in (
            {"options": "{{ ds }}"},
            {"queue_name": "{{ 'a:b' }}"},
            {"options": {"attempts": "{{ ds }}"}},
        ):
            with DAG("d", schedule=None):
                made = job(**given)
            made.render_template_fields(dict(DAY))  # type: ignore[arg-type]
            with pytest.raises(AirflowFailException):
                made.execute(context())
        with valkey.producer() as producer:
            assert producer.list() == []
