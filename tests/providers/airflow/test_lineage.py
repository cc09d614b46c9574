"""The lineage of Spark steps, as Airflow's provider for OpenLineage reads it from a task."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors import ExtractorManager
from airflow.sdk import Asset
from airflow.utils.state import TaskInstanceState
from airflow_provider_glidemq.exceptions import GlideMQFlowFailed
from airflow_provider_glidemq.operators.glidemq import (
    GlideMQFlowOperator,
    GlideMQOperator,
    GlideMQSparkOperator,
)

from glidemq_orchestrate import Context, Unrecoverable, Worker
from tests.providers.airflow.builders import QUEUE, Contexts, Valkey


def step(name: str, after: list[str] | None = None, job: str = "spark.python", **data: Any) -> dict[str, Any]:
    return {
        "name": name,
        "queue": QUEUE,
        "job": job,
        "after": after or [],
        "data": {"callable": "a:b", **data},
    }


def lineage(inputs: Any = None, outputs: Any = None) -> dict[str, Any]:
    return {"inputs": inputs or [], "outputs": outputs or []}


FLOW = {
    "name": "f",
    "nodes": [
        step("load", lineage=lineage(["s3://lake/raw"], ["/data/clean"])),
        step("fold", ["load"], lineage=lineage(["/data/clean"])),
        step("note", ["fold"], job="note", lineage=lineage(["/data/no-spark-step"])),
    ],
}


@pytest.fixture
def spark(valkey: Valkey) -> Iterator[None]:
    """Stands in for a Spark worker: the steps of ``arguments`` fail, or return what is there."""
    made = Worker(valkey.url, queues=[QUEUE], prefix=valkey.prefix)

    @made.handler("spark.python")
    def run(ctx: Context) -> Any:
        given = ctx.data["arguments"] if isinstance(ctx.data, dict) and "arguments" in ctx.data else {}
        if given == "fail":
            raise Unrecoverable("no such month")
        outputs = [f"/data/out/{ctx.node}"] if ctx.node == "fold" else []
        if ctx.node == "fold":  # as a session host does, by the plans of Spark
            ctx.progress({"stages": 1, "lineage": {"inputs": ["/data/planes"]}})
        return given or {"rows": 3, "lineage": {"outputs": outputs}}

    made.handler("note")(lambda ctx: None)
    with made.running():
        yield


def extracted(task: Any, context: Any, state: TaskInstanceState) -> tuple[list[str], list[str]]:
    """What the provider for OpenLineage finds, in the way that it does in a task."""
    manager = ExtractorManager()  # type: ignore[no-untyped-call]
    found = manager.extract_metadata(SimpleNamespace(run_id="r1"), task, state, context["ti"])
    return [f"{one.namespace} {one.name}" for one in found.inputs], [
        f"{one.namespace} {one.name}" for one in found.outputs
    ]


def operator(flow: Any = FLOW, **kwargs: Any) -> GlideMQFlowOperator:
    return GlideMQFlowOperator(task_id="t", flow=flow, deferrable=False, **kwargs)


def test_what_steps_declare_is_known_at_the_start(context: Contexts) -> None:
    assert extracted(operator(), context(), TaskInstanceState.RUNNING) == (
        ["s3://lake raw"],
        ["file /data/clean"],
    )


def test_what_they_report_too_is_known_at_the_end(valkey: Valkey, spark: None, context: Contexts) -> None:
    operator().execute(context())
    resumed = operator()  # a new process, which has submitted nothing
    assert extracted(resumed, context(), TaskInstanceState.SUCCESS) == (
        ["s3://lake raw", "file /data/planes"],
        ["file /data/clean", "file /data/out/fold"],
    )


def test_a_flow_that_failed_tells_what_was_written_before(
    valkey: Valkey, spark: None, context: Contexts
) -> None:
    nodes = [*FLOW["nodes"], step("bad", ["fold"], arguments="fail", lineage=lineage(outputs=["/data/bad"]))]
    made = operator({**FLOW, "nodes": nodes})
    with pytest.raises(GlideMQFlowFailed):
        made.execute(context())
    _, outputs = extracted(made, context(), TaskInstanceState.FAILED)
    assert outputs == ["file /data/clean", "file /data/out/fold"]


def test_a_single_step_tells_its_own(valkey: Valkey, spark: None, context: Contexts) -> None:
    made = GlideMQSparkOperator(
        task_id="t",
        application="mypackage.steps:clean",
        queue_name=QUEUE,
        deferrable=False,
        lineage=lineage(["/data/raw"], ["s3a://lake/clean"]),
    )
    expected = (["file /data/raw"], ["s3://lake clean"])
    assert extracted(made, context(), TaskInstanceState.RUNNING) == expected
    made.execute(context())
    assert extracted(made, context(), TaskInstanceState.SUCCESS) == expected


def test_a_lineage_that_cannot_be_read_is_none(valkey: Valkey, spark: None, context: Contexts) -> None:
    odd = step("odd", arguments={"lineage": {"outputs": ["relative"]}}, lineage=lineage(["/data/raw"]))
    made = operator({"name": "f", "nodes": [odd]})
    made.execute(context())
    assert extracted(made, context(), TaskInstanceState.SUCCESS) == (["file /data/raw"], [])


def test_other_jobs_and_flows_of_functions_tell_nothing(
    valkey: Valkey, spark: None, context: Contexts
) -> None:
    note = GlideMQOperator(task_id="t", queue_name=QUEUE, job="note", data={"lineage": lineage(["/x"])})
    by_function = operator("mypackage.flows:build")
    for made in (note, by_function):
        assert extracted(made, context(), TaskInstanceState.RUNNING) == ([], [])
    note.execute(context())
    assert extracted(note, context(), TaskInstanceState.SUCCESS) == ([], [])


def test_inlets_and_outlets_are_used_where_no_step_tells_anything(context: Contexts) -> None:
    made = operator("mypackage.flows:build", inlets=[Asset("x", uri="glidemq://main/orders")])
    assert extracted(made, context(), TaskInstanceState.RUNNING) == (["glidemq://main orders"], [])
