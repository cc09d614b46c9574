"""kill -9 of a worker, and of Dagster's process, in the middle of a job."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import PipesGlideMQClient

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.pipes import open_pipes
from glidemq_orchestrate.runs import OrchestratedRun
from tests.conftest import Eventually
from tests.processes import end, spawned
from tests.providers.dagster import pipes_job, pipes_work

RunWorker = Callable[..., Any]
SOON = timedelta(seconds=1)


@pytest.fixture
def stored(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("GLIDEMQ_URL", url)
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    with dg.instance_for_test() as made:
        yield made


def execute(instance: dg.DagsterInstance, options: dg.ReexecutionOptions | None = None) -> list[Any]:
    """Run the job; the metadata of what it materialized."""
    job = dg.reconstructable(pipes_job.clean_job)
    with dg.execute_job(job, instance, reexecution_options=options, raise_on_error=True) as result:
        events = [event for event in result.all_events if event.is_step_materialization]
    return [event.step_materialization_data.materialization.metadata["by"].value for event in events]


def written(url: str) -> list[str]:
    with FlowProducer(url) as flows, Queue("etl", url) as queue:
        jobs = [node.job_id for status in flows.list() for node in flows.get(status.id).nodes()]
        return [one.text for job_id in jobs for one in queue.messages(job_id)]


def test_only_the_second_attempt_counts_after_a_kill_of_the_first(
    url: str, stored: dg.DagsterInstance, run_worker: RunWorker, eventually: Eventually
) -> None:
    code = f"from tests.providers.dagster.pipes_work import serve; serve({url!r})"
    seen: list[Any] = []

    def kill() -> None:
        eventually(lambda: any("reported by killed" in text for text in written(url)), timeout=60)
        end(worker)
        run_worker(["etl"], pipes_work.handlers, lease=SOON)

    environment = {**os.environ, "PIPES_WHO": "killed", "PYTHONPATH": os.pathsep.join(sys.path)}
    with spawned([sys.executable, "-c", code], env=environment) as worker:
        killer = threading.Thread(target=kill)
        killer.start()
        seen = execute(stored)
        killer.join(60)
    assert seen == ["second"]
    assert any('"killed"' in text and "materialization" in text for text in written(url))


@pytest.mark.long
def test_a_step_that_died_and_is_tried_again_shows_each_line_once(
    url: str, stored: dg.DagsterInstance, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(ctx: Context) -> None:
        data: Any = ctx.data
        with open_pipes(ctx) as pipes:
            pipes.log.info("as always")
            pipes.log.info("as always")
            pipes.log.info("line of %s", data["name"])

    @dg.op(out=dg.Out(dg.Nothing))
    def etl(context: dg.OpExecutionContext) -> None:
        client = PipesGlideMQClient(url=url, require_workers=False, poll_interval=0.1)
        nodes = [
            FlowNode("a", queue="etl", job="step", data={"name": "a"}),
            FlowNode("b", queue="etl", job="step", data={"name": "b"}, after=["a"]),
        ]
        for _ in client.stream(context=context, flow=FlowSpec("etl", nodes)):
            if context.retry_number == 0:
                break
        if context.retry_number == 0:
            raise dg.RetryRequested(max_retries=1)

    @dg.job
    def nightly() -> None:
        etl()

    monkeypatch.setattr(OrchestratedRun, "end", lambda *_: None)  # what a killed process does not do
    run_worker(["etl"], {"step": step})
    result = nightly.execute_in_process(instance=stored)
    lines = [one.user_message for one in stored.all_logs(result.run_id) if not one.is_dagster_event]
    shown = Counter(line for line in lines if "line of" in line or "as always" in line)
    assert shown == {"a: as always": 2, "a: line of a": 1, "b: as always": 2, "b: line of b": 1}


@pytest.mark.long
@pytest.mark.system
def test_a_re_execution_gets_what_was_reported_while_nobody_waited(
    url: str, stored: dg.DagsterInstance, run_worker: RunWorker, eventually: Eventually
) -> None:
    ran, go_on = [], threading.Event()

    def work(ctx: Context) -> None:
        ran.append(ctx.job_id)
        with open_pipes(ctx) as pipes:
            pipes.log.info("before the kill")
            pipes.report_asset_materialization(metadata={"by": "the only one"})
            assert go_on.wait(60)
            pipes.log.info("after the kill")

    run_worker(["etl"], {"clean": work})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.providers.dagster.pipes_job"]
    with spawned(command, env=environment) as dagster:
        eventually(lambda: any("the only one" in text for text in written(url)), timeout=90)
        end(dagster)
    go_on.set()
    with FlowProducer(url) as flows:
        (status,) = flows.list()
        assert flows.get(status.id).wait(timeout=timedelta(seconds=20)).status.state == "completed"
    (killed,) = stored.get_runs()
    assert killed.status is dg.DagsterRunStatus.STARTED
    stored.report_run_failed(killed)
    assert execute(stored, dg.ReexecutionOptions.from_failure(killed.run_id, stored)) == ["the only one"]
    assert len(ran) == 1
    newest = stored.get_runs(limit=1)[0].run_id
    lines = [entry.user_message for entry in stored.all_logs(newest) if not entry.is_dagster_event]
    assert [lines.count(f"{when} the kill") for when in ("before", "after")] == [1, 1]
