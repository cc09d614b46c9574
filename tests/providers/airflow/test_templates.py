"""Templates in flows: what is rendered, what stays, and what is refused before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions, Ordering, Worker
from glidemq_orchestrate.flows.dependencies import Dependency
from glidemq_orchestrate.jobs.option_values import Fallback
from tests.providers.airflow.builders import DAY, QUEUE, YAML, Contexts, Valkey, one, rendered, results

ODD = ["7\n", "007", "[1, 2]", "1e5", "a.json", "/x/b.yaml", "{ ds }", "None", "a\r\n\n"]


class TestRendering:
    def test_of_every_text_of_a_specification(self) -> None:
        options = JobOptions(
            ordering=Ordering("k-{{ ds }}"),
            fallbacks=(Fallback("m-{{ ds }}", "p", {"x": ["{{ params.n }}"]}),),
        )
        spec = FlowSpec(
            "n-{{ ds }}",
            [
                FlowNode(
                    "a-{{ ds }}",
                    queue="q-{{ ds }}",
                    job="j-{{ ds }}",
                    data={"d": ["{{ ds }}", ("{{ params.n }}",)]},
                ),
                FlowNode(
                    "b", queue="q", job="j", after=[Dependency("a-{{ ds }}", "ignore")], options=options
                ),
            ],
            labels={"day": "{{ ds_nodash }}"},
            retention=timedelta(days=1),
        )
        found = rendered(spec)
        day = "2026-01-01"
        assert found == FlowSpec(
            f"n-{day}",
            [
                FlowNode(f"a-{day}", queue=f"q-{day}", job=f"j-{day}", data={"d": [day, ("3",)]}),
                FlowNode(
                    "b",
                    queue="q",
                    job="j",
                    after=[f"a-{day}"],
                    options=JobOptions(
                        ordering=Ordering(f"k-{day}"), fallbacks=(Fallback(f"m-{day}", "p", {"x": ["3"]}),)
                    ),
                ),
            ],
            labels={"day": "20260101"},
            retention=timedelta(days=1),
        )
        assert found.nodes[1].after[0].on_failure == "ignore"
        assert spec.name == "n-{{ ds }}", "the DAG's own is not changed"

    def test_leaves_what_is_no_template(self, tmp_path: Path, subtests: pytest.Subtests) -> None:
        for native in (False, True):
            for form in ("spec", "dict", "file"):
                with subtests.test(native=native, form=form):
                    data: Any = {"texts": ODD, "numbers": [1, 2.5, None, True]}
                    flow: Any = one(data)
                    if form == "spec":
                        flow = FlowSpec("one", [FlowNode("only", queue=QUEUE, job="echo", data=data)])
                    if form == "file":
                        (tmp_path / "f.json").write_text(json.dumps(one(data)))
                        flow = str(tmp_path / "f.json")
                    found = rendered(flow, native=native)
                    assert (found.nodes[0].data if form == "spec" else found["nodes"][0]["data"]) == data

    def test_of_a_flow_without_templates_copies_nothing(self) -> None:
        spec = FlowSpec("x", [FlowNode("a", queue="q", job="j", data={"x": [1, "y"]})])
        assert rendered(spec) is spec

    def test_gives_data_native_types_and_names_text_where_the_dag_is_native(
        self, subtests: pytest.Subtests
    ) -> None:
        for form in ("spec", "dict"):
            with subtests.test(form=form):
                data = {
                    "n": "{{ params.n }}",
                    "none": "{{ params.none }}",
                    "list": "{{ [1, ds] }}",
                    "t": "x{{ ds }}",
                }
                flow: Any = one(
                    data, options={"priority": "{{ params.n }}", "ordering": {"key": "{{ params.n }}"}}
                )
                flow |= {"name": "{{ ds_nodash }}", "labels": {"n": "{{ params.n }}"}}
                if form == "spec":
                    options = JobOptions(ordering=Ordering("{{ params.n }}"))
                    flow = FlowSpec(
                        "{{ ds_nodash }}",
                        [FlowNode("only", queue=QUEUE, job="echo", data=data, options=options)],
                        labels={"n": "{{ params.n }}"},
                    )
                found = rendered(flow, native=True)
                spec = found if form == "spec" else FlowSpec.from_dict(found)
                assert (spec.name, spec.labels) == ("20260101", {"n": "3"})
                (node,) = spec.nodes
                assert node.data == {"n": 3, "none": None, "list": [1, "2026-01-01"], "t": "x2026-01-01"}
                assert node.options.ordering == Ordering("3")
                assert form == "spec" or node.options.priority == 3

    def test_of_whole_parts_of_a_dict(self) -> None:
        flow = {"name": "x", "nodes": "{{ [{'name': 'a', 'queue': 'q', 'job': 'j', 'data': params.n}] }}"}
        assert FlowSpec.from_dict(rendered(flow, native=True)).nodes[0].data == 3

    def test_by_the_marks_of_the_dag(self) -> None:
        own = {"variable_start_string": "<<", "variable_end_string": ">>"}
        flow = one(["<< ds >>", "{{ ds }}"], queue="q-<< ds >>")
        found = rendered(flow, jinja_environment_kwargs=own)["nodes"][0]
        assert (found["data"], found["queue"]) == (["2026-01-01", "{{ ds }}"], "q-2026-01-01")

    def test_of_arguments_gives_them_types_whatever_their_names(self) -> None:
        with DAG("d", schedule=None, render_template_as_native_obj=True):
            task = GlideMQFlowOperator(
                task_id="t", flow="a:b", flow_kwargs={"name": "{{ params.n }}", "x": "07"}
            )
        task.render_template_fields(dict(DAY))  # type: ignore[arg-type]
        assert task.flow_kwargs == {"name": 3, "x": "07"}

    def test_an_id_that_ends_like_a_file_is_no_file(self) -> None:
        with DAG("d", schedule=None):
            task = GlideMQFlowOperator(task_id="t", flow=one(), flow_id="nightly-{{ ds }}.json")
        task.resolve_template_files()
        task.render_template_fields(dict(DAY))  # type: ignore[arg-type]
        assert task.flow_id == "nightly-2026-01-01.json"

    @pytest.mark.parametrize(
        ("made", "expected"),
        [
            (lambda one, two: one.map(lambda n: n * 2), [2, 4, 6]),
            (lambda one, two: one.map(str), ["1", "2", "3"]),
            (lambda one, two: one.zip(two), [[1, "x"], [2, "y"]]),
            (lambda one, two: one.zip(two, fillvalue=0), [[1, "x"], [2, "y"], [3, 0]]),
            (lambda one, two: one.concat(two), [1, 2, 3, "x", "y"]),
        ],
    )
    def test_what_is_made_of_outputs_is_made_of_each_item(
        self, made: Callable[..., Any], expected: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = {"one": [1, 2, 3], "two": ["x", "y"]}
        monkeypatch.setattr(PlainXComArg, "resolve", lambda self, _: known[self.operator.task_id])
        with DAG("d", schedule=None) as dag:
            outputs = [EmptyOperator(task_id=name).output for name in known]
            task = GlideMQOperator(task_id="t", queue_name=QUEUE, job="echo", data={"made": made(*outputs)})
        task.render_template_fields({**DAY, "dag": dag})  # type: ignore[typeddict-item]
        assert json.loads(json.dumps(task.data)) == {"made": expected}

    def test_what_another_task_gives_is_not_rendered_again(self, subtests: pytest.Subtests) -> None:
        for mapped in (False, True):
            with subtests.test(mapped=mapped):

                class Output(ResolveMixin):
                    def iter_references(self) -> Any:
                        return ()

                    def resolve(self, context: Any) -> Any:
                        return {"text": "{{ ds }}"}

                given = Output().resolve(None) if mapped else Output()
                with DAG("d", schedule=None):
                    task = GlideMQFlowOperator(task_id="t", flow=one())
                seen = {id(given)} if mapped else None
                found = task.render_template({"x": given}, dict(DAY), None, seen)  # type: ignore[arg-type]
                assert found == {"x": {"text": "{{ ds }}"}}


LOOP = """\
name: many
nodes:
{% for n in range(params.n) %}
  - {name: n{{ n }}, queue: airflow-tests, job: echo, data: {{ n }}}
{% endfor %}
"""


class TestFiles:
    def test_are_rendered(self, valkey: Valkey, worker: Worker, context: Contexts, tmp_path: Path) -> None:
        (tmp_path / "one.yaml").write_text(YAML)
        (tmp_path / "one.json").write_text(json.dumps(one("{{ ds }}.json")))
        yaml = results(str(tmp_path / "one.yaml"), context())
        assert yaml == {"only": {"day": "2026-01-01", "text": "7\n"}}
        found = results(str(tmp_path / "one.json"), context(run_id="r2"))
        assert found == {"only": "2026-01-01.json"}

    @pytest.mark.parametrize("native", [False, True])
    def test_that_are_a_flow_only_after_rendering(
        self, valkey: Valkey, worker: Worker, context: Contexts, tmp_path: Path, *, native: bool
    ) -> None:
        (tmp_path / "many.yaml").write_text(LOOP)
        found = results(str(tmp_path / "many.yaml"), context(run_id=f"r{native}"), native=native)
        assert found == {"n0": 0, "n1": 1, "n2": 2}

    def test_whose_name_is_a_template(
        self, valkey: Valkey, worker: Worker, context: Contexts, tmp_path: Path
    ) -> None:
        (tmp_path / "2026-01-01.yaml").write_text(YAML)
        found = results(f"{tmp_path}/{{{{ ds }}}}.yaml", context())
        assert found == {"only": {"day": "2026-01-01", "text": "7\n"}}

    def test_are_found_in_the_search_path_of_the_dag(self, tmp_path: Path) -> None:
        (tmp_path / "one.yaml").write_text(YAML)
        found = rendered("one.yaml", template_searchpath=str(tmp_path))
        assert found["nodes"][0]["data"]["day"] == "2026-01-01"
