"""Which results of a flow a task returns, and what becomes of those that are too large for XCom."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.exceptions import GlideMQResultTooLarge
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, flow_id_for
from airflow_provider_glidemq.results import MAX_RESULT_BYTES
from airflow_provider_glidemq.version_compat import AirflowFailException

from glidemq_orchestrate import Flow, FlowNode, FlowSpec, Worker
from glidemq_orchestrate.errors import FlowNotFound, InvalidFlow
from tests.providers.airflow.builders import QUEUE, Contexts, Valkey, event, operator

FLOW_ID = flow_id_for("d", "t", "r1")


def test_results_of_all_of_leaves_of_none(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    wanted: dict[Any, Any] = {
        "none": None,
        "leaves": {"last": {"rows": 3}},
        "all": {"first": 1, "middle": 2, "last": {"rows": 3}},
    }
    for mode, expected in wanted.items():
        assert operator(result=mode, deferrable=False).execute(context()) == expected


def test_results_of_named_nodes(valkey: Valkey, worker: Worker, context: Contexts) -> None:
    found = operator(result=["last", "first"], deferrable=False).execute(context())
    assert found == {"last": {"rows": 3}, "first": 1}
    assert operator(result=[], deferrable=False).execute(context()) == {}
    with pytest.raises(AirflowFailException, match=r"no node first\[7\]"):  # a running node may have added it
        operator(result=["first[7]"], deferrable=False).execute(context())


def test_results_of_nodes_that_the_flow_does_not_have_are_refused_before_it_runs(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    expected = r"^task t: .*result names 'frist', and the flow has no such node; did you mean 'first'\?"
    made = operator(result=["last", "frist"])
    with pytest.raises(AirflowFailException, match=expected):
        made.execute(context())
    with valkey.producer() as producer, pytest.raises(FlowNotFound):
        producer.get(FLOW_ID).status()
    with pytest.raises(InvalidFlow, match=expected):
        operator(result=["frist"]).resolve_template_files()
    with DAG("d", schedule=None), pytest.raises(InvalidFlow, match="it has large, small"):
        GlideMQFlowOperator(task_id="t", flow=BIG, result=["zz"])


def test_results_are_not_checked_where_a_template_names_the_nodes() -> None:
    flow = {"name": "f", "nodes": [{"name": "load-{{ ds }}", "queue": QUEUE, "job": "echo"}]}
    with DAG("d", schedule=None):
        GlideMQFlowOperator(task_id="t", flow=flow, result=["load-2026-01-31"])
        GlideMQFlowOperator(task_id="u", flow={"name": "f", "nodes": "{{ params.nodes }}"}, result=["load"])


def test_mistakes_in_parameters_name_the_task() -> None:
    for mistake in (
        {"result": "some"},
        {"poll_interval": "often"},
        {"lease": 1},
        {"on_existing": "leave"},
        {"show_logs": "yes"},
        {"flow_kwargs": 5},
    ):
        with DAG("d", schedule=None), pytest.raises((TypeError, ValueError), match=r"^task etl: "):
            GlideMQFlowOperator(task_id="etl", flow=BIG, **mistake)


@pytest.mark.parametrize("resumed", [False, True])
def test_leaves_are_read_by_name(
    valkey: Valkey,
    worker: Worker,
    context: Contexts,
    monkeypatch: pytest.MonkeyPatch,
    *,
    resumed: bool,
) -> None:
    asked: list[Any] = []
    results = Flow.results
    monkeypatch.setattr(Flow, "nodes", lambda _: pytest.fail("reads every node"))

    def reading(self: Flow, names: Any = None) -> Any:
        asked.append(names)
        return results(self, names)

    monkeypatch.setattr(Flow, "results", reading)
    made = operator(defer_after=20.0)
    found = made.execute(context())
    if resumed:
        found = operator().execute_complete(context(), event())
    assert found == {"last": {"rows": 3}}
    assert asked[-1] == ["last"]


def test_leaves_are_those_of_the_flow_with_what_running_nodes_have_added(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    spec = FlowSpec("grows", [FlowNode("grower", queue=QUEUE, job="grow")])
    found = operator(spec, deferrable=False).execute(context())
    with valkey.producer() as producer:
        leaves = producer.get(FLOW_ID).leaves()
    assert set(found or {}) == set(leaves)
    assert "more" in leaves


BIG = {
    "name": "big",
    "nodes": [
        {"name": "large", "queue": QUEUE, "job": "echo", "data": "x" * MAX_RESULT_BYTES},
        {"name": "small", "queue": QUEUE, "job": "echo", "data": 1},
    ],
}


@pytest.mark.parametrize("resumed", [False, True])
def test_large_results_fail_the_task_with_advice_and_keep_the_flow(
    valkey: Valkey, worker: Worker, context: Contexts, *, resumed: bool
) -> None:
    made = operator(BIG, deferrable=False)
    with pytest.raises(GlideMQResultTooLarge) as caught:
        made.execute(context())
    if resumed:
        with pytest.raises(GlideMQResultTooLarge) as caught:
            operator(BIG).execute_complete(context(), event())
    assert isinstance(caught.value, AirflowFailException)
    for part in (
        "Largest: large 49,154, small 1",
        'result="none"',
        "object storage",
        "clear the task: it reads",
    ):
        assert part in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert caught.value.sizes == {"large": MAX_RESULT_BYTES + 2, "small": 1}
    kept = operator(BIG, deferrable=False, result=["small"])
    cleared = context(try_number=2, max_tries=2)
    assert kept.execute(cleared) == {"small": 1}
    with valkey.producer() as producer:
        assert len(producer.get(FLOW_ID).history()) == 1


def test_large_results_are_returned_where_nothing_is_pushed(
    valkey: Valkey, worker: Worker, context: Contexts
) -> None:
    assert set(operator(BIG, deferrable=False, do_xcom_push=False).execute(context())) == {"large", "small"}


@pytest.mark.parametrize(
    ("backend", "threshold", "is_elsewhere"),
    [
        (None, None, False),
        ("airflow.sdk.execution_time.xcom.BaseXCom", None, False),
        ("airflow.providers.common.io.xcom.backend.XComObjectStorageBackend", None, False),
        ("airflow.providers.common.io.xcom.backend.XComObjectStorageBackend", "1024", True),
        ("mine.Backend", None, True),
    ],
)
def test_large_results_go_to_an_xcom_backend_that_stores_elsewhere(  # noqa: PLR0917
    valkey: Valkey,
    worker: Worker,
    context: Contexts,
    monkeypatch: pytest.MonkeyPatch,
    backend: str | None,
    threshold: str | None,
    is_elsewhere: bool,  # noqa: FBT001  a case
) -> None:
    if backend is not None:
        monkeypatch.setenv("AIRFLOW__CORE__XCOM_BACKEND", backend)
    if threshold is not None:
        monkeypatch.setenv("AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD", threshold)
    made = operator(BIG, deferrable=False)
    if is_elsewhere:
        assert set(made.execute(context())) == {"large", "small"}
    else:
        with pytest.raises(GlideMQResultTooLarge):
            made.execute(context())
