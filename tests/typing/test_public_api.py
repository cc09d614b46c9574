"""The public names as users write them, checked by ``mypy --strict``; what must not pass is marked.

The examples of all pages are checked in the same run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

from typer.testing import CliRunner

from glidemq_orchestrate import (
    AsyncEventReader,
    AsyncFlowProducer,
    AsyncQueue,
    Backoff,
    Context,
    EmbeddedServer,
    EventReader,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    Handlers,
    JobOptions,
    JobState,
    JobTemplate,
    NewJob,
    Queue,
    RetryLater,
    Unrecoverable,
    Worker,
    check_flow,
)
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.events import Event
from glidemq_orchestrate.flows import FlowChange, FlowOutcome, FlowStatus, NodeChange, NodeStatus
from glidemq_orchestrate.jobs import Job
from glidemq_orchestrate.jobs.job import JobId
from tests.typing.examples import write_examples

handlers = Handlers()


@handlers.handler
def clean(ctx: Context) -> dict[str, int]:
    if ctx.cancelled.is_set():
        raise Unrecoverable("cancelled")
    ctx.progress({"rows": 1})
    ctx.log("one row")
    month: int = ctx.data["month"]  # JSON that the producer knows, and no type checker
    rows: int = sum(result["rows"] for result in ctx.inputs.values()) + month
    ctx.progress({"rows": rows})
    assert_type(ctx.flow_id, "str | None")
    return {"rows": ctx.attempt}


@handlers.handler
async def report(ctx: Context) -> str:
    if not ctx.inputs:
        raise RetryLater(timedelta(seconds=5), "nothing yet")
    return f"{ctx.node} of {ctx.queue}"


@handlers.handler("tidy", timeout=60)
def tidy(ctx: Context, *, deep: bool = False) -> bool:
    return deep


@handlers.handler()
def sweep(ctx: Context) -> int:
    return 1


@handlers.batch_handler(size=10)
def embed(contexts: list[Context]) -> list[int]:
    return [1 for _ in contexts]


@handlers.backoff
def patient(failures: int, error: BaseException) -> float:
    return 60.0 * failures


def functions_keep_their_types(ctx: Context) -> None:
    assert_type(clean(ctx), dict[str, int])
    assert_type(tidy(ctx, deep=True), bool)
    assert_type(sweep(ctx), int)
    assert_type(embed([ctx]), list[int])
    assert_type(patient(1, ValueError()), float)
    tidy(ctx, shallow=True)  # type: ignore[call-arg]


@handlers.on_start
def warm_up() -> None:
    """Nothing to do."""


def spec() -> FlowSpec:
    careful = JobOptions(attempts=3, backoff=Backoff("exponential", timedelta(seconds=2), jitter=0.2))
    return FlowSpec(
        "nightly",
        nodes=[
            FlowNode(
                "clean", queue="etl", job="clean", data={"month": 1, "parts": ["a", None]}, options=careful
            ),
            FlowNode("report", queue="etl", job="report", after=["clean"]),
        ],
        labels={"dag": "nightly"},
    )


def blocking(url: str) -> None:
    with Queue("etl", url=url) as queue:
        counts = {"month": 1}
        job_id = queue.add("clean", counts, options=JobOptions(delay=timedelta(minutes=1)))
        assert_type(job_id, JobId)
        job = queue.get_job(job_id)
        assert_type(queue.add_many([NewJob("clean", counts)]), "list[JobId | None]")
        assert_type(queue.add_and_wait("clean", timeout=timedelta(seconds=1)), Any)
        assert_type(queue.get_jobs(JobState.WAITING), list[Job])
        counted: dict[JobState, int] = queue.counts()
        found: list[Job] = queue.search(name="clean")
        assert_type(counted[JobState.WAITING], int)
        assert_type(found[0].id, JobId)
        assert_type(queue.clean(JobState.FAILED), list[JobId])
        assert_type(queue.get_jobs("waiting-children"), list[Job])
        assert_type(queue.clean("failed"), list[JobId])
        queue.get_jobs("wating")  # type: ignore[arg-type]
        queue.clean("waiting")  # type: ignore[arg-type]
        assert_type(job, Job)
        assert_type(job.state, JobState)
    with FlowProducer(url=url) as flows:
        flow = flows.submit(spec(), flow_id="nightly-1", on_existing="retry_failed", require_workers=True)
        assert_type(flow.status(), FlowStatus)
        assert_type(flow.nodes(), list[NodeStatus])
        assert_type(flow.node("a"), NodeStatus)
        assert_type(flow.results(["a"]), Mapping[str, Any])
        assert_type(next(flow.watch(after="p", timeout=timedelta(1))), NodeChange | FlowChange)
        outcome = flow.wait(timeout=timedelta(minutes=5))
        assert_type(outcome, FlowOutcome)
        assert_type(flow.result(), Mapping[str, Any])
        assert_type(flow.cancel("why"), FlowState)
        assert_type(flows.get(flow.id).retry_failed(), FlowState)
    with EventReader("etl", url, position="0-0") as reader:
        assert_type(reader.read(timedelta(seconds=1)), list[Event])


async def awaitable(url: str) -> None:
    async with AsyncQueue("etl", url=url) as queue:
        assert_type(await queue.get_job(await queue.add("clean")), Job)
    async with AsyncFlowProducer(url=url) as flows:
        flow = await flows.submit(spec())
        assert_type(await flow.wait(), FlowOutcome)
        assert_type(await (await flows.get(flow.id)).status(), FlowStatus)
        async for change in flow.watch():
            assert_type(change, NodeChange | FlowChange)
    async with AsyncEventReader("etl", url) as reader:
        assert_type(await reader.start(), str)


def serve() -> None:
    with EmbeddedServer(data_dir="data") as server:
        worker = Worker(server.url, queues=["etl"], handlers=handlers, lease=timedelta(seconds=5))

        @worker.handler
        def own(ctx: Context) -> list[str]:
            return [ctx.job_id]

        worker.run()


def mistakes(url: str) -> None:
    """Each line is an error; an ignore that is not needed is one too."""
    FlowNode("a", queue="q", job="j", after=[1])  # type: ignore[list-item]
    FlowNode("a", queue="q", job="j", data={1, 2})  # type: ignore[arg-type]
    FlowNode("a", queue="q", job="j", options={"attempts": 3})  # type: ignore[arg-type]
    FlowNode("a", "q")  # type: ignore[call-arg]
    FlowNode("a", attemps=3)  # type: ignore[call-arg]
    FlowNode("a", attempts="3")  # type: ignore[arg-type]
    JobTemplate("a", lifo=1)  # type: ignore[arg-type]
    Queue("q", url).add("a", delay="soon")  # type: ignore[arg-type]
    Queue("q", url).add_and_wait("a", retries=3)  # type: ignore[call-arg]
    JobOptions(timeout="5")  # type: ignore[arg-type]
    Backoff("slow")  # type: ignore[arg-type]
    Worker(url)  # type: ignore[call-arg]
    RetryLater("5")  # type: ignore[arg-type]
    with FlowProducer(url) as flows:
        flows.submit(spec(), on_existing="replace")  # type: ignore[arg-type]
        flows.submit(spec(), "id")  # type: ignore[call-arg]


def broken_handler(ctx: Context) -> set[int]:
    return {ctx.attempt}


def more_mistakes() -> None:
    handlers.handler("broken")(broken_handler)  # type: ignore[type-var]
    handlers.handler(broken_handler)  # type: ignore[type-var]
    handlers.handler(5)  # type: ignore[call-overload]
    handlers.handler("late", timeout="60")  # type: ignore[call-overload]


def test_this_file_a_new_project_and_every_example_pass_the_strict_check(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    examples = write_examples(tmp_path)
    assert len(examples) > 50
    assert CliRunner().invoke(app, ["init", str(tmp_path)]).exit_code == 0
    program = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        str(root / "pyproject.toml"),
        __file__,
        *map(str, tmp_path.glob("*.py")),
    ]
    done = subprocess.run(program, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_package_is_marked_as_typed() -> None:
    import glidemq_orchestrate  # noqa: PLC0415  only its place is of interest

    assert (Path(glidemq_orchestrate.__file__).parent / "py.typed").is_file()


def test_the_flow_above_is_one() -> None:
    checked: Any = check_flow(spec())
    assert [node.name for node in checked.nodes] == ["clean", "report"]
