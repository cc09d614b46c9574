"""Templates that make no flow: what is refused when the DAG is parsed, and what once it is rendered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.exceptions import GlideMQException
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator
from airflow_provider_glidemq.version_compat import AirflowFailException

from glidemq_orchestrate import FlowNode, FlowSpec, Worker
from tests.providers.airflow.builders import YAML, Contexts, Valkey, flow_of, one, rendered, results

BAD: dict[str, tuple[Any, str]] = {
    "cycle": ([("a", ["b"]), ("b", ["a"])], "cycle: a -> b -> a|cycle: b -> a -> b"),
    "unknown": ([("a", ["c"])], "a waits for c"),
    "twice": ([("a", []), ("a", [])], "more than once: a"),
    "cycle of templates": ([("a-{{ ds }}", ["b"]), ("b", ["a-{{ ds }}"])], "cycle"),
    "twice a template": ([("a-{{ ds }}", []), ("a-{{ ds }}", [])], "more than once: a-<< ds >>"),
    "empty": ([], "no nodes|nodes"),
}

WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"flow": one({1, 2})}, "is not JSON"),
    ({"flow": one(after="only")}, "after"),
    ({"flow": {**one(), "color": 1}}, "color"),
    ({"flow": one(options={"attempts": "many"})}, "attempts"),
    ({"flow": FlowSpec("x", [FlowNode("a", queue="q", job=5)])}, "job"),  # type: ignore[arg-type]
    ({"flow": FlowSpec("x", ["a"])}, "nodes must be"),  # type: ignore[list-item]
    ({"flow": "neither"}, "neither a flow file"),
    ({"flow": "a-b:c"}, "no such function"),
    ({"flow": 5}, "flow must be a dict"),
    ({"flow_kwargs": 5}, "flow_kwargs must be a dict"),
    ({"flow_id": 5}, "flow_id must be a string"),
    ({"on_existing": "again"}, "on_existing must be None or one of attach"),
    ({"defer_after": "3"}, "defer_after must be a timedelta or a number"),
    ({"poll_interval": 0}, "poll_interval must be at least"),
    ({"deferrable": "yes"}, "deferrable must be True or False"),
    ({"require_workers": None}, "require_workers must be True or False"),
    ({"glidemq_conn_id": None}, "glidemq_conn_id must be a string"),
]

WRONG_ONCE_RENDERED: list[Any] = [
    one(name="{{ 'x' * 300 }}"),
    flow_of([("a", ["{{ ds }}"])], as_spec=False),
    flow_of([("a-{{ ds }}", []), ("a-2026-01-01", [])], as_spec=True),
    one(rule="{{ ds }}"),
    "{{ ds }}",
    "{{ ds }}.yaml",
    "{{ params.n }}:x",
]


class TestRefusedWhenTheDagIsParsed:
    def test_a_graph_that_cannot_run(self, subtests: pytest.Subtests) -> None:
        for as_spec in (False, True):
            for kind, (nodes, why) in BAD.items():
                with (
                    subtests.test(as_spec=as_spec, kind=kind),
                    DAG("d", schedule=None),
                    pytest.raises(ValueError, match=f"(?s)task t: .*({why})"),
                ):
                    GlideMQFlowOperator(task_id="t", flow=flow_of(nodes, as_spec=as_spec))

    def test_not_what_only_rendering_tells(self, subtests: pytest.Subtests) -> None:
        for as_spec in (False, True):
            with subtests.test(as_spec=as_spec):
                graphs: list[list[tuple[str, list[str]]]] = [
                    [("a", ["b-{{ ds }}"]), ("b-2026-01-01", [])],
                    [("a", ["b-2026-01-01"]), ("b-{{ ds }}", [])],
                    [("a-{{ ds }}", []), ("a-{{ ds_nodash }}", [])],
                ]
                for nodes in graphs:
                    rendered(flow_of(nodes, as_spec=as_spec))

    def test_not_fields_that_are_templates(self) -> None:
        node = {
            "queue": "q-{{ ds }}",
            "rule": "{{ ds }}",
            "on_failure": "{{ ds }}",
            "queue_timeout": "PT{{ params.n }}S",
            "options": {
                "attempts": "{{ params.n }}",
                "ordering": {"key": "{{ ds }}", "concurrency": "{{ params.n }}"},
                "fallbacks": ["{{ ds }}", {"model": "{{ ds }}"}],
            },
        }
        with DAG("d", schedule=None):
            GlideMQFlowOperator(
                task_id="t", flow={**one(**node), "labels": {"x": "{{ ds }}"}, "deadline": "{{ ds }}"}
            )
            GlideMQFlowOperator(task_id="u", flow="{{ params.n }}")
            spec = FlowSpec(
                "x", [FlowNode("a", queue="q-{{ ds }}", job="j", rule="{{ ds }}", on_failure="{{ ds }}")]
            )
            GlideMQFlowOperator(task_id="v", flow=spec)

    def test_not_what_another_task_gives(self) -> None:
        with DAG("d", schedule=None):
            first = GlideMQFlowOperator(task_id="a", flow=one())
            output: Any = first.output
            second = GlideMQFlowOperator(task_id="b", flow=one({"x": [output]}, job=output))
            third = GlideMQFlowOperator(task_id="c", flow=output, flow_kwargs=output, flow_id=output)
        assert second.upstream_task_ids == third.upstream_task_ids == {"a"}

    def test_wrong_types(self, subtests: pytest.Subtests) -> None:
        for given, why in WRONG_TYPES:
            with (
                subtests.test(given=given),
                DAG("d", schedule=None),
                pytest.raises((ValueError, TypeError), match=why),
            ):
                GlideMQFlowOperator(task_id="t", **{"flow": one(), **given})

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            (None, "flow.yaml was not found in .*dags"),
            (
                "name: x\nnodes: [{name: a, queue: q, job: j, after: [b]}]",
                "task t: flow.yaml: .*a waits for b",
            ),
            ("name: [", "flow.yaml, line 2"),
            ("name: x\ncolor: red\nnodes: [{name: a, queue: q, job: j}]", "flow.yaml: .*color"),
        ],
    )
    def test_is_an_import_error_of_the_dag(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, why: str
    ) -> None:
        try:  # slow to import
            from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415
        except ImportError:  # Airflow 3.1
            from airflow.models.dagbag import DagBag  # type: ignore[no-redef]  # noqa: PLC0415

        folder = tmp_path / "dags"
        folder.mkdir()
        (folder / "d.py").write_text(
            "from airflow.sdk import DAG\n"
            "from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator\n"
            "dag = DAG('d')\n"
            "dag.add_task(GlideMQFlowOperator(task_id='t', flow='flow.yaml'))\n"
        )
        if text is not None:
            (folder / "flow.yaml").write_text(text)
        bag = DagBag(str(folder))
        (error,) = bag.import_errors.values()
        assert re.search(why, error, re.DOTALL), error
        (folder / "flow.yaml").write_text(YAML)
        bag = DagBag(str(folder))
        assert (bag.import_errors, list(bag.dags)) == ({}, ["d"])


class TestRefusedWhenItRuns:
    def test_nothing_is_sent_and_nothing_retried(
        self, valkey: Valkey, worker: Worker, context: Contexts, subtests: pytest.Subtests
    ) -> None:
        for flow in WRONG_ONCE_RENDERED:
            with subtests.test(flow=flow):
                with pytest.raises(AirflowFailException):
                    results(flow, context())
                with valkey.producer() as producer:
                    assert producer.list() == []


class TestATemplateThatFails:
    @pytest.mark.parametrize("as_spec", [False, True])
    def test_names_its_node_its_field_and_the_remedy(
        self, *, as_spec: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        nodes = [FlowNode("load", queue="q", data={"note": "x" * 5_000})]
        nodes.append(FlowNode("totals", queue="q", data={"arguments": {"day": "{{ ds }}", "n": [1]}}))
        spec = FlowSpec("nightly", nodes)
        with DAG("d", schedule=None):
            task = GlideMQFlowOperator(task_id="t", flow=spec if as_spec else spec.to_dict())
        with pytest.raises(GlideMQException) as told:
            task.render_template_fields({"run_id": "manual"})
        assert str(told.value) == (
            "node totals, data.arguments.day: UndefinedError: 'ds' is undefined, in '{{ ds }}'. "
            "This run has no logical date. Fix: trigger it with one (airflow dags trigger -l DATE), "
            "or use {{ run_id }}"
        )
        assert not as_spec or len(caplog.text.partition("Traceback")[0]) < 500

    def test_outside_the_nodes_names_its_field(self) -> None:
        flow = {**one(), "labels": {"by": "{{ params.who.name }}"}}
        with DAG("d", schedule=None):
            task = GlideMQFlowOperator(task_id="t", flow=flow)
        with pytest.raises(GlideMQException, match=r"^labels\.by: .*Fix: correct the template"):
            task.render_template_fields({"params": {}})
