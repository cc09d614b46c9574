"""PipesGlideMQClient: what jobs report becomes events, if and only if their result was accepted."""

import importlib.util
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import PipesGlideMQClient
from sqlalchemy.exc import OperationalError

from glidemq_orchestrate import (
    Context,
    FlowNode,
    FlowSpec,
    Handlers,
    JobOptions,
    Queue,
    RetryLater,
    Skip,
)
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.pipes import is_pipes_job, open_pipes
from tests.providers.dagster import pipes_work
from tests.providers.dagster.builders import failure_of, messages
from tests.providers.dagster.pipes_steps import clean, materialized, run, step_of

RunWorker = Callable[..., Any]


@pytest.fixture
def pipes(url: str) -> PipesGlideMQClient:
    return PipesGlideMQClient(url=url, poll_interval=0.1)


@pytest.mark.parametrize("kind", ["plain", "async", "process"])
def test_what_a_handler_reports_becomes_events(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker, kind: str
) -> None:
    handlers = Handlers()
    function: Any = pipes_work.clean_async if kind == "async" else pipes_work.clean
    handlers.handler("clean", process=kind == "process")(function)
    run_worker(["etl"], handlers)
    result = run(
        pipes, instance, lambda context, pipes: clean(context, pipes, data={"rows": 7}, extras={"who": "me"})
    )
    assert result.success
    found = materialized(result)["cleaned"]
    assert (found["rows"], found["glidemq/queue"], found["glidemq/attempts"]) == (7, "etl", 1)
    assert {"glidemq/flow_id", "glidemq/job_id", "glidemq/run_seconds"} <= set(found)
    assert "unused" not in found
    lines = messages(instance, result.run_id)
    assert lines.count("cleaning for me") == 1
    assert not [line for line in lines if "unexpected message" in line or "did not receive" in line]


def test_log_lines_appear_while_the_job_runs(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    seen = threading.Event()

    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.log.info("half way")
            opened.log_external_stream("stdout", "printed far away\n")
            assert seen.wait(30), "nobody has seen it"

    def look() -> None:
        while not seen.is_set():
            with suppress(OperationalError):  # Dagster writes to its database in memory at this moment
                runs = instance.get_run_ids(limit=1)
                if runs and "half way" in messages(instance, runs[0]):
                    seen.set()
            seen.wait(0.05)

    run_worker(["etl"], {"clean": work})
    watcher = threading.Thread(target=look)
    watcher.start()
    result = run(pipes, instance, clean)
    seen.set()
    watcher.join(30)
    assert result.success
    assert messages(instance, result.run_id).count("half way") == 1


def test_a_failed_attempt_is_logged_and_never_reported(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.log.info("attempt %d", ctx.attempt)
            opened.report_asset_materialization(metadata={"attempt": ctx.attempt})
            if ctx.attempt == 1:
                raise LookupError("not there yet")

    run_worker(["etl"], {"clean": work})
    result = run(
        pipes, instance, lambda context, pipes: clean(context, pipes, options=JobOptions(attempts=2))
    )
    assert result.success
    assert materialized(result)["cleaned"]["attempt"] == 2
    lines = messages(instance, result.run_id)
    assert [lines.count(f"attempt {number}") for number in (1, 2)] == [1, 1]
    assert [line for line in lines if line.startswith("an attempt failed: LookupError: not there yet")]


def test_a_job_that_fails_fails_the_step_with_the_reason_and_the_trace(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.report_asset_materialization(metadata={"rows": 1})
            raise LookupError("no such table")

    run_worker(["etl"], {"clean": work})
    result = run(pipes, instance, clean)
    assert "LookupError: no such table" in failure_of(result).description
    assert materialized(result) == {}
    events = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    closed = [event for event in events if "pipes closed with exception" in event.message]
    assert "no such table" in str(closed[0].dagster_event.engine_event_data.error)  # type: ignore[union-attr]


def test_an_op_gets_custom_messages(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.report_custom_message({"rows": opened.run_id != ""})

    @dg.op
    def step(context: dg.OpExecutionContext, pipes: PipesGlideMQClient) -> Any:
        return list(pipes.run(context=context, job="clean", queue="etl").get_custom_messages())

    @dg.job(resource_defs={"pipes": pipes})
    def job() -> None:
        step()

    run_worker(["etl"], {"clean": work})
    result = job.execute_in_process(instance=instance)
    assert result.output_for_node("step") == [{"rows": True}]


def test_a_skipped_job_materializes_nothing(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    def work(ctx: Context) -> None:
        raise Skip("nothing new")

    run_worker(["etl"], {"clean": work})
    result = run(pipes, instance, clean, specs=[dg.AssetSpec("cleaned", skippable=True)])
    assert result.success
    assert materialized(result) == {}


def test_a_job_that_no_worker_starts_fails_with_that_reason(url: str, instance: dg.DagsterInstance) -> None:
    pipes = PipesGlideMQClient(url=url, require_workers=False, poll_interval=0.1, start_timeout=0.3)
    failure = failure_of(run(pipes, instance, clean))
    assert "no worker" in failure.description


def test_what_cannot_be_run_is_refused(pipes: PipesGlideMQClient) -> None:
    context: Any = None
    spec = FlowSpec("f", [FlowNode("a", queue="etl", job="clean")])
    odd: Any
    for odd, complaint in (
        ({}, "give a job and its queue, or a flow"),
        ({"job": "clean"}, "give a job and its queue"),
        ({"flow": spec, "job": "clean"}, "a flow takes no job"),
        ({"job": "clean", "queue": "etl", "data": [1]}, "must be an object, got list"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            pipes.run(context=context, **odd)


def test_data_with_the_reserved_key_is_refused(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    run_worker(["etl"], {"clean": pipes_work.clean})
    result = run(pipes, instance, lambda c, p: clean(c, p, data={"dagster_pipes": 1}))
    assert "its data has a key dagster_pipes" in failure_of(result).description


def test_a_secret_travels_neither_in_the_job_nor_in_errors(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPES_URL", url)
    pipes = PipesGlideMQClient(url=dg.EnvVar("PIPES_URL"))
    assert url not in repr(pipes)
    run_worker(["etl"], {"clean": pipes_work.clean})
    result = run(pipes, instance, clean)
    assert result.success
    job_id = materialized(result)["cleaned"]["glidemq/job_id"]
    with Queue("etl", url) as queue:
        assert url not in str(queue.get_job(job_id).data)


def test_a_report_that_has_expired_is_missed(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker, redis_client: Any
) -> None:
    def body(context: Any, pipes: PipesGlideMQClient) -> Any:
        for _ in range(2):  # the second attaches to what has completed
            results = clean(context, pipes)
            redis_client.delete(*redis_client.keys("*gmo:messages*"))
        return results

    run_worker(["etl"], {"clean": pipes_work.clean})
    description = failure_of(run(pipes, instance, body)).description
    assert "of 4 messages of its job" in description
    assert "0 are left" in description


def test_the_launch_is_in_the_event_log(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    pipes = PipesGlideMQClient(url=url, dashboard_url="https://glidemq.example/flow/{flow_id}")
    run_worker(["etl"], {"clean": pipes_work.clean})
    result = run(pipes, instance, clean)
    found = materialized(result)["cleaned"]
    assert found["glidemq/flow"] == f"https://glidemq.example/flow/{found['glidemq/flow_id']}"
    launched = [
        entry.message
        for entry in instance.all_logs(result.run_id)
        if found["glidemq/flow_id"] in entry.message
    ]
    assert launched
    if importlib.util.find_spec("dagster._core.pipes.reattach"):  # from 1.13 on
        assert "[pipes] Launched external run" in launched[0]


def test_handlers_know_whether_pipes_submitted_their_job(url: str, run_worker: RunWorker) -> None:
    run_worker(["etl"], {"clean": is_pipes_job})
    with Queue("etl", url) as queue:
        assert queue.add_and_wait("clean", {"rows": 1}) is False


def test_a_step_may_run_a_handler_several_times_by_different_names(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    def body(context: Any, pipes: PipesGlideMQClient) -> Any:
        for month in (1, 2):
            clean(context, pipes, name=f"clean-{month}", data={"month": month})
        return clean(context, pipes, name="clean-1", data={"month": 3})

    seen: list[int] = []
    run_worker(["etl"], {"clean": lambda ctx: seen.append(ctx.data["month"])})
    result = run(pipes, instance, body)
    assert seen == [1, 2]
    assert "this step has run another clean-1 before" in str(result.get_step_failure_events())


def test_a_handler_that_asks_for_a_retry_has_not_failed(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    asked: list[bool] = []

    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.log.info("here")
            if not asked:
                asked.append(True)
                raise RetryLater(timedelta(milliseconds=20), "not yet", counts=False)

    run_worker(["etl"], {"clean": work})
    result = run(pipes, instance, clean)
    assert result.success
    lines = messages(instance, result.run_id)
    assert [line for line in lines if line.startswith("an attempt")] == [
        "an attempt ended: glidemq_orchestrate.worker.handlers.signals.RetryLater: not yet"
    ]


def test_checks_that_are_not_selected_are_left_out(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.report_asset_materialization(asset_key="a")
            opened.report_asset_check("some", passed=True, asset_key="a")
            if "typo" in str(ctx.data):
                opened.report_asset_check("sone", passed=True, asset_key="a")

    run_worker(["etl"], {"clean": work})
    specs = [dg.AssetSpec("a", skippable=True), dg.AssetSpec("b", skippable=True)]
    checks = [dg.AssetCheckSpec("some", asset="a")]
    step = step_of(clean, specs=specs, check_specs=checks)
    some = dg.AssetSelection.assets("a") - dg.AssetSelection.checks_for_assets(step)
    result = dg.materialize([step], resources={"pipes": pipes}, instance=instance, selection=some)
    assert set(materialized(result)) == {"a"}
    assert result.get_asset_check_evaluations() == []
    result = run(
        pipes, instance, lambda c, p: clean(c, p, data={"typo": True}), specs=specs, check_specs=checks
    )
    assert "reports check sone of asset a, which the step does not have" in failure_of(result).description
