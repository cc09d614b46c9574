"""Flows by Pipes: results as nodes complete, and what a re-execution runs and reports."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import PipesGlideMQClient

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.pipes import open_pipes
from tests.providers.dagster import pipes_job
from tests.providers.dagster.builders import failure_of, messages
from tests.providers.dagster.pipes_steps import materialized, run

RunWorker = Callable[..., Any]


def asset_of(ctx: Context) -> str:
    data: Any = ctx.data
    return str(data["asset"])


class Work:
    """A handler that reports the asset of its node."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.runs: set[str] = set()
        self.failing: set[str] = set()

    def __call__(self, ctx: Context) -> None:
        asset = asset_of(ctx)
        self.ran.append(asset)
        with open_pipes(ctx) as pipes:
            self.runs.add(pipes.run_id)
            pipes.log.info("made %s", asset)
            pipes.report_asset_materialization(asset_key=asset, metadata={"limit": pipes.extras.get("limit")})
            if asset in self.failing:
                raise ValueError(f"{asset} is broken")


@pytest.fixture
def work(run_worker: RunWorker) -> Work:
    made = Work()
    run_worker(["etl"], {"step": made}, concurrency=4)
    return made


@pytest.fixture
def pipes(url: str) -> PipesGlideMQClient:
    return PipesGlideMQClient(url=url, poll_interval=0.1)


@dataclass
class Runs:
    """Runs of the flow of ``pipes_job``, and re-executions of them."""

    instance: dg.DagsterInstance
    first: str = ""
    job: dg.JobDefinition = field(default_factory=pipes_job.flow_job)

    def go(self, *keys: str, **tags: str) -> tuple[bool, list[str]]:
        """Run it for some assets, or all; whether it succeeded, and what it materialized."""
        result = self.job.execute_in_process(
            instance=self.instance,
            asset_selection=[dg.AssetKey(key) for key in keys] or None,
            tags={f"dagster/{name}": value for name, value in tags.items()},
            raise_on_error=False,
        )
        self.first = self.first or result.run_id
        return result.success, sorted(materialized(result))

    def again(self, *keys: str, resumes: bool = True) -> tuple[bool, list[str]]:
        """Re-execute the first run: from failure, or all of it."""
        tags = {"root_run_id": self.first, "parent_run_id": self.first}
        return self.go(*keys, **tags, **({"is_asset_resume_retry": "true"} if resumes else {}))


@pytest.fixture
def runs(url: str, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> Runs:
    monkeypatch.setenv("GLIDEMQ_URL", url)
    return Runs(instance)


def test_jobs_at_the_same_time_in_one_worker_report_apart(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    both = threading.Barrier(2, timeout=30)

    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            both.wait()
            opened.log.info("here")
            opened.report_asset_materialization(asset_key=asset_of(ctx), metadata={"own": ctx.node})
            both.wait()

    run_worker(["etl"], {"step": work}, concurrency=2)
    spec = FlowSpec(
        "two", [FlowNode(name, queue="etl", job="step", data={"asset": name}) for name in ("a", "b")]
    )
    result = run(pipes, instance, lambda c, p: p.run(context=c, flow=spec).get_results(), "a", "b")
    assert result.success
    assert {asset: found["own"] for asset, found in materialized(result).items()} == {"a": "a", "b": "b"}
    assert {"a: here", "b: here"} <= set(messages(instance, result.run_id))


def test_results_come_as_nodes_complete(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    go_on = threading.Event()

    def work(ctx: Context) -> None:
        with open_pipes(ctx) as opened:
            if ctx.node == "b":
                assert go_on.wait(30), "the first result has not been yielded"
            opened.report_asset_materialization(asset_key=ctx.node)

    def body(context: Any, pipes: PipesGlideMQClient) -> Iterator[Any]:
        for result in pipes.stream(context=context, flow=spec):
            yield result
            go_on.set()

    run_worker(["etl"], {"step": work})
    spec = FlowSpec(
        "two", [FlowNode("a", queue="etl", job="step"), FlowNode("b", queue="etl", job="step", after=["a"])]
    )
    result = run(pipes, instance, body, "a", "b")
    assert result.success
    assert set(materialized(result)) == {"a", "b"}


def test_two_nodes_that_report_one_asset_are_an_error(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, work: Work
) -> None:
    spec = FlowSpec(
        "two", [FlowNode(name, queue="etl", job="step", data={"asset": "a"}) for name in ("x", "y")]
    )
    result = run(pipes, instance, lambda c, p: p.run(context=c, flow=spec).get_results(), "a", "b")
    assert "nodes x and y both report asset a" in failure_of(result).description


def test_ending_the_stream_early_cancels_the_flow(
    pipes: PipesGlideMQClient, instance: dg.DagsterInstance, work: Work, url: str
) -> None:
    spec = FlowSpec(
        "two",
        [
            FlowNode("a", queue="etl", job="step", data={"asset": "a"}),
            FlowNode("b", queue="etl", job="nobody", after=["a"]),
        ],
    )

    def body(context: Any, pipes: PipesGlideMQClient) -> Iterator[Any]:
        stream = pipes.stream(context=context, flow=spec, flow_id="mine")
        yield next(stream)
        stream.close()  # type: ignore[attr-defined]

    client = PipesGlideMQClient(url=url, require_workers=False, poll_interval=0.1)
    result = run(client, instance, body, "a", "b")
    assert set(materialized(result)) == {"a"}
    with FlowProducer(url) as flows:
        assert flows.get("mine").status().state == "cancelled"


def test_what_completed_is_materialized_and_a_re_execution_runs_the_rest(work: Work, runs: Runs) -> None:
    work.failing = {"b"}
    assert runs.go() == (False, ["a", "c"])
    work.failing = set()
    assert runs.again("b") == (True, ["b"])
    assert Counter(work.ran) == {"a": 1, "b": 2, "c": 1}
    assert work.runs == {runs.first}, "a completed node would run again if its context changed"


@pytest.mark.long
def test_changed_extras_run_again_what_gets_them(
    work: Work, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.failing = {"b"}
    runs.go()
    work.failing = set()
    monkeypatch.setenv("LIMIT", "4")
    assert runs.again("b") == (True, ["b"])
    assert Counter(work.ran) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.long
def test_a_re_execution_of_everything_runs_anew(work: Work, runs: Runs) -> None:
    assert runs.go() == (True, ["a", "b", "c"])
    assert runs.again(resumes=False) == (True, ["a", "b", "c"])
    assert Counter(work.ran) == {"a": 2, "b": 2, "c": 2}
    assert len(work.runs) == 2


def test_a_selection_takes_the_reports_of_its_assets(work: Work, runs: Runs) -> None:
    assert runs.go("c") == (True, ["c"])
    assert Counter(work.ran) == {"a": 1, "b": 1, "c": 1}
