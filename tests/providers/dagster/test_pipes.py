"""PipesGlideMQClient: what jobs report becomes events, if and only if their result was accepted."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import PipesGlideMQClient

from glidemq_orchestrate import (
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    Handlers,
    JobOptions,
    Queue,
)
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.pipes import is_pipes_job, open_pipes
from tests.node import Node
from tests.providers.dagster import pipes_work
from tests.providers.dagster.test_resource import failure_of, messages

RunWorker = Callable[..., Any]
Body = Callable[[Any, PipesGlideMQClient], Any]


@pytest.fixture
def pipes(url: str) -> PipesGlideMQClient:
    return PipesGlideMQClient(url=url, poll_interval_seconds=0.1)


def step_of(body: Body, *keys: str, **options: Any) -> dg.AssetsDefinition:
    """A step with these assets."""
    specs = options.pop("specs", None) or [dg.AssetSpec(key, skippable=len(keys) > 1) for key in keys]

    @dg.multi_asset(specs=specs, name="step", can_subset=len(specs) > 1, **options)
    def step(context: dg.AssetExecutionContext, pipes: PipesGlideMQClient) -> Iterator[Any]:
        yield from body(context, pipes)

    return step


def run(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, body: Body, *keys: str, **options: Any
) -> dg.ExecuteInProcessResult:
    step = step_of(body, *keys or ("cleaned",), **options)
    return dg.materialize([step], resources={"pipes": pipes}, instance=instance, raise_on_error=False)


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each materialization, plain, by asset."""
    events = result.get_asset_materialization_events()
    found = {
        event.asset_key.to_user_string(): {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in events
        if event.asset_key is not None
    }
    assert len(found) == len(events)
    return found


def clean(context: Any, pipes: PipesGlideMQClient, **more: Any) -> Any:
    return pipes.run(context=context, job="clean", queue="etl", **more).get_results()


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


def test_the_plain_values_of_a_json_result_are_metadata(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    rows = {
        "rows": 3,
        "dagster/row_count": 3,
        "share": 0.5,
        "path": "/data",
        "fine": True,
        "more": [1],
        "no": None,
    }
    run_worker(["etl"], {"clean": lambda ctx: rows})
    result = run(pipes, instance, clean)
    found = materialized(result)["cleaned"]
    assert {name: found.get(name) for name in rows} == rows | {"more": None}
    assert not [line for line in messages(instance, result.run_id) if "did not receive" in line]


def test_a_node_worker_that_knows_no_pipes(url: str, instance: dg.DagsterInstance, redis_client: Any) -> None:
    pipes = PipesGlideMQClient(url=url, require_workers=False, poll_interval_seconds=0.1)
    node, stop = Node(redis_client, "etl"), threading.Event()

    def serve() -> None:
        while not stop.wait(0.05):
            if (taken := node.take()) is not None:
                node.complete(taken, '{"rows": 11}')
                return

    worker = threading.Thread(target=serve)
    worker.start()
    try:
        result = run(pipes, instance, clean)
    finally:
        stop.set()
        worker.join(20)
    assert materialized(result)["cleaned"]["rows"] == 11


def test_a_result_may_hold_messages_of_pipes(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    reports = [
        {"method": "log", "params": {"message": "from far away"}},
        {"method": "report_asset_materialization", "params": {"metadata": {"rows": 3, "all": [1, 2]}}},
        {
            "method": "report_asset_check",
            "params": {"check_name": "some", "passed": False, "severity": "WARN"},
        },
    ]
    run_worker(["etl"], {"clean": lambda ctx: {"dagster_pipes": reports}})
    checks = [dg.AssetCheckSpec("some", asset="cleaned")]
    result = run(pipes, instance, clean, check_specs=checks)
    assert result.success
    assert (materialized(result)["cleaned"]["rows"], materialized(result)["cleaned"]["all"]) == (3, [1, 2])
    (check,) = result.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "from far away" in messages(instance, result.run_id)


@pytest.mark.parametrize(
    ("reports", "complaint"),
    [
        ("x", "must be a list"),
        ([7], r"dagster_pipes\[0\] must be"),
        ([{"method": "materialize", "params": {}}], "with a method of log"),
        ([{"method": "log", "params": {}}], "log needs message"),
        ([{"method": "log", "params": {"message": "x", "colour": 1}}], "log takes no colour"),
        ([{"method": "report_asset_materialization", "params": {"asset_key": 7}}], "must be a text"),
        ([{"method": "report_asset_check", "params": {"check_name": 7, "passed": True}}], "is not valid"),
    ],
)
def test_a_result_with_other_messages_fails_the_step(
    pipes: PipesGlideMQClient,
    instance: dg.DagsterInstance,
    run_worker: RunWorker,
    reports: Any,
    complaint: str,
) -> None:
    run_worker(["etl"], {"clean": lambda ctx: {"dagster_pipes": reports}})
    failure = failure_of(run(pipes, instance, clean))
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(failure.description)


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
    from glidemq_orchestrate import Skip  # noqa: PLC0415

    def work(ctx: Context) -> None:
        raise Skip("nothing new")

    run_worker(["etl"], {"clean": work})
    result = run(pipes, instance, clean, specs=[dg.AssetSpec("cleaned", skippable=True)])
    assert result.success
    assert materialized(result) == {}


def test_a_job_that_no_worker_starts_fails_with_that_reason(url: str, instance: dg.DagsterInstance) -> None:
    pipes = PipesGlideMQClient(
        url=url, require_workers=False, poll_interval_seconds=0.1, start_timeout_seconds=0.3
    )
    failure = failure_of(run(pipes, instance, clean))
    assert "no worker" in failure.description


def test_what_cannot_be_run_is_refused(pipes: PipesGlideMQClient) -> None:
    context: Any = None
    spec = FlowSpec("f", [FlowNode("a", "etl", "clean")])
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
    assert found["glidemq/dashboard"] == f"https://glidemq.example/flow/{found['glidemq/flow_id']}"
    launched = [
        entry.message
        for entry in instance.all_logs(result.run_id)
        if found["glidemq/flow_id"] in entry.message
    ]
    assert "aunched" in launched[0]


def test_handlers_know_whether_pipes_submitted_their_job(url: str, run_worker: RunWorker) -> None:
    run_worker(["etl"], {"clean": is_pipes_job})
    with Queue("etl", url) as queue:
        assert queue.add_and_wait("clean", {"rows": 1}) is False


def test_termination_cancels_and_waits(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker, url: str
) -> None:
    stopped = threading.Event()

    async def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.log.info("running")
        try:
            await _forever()
        finally:
            stopped.set()

    run_worker(["etl"], {"clean": work})
    result, flow_id = terminated(pipes, instance)
    assert not result
    with FlowProducer(url) as flows:
        status = flows.get(flow_id).status()
    assert status.state is FlowState.CANCELLED
    assert "DagsterExecutionInterruptedError" in status.reason
    assert stopped.wait(20)


def test_without_forwarding_the_job_runs_on(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    go_on = threading.Event()

    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            opened.log.info("running")
        go_on.wait(30)

    run_worker(["etl"], {"clean": work})
    pipes = PipesGlideMQClient(url=url, poll_interval_seconds=0.1, forward_termination=False)
    _, flow_id = terminated(pipes, instance)
    with FlowProducer(url) as flows:
        assert flows.get(flow_id).status().state is FlowState.RUNNING
        go_on.set()
        assert flows.get(flow_id).wait(timeout=timedelta(seconds=20)).status.state is FlowState.COMPLETED


async def _forever() -> None:
    import asyncio  # noqa: PLC0415

    await asyncio.sleep(600)


def terminated(pipes: PipesGlideMQClient, instance: dg.DagsterInstance) -> tuple[bool, str]:
    """Interrupt a step as Dagster does it when its job logs `running`; its flow id."""
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415

    from dagster_glidemq import flow_id_for  # noqa: PLC0415

    found: list[str] = []
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.05):
            runs = instance.get_run_ids(limit=1)
            if runs and "running" in messages(instance, runs[0]):
                os.kill(os.getpid(), signal.SIGINT)
                return

    def body(context: Any, pipes: PipesGlideMQClient) -> Any:
        found.append(flow_id_for(context, "clean"))
        return clean(context, pipes)

    killer = threading.Thread(target=interrupt)
    killer.start()
    try:
        success = run(pipes, instance, body).success
    except dg.DagsterExecutionInterruptedError:
        success = False
    finally:
        over.set()
        killer.join(20)
    return success, found[0]
