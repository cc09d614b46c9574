"""GlideMQResource in ops: identity, failures, settings."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource
from dagster_glidemq.flow_run import MAX_ROWS, failure_from

from glidemq_orchestrate import Context, EmbeddedServer, FlowNode, FlowProducer, FlowSpec, FlowState
from glidemq_orchestrate.errors import (
    ConnectionFailed,
    FailedNode,
    FlowFailed,
    FlowNotFound,
    GlideMQError,
    NotConfirmed,
    QueueNotServed,
)
from glidemq_orchestrate.wire.codec import Json
from tests.providers.dagster.builders import ONE, failure_of, messages, run_op

RunWorker = Callable[..., Any]

FAILURES: list[tuple[GlideMQError, bool]] = [
    (ConnectionFailed("away"), True),
    (NotConfirmed("late"), True),
    (QueueNotServed(["etl"]), True),
    (FlowFailed("f", []), False),
]


def test_an_op_gets_the_outcome_and_logs_each_node_once(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    run_worker(["etl"], {"step": lambda ctx: ctx.data})
    result = run_op(glidemq, instance, lambda context, res: res.run_flow(context, ONE).results["only"])
    assert result.output_for_node("step") == 7
    lines = [line for line in messages(instance, result.run_id) if "node only completed" in line]
    assert len(lines) == 1
    assert lines[0].endswith("(1 of 1 completed)")


def test_every_field_is_described() -> None:
    fields = GlideMQResource.model_fields
    assert set(fields) >= {"url", "prefix", "patience", "require_workers"}
    assert all(field.description for field in fields.values())


def test_the_url_may_come_from_the_environment_and_stays_out_of_repr(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_GLIDEMQ_URL", url)
    glidemq = GlideMQResource(url=dg.EnvVar("TEST_GLIDEMQ_URL"))
    assert url not in repr(glidemq)
    run_worker(["etl"], {"step": lambda ctx: ctx.data})
    assert run_op(glidemq, instance, lambda context, res: res.run_flow(context, ONE).status.completed).success


def test_a_url_that_was_written_down_stays_out_of_repr_too() -> None:
    resource = GlideMQResource(url="valkey://user:hunter2@h")
    assert "hunter2" not in f"{resource!r} {resource}"


def test_without_a_worker_nothing_is_submitted(
    glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    result = run_op(glidemq, instance, lambda context, res: res.run_flow(context, ONE, flow_id="mine"))
    failure = failure_of(result)
    assert "no worker serves queue etl" in failure.description
    assert failure.metadata["glidemq/error"].value == "QueueNotServed"
    with glidemq.get_client() as producer, pytest.raises(FlowNotFound):
        producer.get("mine")


def test_a_flow_that_takes_too_long_is_cancelled(url: str, instance: dg.DagsterInstance) -> None:
    glidemq = GlideMQResource(url=url, require_workers=False)
    limit = timedelta(milliseconds=300)
    result = run_op(
        glidemq, instance, lambda context, res: res.run_flow(context, ONE, flow_id="mine", timeout=limit)
    )
    assert "0 of 1 nodes completed" in failure_of(result).description
    with FlowProducer(url) as producer:
        assert producer.get("mine").status().state is FlowState.CANCELLED


def test_an_error_of_the_op_while_it_streams_cancels_the_flow(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    spec = FlowSpec(
        "two", nodes=[*ONE.nodes, FlowNode("unserved", queue="nobody", job="step", after=["only"])]
    )
    run_worker(["etl"], {"step": lambda ctx: ctx.data})

    def body(context: dg.OpExecutionContext, res: GlideMQResource) -> None:
        stream = res.stream_flow(context, spec, flow_id="mine")
        for change in stream:
            assert [node.name for node in change.ended] == ["only"]
            stream.throw(LookupError("not what was expected"))  # type: ignore[attr-defined]

    result = run_op(GlideMQResource(url=url, require_workers=False), instance, body)
    (event,) = result.get_step_failure_events()
    assert "not what was expected" in str(event.step_failure_data.error)
    with FlowProducer(url) as producer:
        assert producer.get("mine").status().state is FlowState.CANCELLED


def test_a_new_run_begins_an_ended_flow_under_a_chosen_id_anew(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    ran: list[Json] = []

    def step(ctx: Context) -> Json:
        ran.append(ctx.data)
        if ctx.data == 8:
            raise ValueError("broken")
        data: Json = ctx.data
        return data

    def run(data: int) -> dg.ExecuteInProcessResult:
        spec = FlowSpec("one", nodes=[FlowNode("only", queue="etl", job="step", data=data)])
        return run_op(
            glidemq,
            instance,
            lambda context, res: dict(res.run_flow(context, spec, flow_id="mine").results),
        )

    run_worker(["etl"], {"step": step})
    assert run(7).output_for_node("step") == run(7).output_for_node("step") == {"only": 7}
    assert not run(8).success
    assert run(9).output_for_node("step") == {"only": 9}, "one that has failed does not fail for ever"
    assert ran == [7, 7, 8, 9]


def test_a_refused_flow_leaves_the_one_with_its_id_alone(url: str, instance: dg.DagsterInstance) -> None:
    other = FlowSpec("other", nodes=[FlowNode("only", queue="etl", job="step")])
    glidemq = GlideMQResource(url=url, require_workers=False)
    with FlowProducer(url) as producer:
        running = producer.submit(other, flow_id="mine")
        limit = timedelta(seconds=5)
        result = run_op(
            glidemq, instance, lambda context, res: res.run_flow(context, ONE, flow_id="mine", timeout=limit)
        )
        assert failure_of(result).metadata["glidemq/error"].value == "FlowConflict"
        assert running.status().state is FlowState.RUNNING


def test_the_watch_survives_a_restart_of_the_server(
    tmp_path: Path, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    server = EmbeddedServer(data_dir=tmp_path / "data").start()
    port = int(server.url.rsplit(":", 1)[1])
    glidemq = GlideMQResource(url=server.url, require_workers=False)
    restarted: list[EmbeddedServer] = []

    def body(context: dg.OpExecutionContext, res: GlideMQResource) -> Any:
        spec = FlowSpec(
            "two", nodes=[*ONE.nodes, FlowNode("late", queue="etl", job="step", data=1, after=["only"])]
        )
        for change in res.stream_flow(context, spec, flow_id="mine"):
            done = change.status.completed
            if not restarted:
                server.stop()
                restarted.append(EmbeddedServer(data_dir=tmp_path / "data", port=port).start())
        return done

    def slow(ctx: Context) -> Json:
        time.sleep(0.3)
        data: Json = ctx.data
        return data

    run_worker(["etl"], {"step": slow}, url=server.url)
    try:
        assert run_op(glidemq, instance, body).output_for_node("step") == 2
    finally:
        for again in restarted:
            again.stop()


def test_an_absent_server_is_a_failure_of_the_step(instance: dg.DagsterInstance) -> None:
    glidemq = GlideMQResource(url="valkey://127.0.0.1:1")
    failure = failure_of(run_op(glidemq, instance, lambda context, res: res.run_flow(context, ONE)))
    assert failure.metadata["glidemq/error"].value == "ConnectionFailed"


def test_a_failure_may_be_retried_as_the_error_says_unless_set_otherwise(subtests: pytest.Subtests) -> None:
    for error, retries in FAILURES:
        with subtests.test(error=error):
            assert failure_from(error, "f").allow_retries is retries
            assert failure_from(error, "f", allow_retries=True).allow_retries is True


def test_a_failure_shows_the_first_failed_nodes_only() -> None:
    failed = [FailedNode(f"node-{n}", f"job-{n}", "broken", 1) for n in range(MAX_ROWS + 1)]
    metadata: Any = failure_from(FlowFailed("f", failed), "f").metadata
    assert len(metadata["glidemq/failed_nodes"].records) == MAX_ROWS
    assert metadata["glidemq/failed_count"].value == MAX_ROWS + 1


def test_errors_outside_a_flow_are_the_core_s_own(url: str) -> None:
    with (
        GlideMQResource(url=url).get_client() as producer,
        pytest.raises(GlideMQError, match="no flow nothing"),
    ):
        producer.get("nothing")
