"""Run again: retries and re-executions from failure repair, those of everything begin a new generation."""

import logging.config
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource, flow_id_for, glidemq_flow_assets

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec

RunWorker = Callable[..., Any]
LONG = timedelta(seconds=20)


@dataclass
class Work:
    """What the handler does and has done; what the job of this module runs."""

    url: str = ""
    run_worker: RunWorker = print
    ran: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    holding: set[str] = field(default_factory=set)
    started: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)
    data: dict[str, Any] = field(default_factory=dict)
    flow_id: str | None = None
    ids: list[str] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    retries: int = 0
    mend_on_retry: bool = False
    during: Callable[[], None] | None = None

    def __call__(self, ctx: Context) -> Any:
        node = str(ctx.node)
        self.ran.append(node)
        if node in self.holding:
            self.started.set()
            while not ctx.cancelled.is_set() and not self.open.wait(0.02):
                pass
        if node in self.failing:
            raise ValueError(f"{node} is broken")
        return len(self.ran)

    def spec(self) -> FlowSpec:
        """Extract, load, report."""
        names = ["extract", "load", "report"]
        return FlowSpec(
            "etl",
            [
                FlowNode(name, queue="etl", job="step", data=self.data.get(name), after=names[i - 1 : i])
                for i, name in enumerate(names)
            ],
        )


WORK = Work()


@dg.op
def before() -> int:
    """A step that always completes."""
    return 1


@dg.op
def etl(context: dg.OpExecutionContext, before: int) -> dict[str, Any]:
    """Run the flow."""
    if context.retry_number and WORK.mend_on_retry:
        WORK.failing.clear()
        WORK.data["load"] = "mended"
    WORK.ids.append(WORK.flow_id or flow_id_for(context, "etl"))
    glidemq = GlideMQResource(url=WORK.url)
    outcome = glidemq.run_flow(context, WORK.spec(), flow_id=WORK.flow_id, allow_retries=True)
    WORK.results.append(dict(outcome.results))
    return WORK.results[-1]


@dg.job(executor_def=dg.in_process_executor)
def again_job() -> None:
    """Two steps, the second runs the flow."""
    etl(before())


@dg.job(executor_def=dg.in_process_executor)
def retried_job() -> None:
    """The same, with a retry of the step."""
    etl.with_retry_policy(dg.RetryPolicy(max_retries=1))(before())


@pytest.fixture
def work(url: str, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    global WORK  # noqa: PLW0603  the job is found by the name of its module
    WORK = made = Work(url, run_worker)
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    # Dagster configures logging at the start of a run, here with nothing; while another run logs in the same
    # process, as in these tests only, both may wait for each other's lock for ever.
    monkeypatch.setattr(logging.config, "dictConfig", lambda _: None)
    run_worker(["etl"], {"step": made}, lease=timedelta(seconds=1))
    yield made
    made.open.set()


@pytest.fixture(scope="module")
def stored() -> Iterator[dg.DagsterInstance]:
    """An instance with storage, as re-executions need it."""
    with dg.instance_for_test() as made:
        yield made


def run(
    instance: dg.DagsterInstance,
    options: dg.ReexecutionOptions | None = None,
    job: Any = again_job,
    tags: dict[str, Any] | None = None,
) -> tuple[str, bool]:
    with dg.execute_job(dg.reconstructable(job), instance, reexecution_options=options, tags=tags) as result:
        return result.run_id, result.success


def history(work: Work) -> list[str]:
    with FlowProducer(work.url) as producer:
        return [status.state.value for status in producer.get(work.ids[-1]).history()]


def from_failure(instance: dg.DagsterInstance, run_id: str) -> dg.ReexecutionOptions:
    return dg.ReexecutionOptions.from_failure(run_id, instance)


def failed_once(work: Work, instance: dg.DagsterInstance) -> str:
    work.failing = {"load"}
    run_id, success = run(instance)
    assert not success
    work.failing = set()
    return run_id


def test_a_re_execution_from_failure_repairs(work: Work, stored: dg.DagsterInstance) -> None:
    first = failed_once(work, stored)
    assert run(stored, from_failure(stored, first))[1]
    assert Counter(work.ran) == {"extract": 1, "load": 2, "report": 1}
    assert history(work) == ["completed"]


@pytest.mark.long
def test_a_re_execution_of_all_steps_runs_anew(work: Work, stored: dg.DagsterInstance) -> None:
    first = failed_once(work, stored)
    second, success = run(stored, dg.ReexecutionOptions(first))
    assert success
    assert work.results == [{"extract": 3, "load": 4, "report": 5}]
    assert run(stored, dg.ReexecutionOptions(second))[1]
    assert work.results[1] == {"extract": 6, "load": 7, "report": 8}, "after a success too"
    assert history(work) == ["failed", "completed", "completed"]


@pytest.mark.long
def test_a_step_that_had_completed_runs_anew_when_it_is_chosen(
    work: Work, stored: dg.DagsterInstance
) -> None:
    first, _ = run(stored)
    other, _ = run(stored, dg.ReexecutionOptions(first, step_selection=["before"]))
    assert len(work.ran) == 3
    for parent in (first, other):
        run(stored, dg.ReexecutionOptions(parent, step_selection=["etl"]))
    assert [one["extract"] for one in work.results] == [1, 4, 7]


@pytest.mark.long
def test_a_step_that_had_failed_is_repaired_when_it_is_chosen(work: Work, stored: dg.DagsterInstance) -> None:
    first = failed_once(work, stored)
    run(stored, dg.ReexecutionOptions(first, step_selection=["etl"]))
    assert work.results == [{"extract": 1, "load": 3, "report": 4}]


@pytest.mark.long
def test_a_failure_of_the_new_generation_is_repaired_in_it(work: Work, stored: dg.DagsterInstance) -> None:
    first = failed_once(work, stored)
    work.failing = {"report"}
    second, success = run(stored, dg.ReexecutionOptions(first))
    assert not success
    work.failing = set()
    _, success = run(stored, from_failure(stored, second))
    assert success
    assert work.results == [{"extract": 3, "load": 4, "report": 6}]
    assert history(work) == ["failed", "completed"]
    run(stored, from_failure(stored, first))
    assert work.results[1] == {"extract": 7, "load": 8, "report": 9}, "its flow is gone, so all of it runs"


@pytest.mark.long
def test_a_mended_flow_is_accepted_and_keeps_what_completed(work: Work, stored: dg.DagsterInstance) -> None:
    first = failed_once(work, stored)
    work.data["load"] = "mended"
    assert run(stored, from_failure(stored, first))[1]
    assert Counter(work.ran) == {"extract": 1, "load": 2, "report": 1}
    assert history(work) == ["failed", "completed"]


@pytest.mark.long
@pytest.mark.parametrize("mends", [False, True])
def test_a_retry_of_the_step_repairs(work: Work, stored: dg.DagsterInstance, *, mends: bool) -> None:
    work.failing, work.mend_on_retry = {"load"}, mends
    run(stored, job=retried_job)
    assert Counter(work.ran)["extract"] == 1
    assert history(work) == (["failed", "completed"] if mends else ["failed"])


@pytest.mark.long
def test_the_tags_of_run_retries_and_what_they_prove(work: Work, stored: dg.DagsterInstance) -> None:
    first = failed_once(work, stored)
    tags = {"dagster/root_run_id": first, "dagster/parent_run_id": first}
    run(stored, tags={**tags, "dagster/is_resume_retry": "true", "dagster/retry_number": "1"})
    assert work.results == [{"extract": 1, "load": 3, "report": 4}]
    run(stored, tags={**tags, "dagster/retry_number": "1", "dagster/retry_strategy": "ALL_STEPS"})
    assert work.results[1] == {"extract": 5, "load": 6, "report": 7}


def test_a_flow_that_others_began_is_joined(work: Work, stored: dg.DagsterInstance) -> None:
    work.flow_id, work.failing = "shared: +/ü", {"load"}
    with FlowProducer(work.url) as producer:
        producer.submit(work.spec(), flow_id=work.flow_id).wait(timeout=LONG)
    first, success = run(stored)
    assert not success
    work.failing = set()
    for options in (dg.ReexecutionOptions(first), from_failure(stored, first)):
        assert run(stored, options)[1]
    assert Counter(work.ran) == {"extract": 1, "load": 2, "report": 1}
    work.data["extract"] = "another"
    assert not run(stored)[1]
    assert not run(stored, dg.ReexecutionOptions(first))[1]
    assert history(work) == ["completed"]


class Waiting:
    """A run in a thread that waits for its flow."""

    def __init__(self, work: Work, instance: dg.DagsterInstance, options: Any = None) -> None:
        work.holding, work.started = {"load"}, threading.Event()
        self.outcome: tuple[str, bool] | None = None

        def go() -> None:
            self.outcome = run(instance, options)

        self.thread = threading.Thread(target=go)
        self.thread.start()
        assert work.started.wait(30)

    def joined(self) -> tuple[str, bool]:
        self.thread.join(40)
        assert self.outcome is not None
        return self.outcome


@pytest.mark.long
def test_a_run_ends_when_a_later_one_begins_its_flow_anew(work: Work, stored: dg.DagsterInstance) -> None:
    old = Waiting(work, stored)
    (first,) = stored.get_run_ids(limit=1)
    new = Waiting(work, stored, dg.ReexecutionOptions(first))
    assert old.joined() == (first, False)
    failures = stored.all_logs(first, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert "a later run has restarted flow" in str(failures[0].dagster_event)
    assert history(work) == ["cancelled", "running"]
    work.open.set()
    assert new.joined()[1]
    assert work.results == [{"extract": 3, "load": 4, "report": 5}]


@pytest.mark.long
def test_a_run_follows_what_was_begun_by_hand(work: Work, stored: dg.DagsterInstance) -> None:
    waiting = Waiting(work, stored)
    work.started.clear()
    with FlowProducer(work.url) as producer:
        producer.get(work.ids[0]).restart(idempotency_key="a click")
    assert work.started.wait(20)
    work.open.set()
    assert waiting.joined()[1]
    assert work.results == [{"extract": 3, "load": 4, "report": 5}]


def test_a_cancel_of_an_older_generation_is_no_error(
    work: Work, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    glidemq = GlideMQResource(url=work.url)

    @dg.op
    def step(context: dg.OpExecutionContext) -> None:
        for _ in glidemq.stream_flow(context, work.spec(), flow_id="f"):
            with FlowProducer(work.url) as producer:
                producer.get("f").restart()
            raise LookupError("the step ends while the next generation runs")

    @dg.job
    def job() -> None:
        step()

    work.holding = {"report"}
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert "LookupError" in str(result.get_step_failure_events())
    with FlowProducer(work.url) as producer:
        assert [one.state for one in producer.get("f").history()] == ["cancelled", "running"]


class TestAssets:
    """Assets of a flow, re-executed as Dagster does it."""

    @pytest.fixture
    def job(self, work: Work) -> dg.JobDefinition:
        glidemq = GlideMQResource(url=work.url)
        assets = glidemq_flow_assets(
            flow=work.spec(), build=lambda _: work.spec(), nodes=["extract", "load"], name="etl_assets"
        )
        defs = dg.Definitions(
            assets=[assets], jobs=[dg.define_asset_job("all")], resources={"glidemq": glidemq}
        )
        return defs.resolve_job_def("all")

    def execute(
        self, job: dg.JobDefinition, instance: dg.DagsterInstance, keys: list[str] | None = None, **tags: str
    ) -> tuple[str, list[str]]:
        result = job.execute_in_process(
            instance=instance,
            asset_selection=None if keys is None else [dg.AssetKey(key) for key in keys],
            tags={f"dagster/{name}": value for name, value in tags.items()},
            raise_on_error=False,
        )
        events = result.get_asset_materialization_events()
        return result.run_id, [event.asset_key.to_user_string() for event in events if event.asset_key]

    @pytest.mark.long
    def test_the_failed_ones_are_repaired_and_all_of_them_run_anew(
        self, work: Work, job: dg.JobDefinition, instance: dg.DagsterInstance
    ) -> None:
        work.failing = {"load"}
        first, done = self.execute(job, instance)
        assert done == ["extract"]
        work.failing = set()
        parent = {"root_run_id": first, "parent_run_id": first}
        second, done = self.execute(job, instance, ["load", "report"], is_asset_resume_retry="true", **parent)
        assert (done, Counter(work.ran)["extract"]) == (["load", "report"], 1)
        # The UI copies the tags of the run that is re-executed.
        parent = {"root_run_id": first, "parent_run_id": second}
        _, done = self.execute(job, instance, ["load", "report"], is_asset_resume_retry="true", **parent)
        assert (done, Counter(work.ran)) == (["load", "report"], {"extract": 2, "load": 3, "report": 2})

    @pytest.mark.long
    def test_a_mended_node_is_repaired_and_keeps_what_is_not_selected(
        self, work: Work, job: dg.JobDefinition, instance: dg.DagsterInstance
    ) -> None:
        work.failing = {"report"}
        first, _ = self.execute(job, instance)
        work.failing, work.data = set(), {"report": "mended"}
        parent = {"root_run_id": first, "parent_run_id": first}
        _, done = self.execute(job, instance, ["report"], is_asset_resume_retry="true", **parent)
        assert done == ["report"]
        assert Counter(work.ran) == {"extract": 1, "load": 1, "report": 2}

    @pytest.mark.long
    def test_a_repair_may_select_more_than_the_run_before(
        self, work: Work, job: dg.JobDefinition, instance: dg.DagsterInstance
    ) -> None:
        work.failing = {"load"}
        first, _ = self.execute(job, instance, ["extract", "load"])
        work.failing = set()
        parent = {"root_run_id": first, "parent_run_id": first}
        _, done = self.execute(job, instance, ["load", "report"], is_asset_resume_retry="true", **parent)
        assert done == ["load", "report"]
        assert Counter(work.ran) == {"extract": 1, "load": 2, "report": 1}
