"""Jobs, flows, nodes and events as tables of Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Queue,
    Skip,
)
from glidemq_orchestrate.clients.queue import NewJob
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.option_values import Ordering
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.spark import GlideMQDataSource
from glidemq_orchestrate.spark.handler import run_python_step
from glidemq_orchestrate.spark.source.tables import TABLES
from tests.conftest import Eventually, RunWorker
from tests.server.connections.topologies import running_primaries
from tests.spark.conftest import MakeRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHING = "spark.sql.python.filterPushdown.enabled"
ATTEMPTS = timedelta(seconds=30)

Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: SparkSession, url: str) -> Read:
    spark.dataSource.register(GlideMQDataSource)

    def reading(table: str, **options: Any) -> DataFrame:
        return spark.read.format("glidemq").options(**{"url": url, "table": table} | options).load()

    return reading


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    yield lambda value: spark.conf.set(PUSHING, value)
    spark.conf.unset(PUSHING)


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url=url) as opened:
        yield opened


def finish(client: Any, first: int, last: int, *, at: int | None = None) -> None:
    """Let the jobs of these ids have completed, a millisecond after the other, or all at once."""
    pipe = client.pipeline()
    for number in range(first, last):
        ended = 1_700_000_000_000 + number if at is None else at
        pipe.hset(f"glide:{{etl}}:job:{number}", mapping={"state": "completed", "finishedOn": ended})
        pipe.zadd("glide:{etl}:completed", {str(number): ended})
    pipe.execute()


def tasks(frame: DataFrame) -> list[int]:
    """How many rows each task has read."""
    counted = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    return [int(count) for count in counted]


def a(ctx: Any) -> Any:
    ctx.progress(50)
    return {"rows": [1, None]}


def b(ctx: Any) -> Any:
    raise ValueError("no such month")


def test_the_table_of_jobs_has_each_state_as_the_client_tells_it(
    read: Read, queue: Queue, url: str, *, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    queue.add("a", {"month": 1, "name": "é"})
    failing = queue.add("b", [1.5], options=JobOptions(attempts=2))
    worker = run_worker(["etl"], {"a": a, "b": b})
    queue.add_and_wait("a", timeout=ATTEMPTS)
    eventually(lambda: queue.get_job(failing).state == JobState.FAILED)
    worker.stop()
    redis_client.hset(f"glide:{{etl}}:job:{failing}", "gmo:schedule", "nightly")
    queue.add("a", options=JobOptions(delay=timedelta(hours=1), priority=3))
    queue.add("a", options=JobOptions(priority=5, job_id="first"))
    queue.add("a", options=JobOptions(lifo=True))
    broken = queue.add("a")
    redis_client.hset(f"glide:{{etl}}:job:{broken}", "data", "{no json")
    with FlowProducer(url=url) as flows:
        flows.submit(
            FlowSpec(
                "f", [FlowNode("n", queue="etl", job="a"), FlowNode("m", queue="etl", job="a", after=["n"])]
            )
        )

    frame = read("jobs")
    assert [field.metadata["comment"] for field in frame.schema] == [one.meaning for one in TABLES["jobs"]]
    rows = {row.job_id: row for row in frame.collect()}
    states = [row.state for row in rows.values()]
    assert sorted(set(states)) == [
        "completed", "delayed", "failed", "prioritized", "waiting", "waiting-children",
    ]  # fmt: skip
    assert len(rows) == len(states) == 9
    for row in rows.values():
        if row.job_id != broken:
            check(row, queue.get_job(row.job_id))
    assert (rows[broken].broken, rows[broken].data, rows[broken].state) == (True, None, "waiting")
    light = read("jobs", payload=False, state='["completed", "failed"]')
    assert {(row.state, row.data, row.result) for row in light.collect()} == {
        ("completed", None, None), ("failed", None, None),
    }  # fmt: skip


@pytest.mark.long
def test_the_table_of_elements_has_the_results_of_an_array_in_parts(
    read: Read, url: str, run_worker: RunWorker
) -> None:
    def odd(ctx: Context) -> Any:
        if ctx.data % 2 == 0:
            raise Skip("even")
        return {"n": ctx.data} if ctx.data > 1 else None

    run_worker(["etl"], {"odd": odd, "other": lambda ctx: ctx.data})
    with FlowProducer(url=url) as flows:
        nodes = [
            ArrayNode("parts", over=range(2_500), job="odd"),
            ArrayNode("others", over=["x"], job="other"),
        ]
        flow = flows.submit(FlowSpec("f", nodes, queue="etl"), flow_id="f:1")
        flow.wait(timeout=60)
        flow.restart()
        flow.wait(timeout=60)
    frame = read("elements", flow_id="f:1", node="parts", rows_per_partition=1_000)
    assert tasks(frame) == [500, 500, 250]
    rows = frame.collect()
    assert [row.position for row in rows] == list(range(1, 2_500, 2))
    assert {(row.flow_id, row.generation, row.node) for row in rows} == {("f:1", 1, "parts")}
    assert (rows[0].result, rows[1].result) == (None, '{"n":3}')
    total = frame.selectExpr("from_json(result, 'n long').n as n").groupBy().sum("n").first()
    assert total is not None
    assert total[0] == sum(range(3, 2_500, 2))
    assert read("elements", flow_id="f:1", node='["others", "parts"]').count() == 1_251
    for node, why in (("none", "has no node none"), ("", "needs the option node")):
        with pytest.raises(PySparkException, match=why):
            read("elements", flow_id="f:1", node=node).collect()


def check(row: Any, job: Job) -> None:
    assert (row.queue, row.name, row.state, row.failed_reason) == (
        job.queue, job.name, job.state, job.failed_reason,
    )  # fmt: skip
    assert (json.loads(row.data or "null"), json.loads(row.result or "null")) == (job.data, job.result)
    assert (row.attempts_made, row.max_attempts, row.priority) == (
        job.attempts_made, job.max_attempts, job.priority,
    )  # fmt: skip
    assert (row.flow_id, row.node, row.worker) == (job.flow_id, job.node, job.worker)
    assert timedelta(milliseconds=row.delay_ms) == job.delay
    for name in ("created_at", "started_at", "finished_at"):
        moment = getattr(row, name)
        assert (moment and moment.astimezone(UTC)) == getattr(job, name)


@pytest.mark.long
def test_jobs_that_run_are_found_once_wherever_they_came_from(
    read: Read, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    go = threading.Event()
    ordered = JobOptions(ordering=Ordering("k"))
    for options in (JobOptions(), JobOptions(priority=1), JobOptions(lifo=True), ordered, ordered):
        queue.add("a", options=options)
    expected = {JobState.ACTIVE: 4, JobState.GROUP_WAITING: 1}
    run_worker(["etl"], {"a": lambda _: go.wait(60)}, concurrency=5)
    try:
        eventually(lambda: expected.items() <= queue.counts().items())
        rows = read("jobs").collect()
        assert sorted(row.job_id for row in rows) == ["1", "2", "3", "4", "5"]
        assert sorted(row.state for row in rows) == ["active"] * 4 + ["group-waiting"]
        assert {row.ordering_key for row in rows} == {None, "k"}
        assert read("jobs", state="active").count() == 4
    finally:
        go.set()


@pytest.mark.long
def test_a_large_read_is_split_over_tasks_and_has_each_job_once(
    read: Read, queue: Queue, redis_client: Any
) -> None:
    queue.add_many(NewJob("a", {"n": number}) for number in range(5_000))
    redis_client.delete("glide:{etl}:stream")
    finish(redis_client, 1, 3_001)
    finish(redis_client, 3_001, 5_001, at=1_700_000_009_000)  # more than a page, all at the same time
    queue.add_many(NewJob("a", options=JobOptions(priority=1 + number % 3)) for number in range(1_500))
    frame = read("jobs", rows_per_partition=1_000).cache()
    counts = tasks(frame)
    assert len(counts) >= 6
    assert max(counts) <= 2_500, "those of one time are not split"
    assert frame.count() == frame.select("job_id").distinct().count() == 6_500
    frame.unpersist()


@pytest.mark.long
def test_pushed_filters_give_the_same_rows_with_fewer_calls(
    read: Read, queue: Queue, redis_client: Any, pushing: Callable[[str], None]
) -> None:
    queue.add_many(NewJob("a", {"n": number}) for number in range(2_000))
    redis_client.delete("glide:{etl}:stream")
    finish(redis_client, 1, 2_001)
    with Queue("other", settings(queue)) as other:
        other.add("a")
    moment = datetime.fromtimestamp(1_700_000_001.900, UTC)
    found, calls = [], []
    for value in ("false", "true"):
        pushing(value)
        before = redis_client.info("stats")["total_commands_processed"]
        frame = read("jobs").where("state = 'completed' and queue in ('etl', 'none')")
        frame = frame.where(frame.finished_at >= moment)
        found.append(sorted(row.job_id for row in frame.collect()))
        calls.append(redis_client.info("stats")["total_commands_processed"] - before)
    assert found[0] == found[1] == sorted(str(number) for number in range(1_900, 2_001))
    if hasattr(DataSourceReader, "pushFilters"):  # PySpark 4.0 has none
        assert calls[1] < calls[0] / 5
    assert read("jobs").where("state = 'no state'").count() == 0


def settings(queue: Queue) -> Any:
    return queue._settings


@pytest.mark.long
def test_options_choose_the_time_of_the_end_and_the_queue(
    read: Read, queue: Queue, redis_client: Any
) -> None:
    queue.add_many(NewJob("a") for _ in range(100))
    finish(redis_client, 1, 51)
    since, until = (datetime.fromtimestamp(1_700_000_000 + ms / 1000, UTC).isoformat() for ms in (10, 20))
    frame = read("jobs", since=since, until=until, queue='["etl", "none"]')
    assert sorted(int(row.job_id) for row in frame.collect()) == list(range(10, 20))
    assert read("jobs", queue="none").count() == 0
    assert read("jobs", state="waiting", queue="etl").count() == 50


@pytest.mark.long
def test_flows_and_nodes_are_tables_with_their_generations(
    read: Read, url: str, run_worker: RunWorker, pushing: Callable[[str], None]
) -> None:
    nodes = [
        FlowNode("load", queue="etl", job="a"),
        FlowNode("check", queue="bi", job="b", after=["load"], options=JobOptions(attempts=2)),
        FlowNode("report", queue="bi", job="a", after=["check"]),
    ]
    run_worker(["etl", "bi"], {"a": a, "b": b})
    with FlowProducer(url=url) as producer:
        flow = producer.submit(FlowSpec("nightly", nodes, labels={"dag": "d"}), flow_id="n:1")
        flow.wait(timeout=ATTEMPTS)
        flow.restart()
        flow.wait(timeout=ATTEMPTS)
        waiting = producer.submit(FlowSpec("w", [FlowNode("only", queue="unserved", job="a")]), flow_id="w")
        status = flow.status()

        [row] = read("flows", state="failed").collect()
        assert (row.flow_id, row.generation, row.name, row.home, row.labels) == (
            "n:1", 1, "nightly", status.home, {"dag": "d"},
        )  # fmt: skip
        assert (row.total, row.completed, row.failed, row.skipped, row.open) == (3, 1, 2, 0, 0)
        assert row.finished_at.astimezone(UTC) == status.finished_at
        assert row.reason == status.reason
        every = read("flows", generations="all").collect()
        assert sorted((one.flow_id, one.generation, one.superseded_by) for one in every) == [
            ("n:1", 0, 1), ("n:1", 1, None), ("w", 0, None),
        ]  # fmt: skip
        assert status.finished_at is not None
        since = (status.finished_at - timedelta(milliseconds=1)).isoformat()
        assert [one.flow_id for one in read("flows", since=since).collect()] == ["n:1"]
        assert read("flows", until=since, created_since="2020-01-01T00:00:00Z").count() == 0
        assert [one.flow_id for one in read("flows", flow_id='["w", "none"]').collect()] == ["w"]

        found = {row.node: row for row in read("nodes", flow_id="n:1").collect()}
        assert [(name, row.state, row.attempts) for name, row in sorted(found.items())] == [
            ("check", "failed", 2), ("load", "completed", 1), ("report", "failed", 0),
        ]  # fmt: skip
        for told in flow.nodes():
            row = found[told.name]
            assert (row.queue, row.job_id, row.job, tuple(row.after)) == (
                told.queue, told.job_id, told.job, told.after,
            )  # fmt: skip
            assert (row.worker, row.failed_reason or "") == (told.worker, told.reason)
            assert (row.finished_at and row.finished_at.astimezone(UTC)) == told.finished_at
        load, report = found["load"], found["report"]
        # The server queued the job by its own clock; the client knows that clock to within milliseconds.
        assert load.created_at - timedelta(milliseconds=50) <= load.queued_at
        assert load.queued_at - timedelta(milliseconds=50) <= load.started_at <= load.finished_at
        assert (report.queued_at, report.started_at) == (None, None)
        assert report.failed_reason == "upstream failed: check"
        assert [row.node for row in read("nodes", state="waiting").collect()] == ["only"]
        pushing("true")
        assert read("nodes").where("flow_id = 'w' and flow_state = 'running'").count() == 1
        assert read("nodes").count() == 4
        waiting.cancel("over")


@pytest.mark.long
def test_events_are_a_table(read: Read, queue: Queue) -> None:
    added = [queue.add("a") for _ in range(300)]
    queue.pause()
    rows = read("events", rows_per_partition=100).collect()
    rows.sort(key=lambda row: [int(part) for part in row.event_id.split("-")])
    assert [row.job_id for row in rows if row.kind == "added"] == added
    assert rows[0].fields == {"name": "a"}
    assert rows[0].at.astimezone(UTC) <= datetime.now(UTC) + timedelta(minutes=1)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert read("events", since=later).count() == 0


@pytest.mark.long
def test_a_queue_is_read_with_its_shards(read: Read, url: str) -> None:
    with Queue("wide", url, shards=3) as wide, Queue("etl", url) as other, FlowProducer(url) as flows:
        other.add("x")
        ids = wide.add_many([NewJob("x") for _ in range(9)])
        for number in range(6):
            flows.submit(FlowSpec("n", [FlowNode("a")], queue="wide"), flow_id=f"f{number}")
        job_ids = [row.job_id for row in read("jobs", queue="wide").collect()]
        assert {job_id for job_id in job_ids if "~" not in job_id} == set(ids)
        assert len(job_ids) == 15
        assert {row.flow_id for row in read("flows", queue="wide").collect()} == {f"f{n}" for n in range(6)}
        assert {row.job_id for row in read("events", queue="wide").collect()} >= set(ids)


def test_names_with_odd_characters_and_a_prefix_of_ones_own_are_read(spark: SparkSession, url: str) -> None:
    odd = 'e*t[l]? "ü" \\ \U0001f600,x'
    with Queue(odd, url=url, prefix="my*pre") as queue, FlowProducer(url=url, prefix="my*pre") as flows:
        queue.add("a")
        flows.submit(
            FlowSpec("f", [FlowNode("n", queue=odd, job="a"), FlowNode("m", queue=odd, job="a", after=["n"])])
        )
    spark.dataSource.register(GlideMQDataSource)
    for more in ({}, {"queue": odd}):
        reading = spark.read.format("glidemq").options(url=url, prefix="my*pre", table="jobs", **more)
        rows = reading.load().collect()
        assert sorted(row.state for row in rows) == ["waiting", "waiting", "waiting-children"]
        assert {row.queue for row in rows} == {odd}


STEP = """
    def look(spark, ctx, *, url):
        frame = spark.read.format("glidemq").options(url=url, table="jobs").load()
        spark.sql(f"create temporary view jobs using glidemq options (table 'jobs', url '{url}')")
        return [frame.count(), spark.table("jobs").count()]
"""


@pytest.mark.long
def test_a_step_needs_no_registration(  # noqa: PLR0917
    make_run: MakeRun, url: str, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    (tmp_path / "looking_steps.py").write_text(STEP.replace("\n    ", "\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    queue.add("a")
    run = make_run({"callable": "looking_steps:look", "arguments": {"url": url}})
    assert run_python_step(run.ctx) == [1, 1]


def test_secrets_are_in_no_plan_and_in_no_error(
    read: Read, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = read("flows", url=url.replace("valkey://", "valkey://default:s3cret@")).where("flow_id = 'x'")
    for mode in ("extended", "formatted"):
        frame.explain(mode=mode)
    shown = capsys.readouterr().out
    assert "BatchScan glidemq" in shown
    assert "s3cret" not in shown
    with pytest.raises(Exception, match="cannot connect to valkey") as told:
        read("flows", url="valkey://me:s3cret@127.0.0.1:1/0", password="s3cret").count()
    assert "s3cret" not in str(told.value)


@pytest.mark.long
def test_a_cluster_is_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(GlideMQDataSource)
    with running_primaries(tmp_path) as cluster:
        place = {"url": cluster.url}
        rows = spark.range(500)
        writing = rows.write.format("glidemq").options(**place, queue="etl", name="a", key="id", write_id="w")
        for _ in range(2):
            writing.mode("append").save()
        with Queue("bi", url=cluster.url) as queue:
            queue.add("a")
        frame = spark.read.format("glidemq").options(**place, table="jobs").load()
        assert frame.groupBy("queue").count().orderBy("queue").collect() == [("bi", 1), ("etl", 500)]
        with FlowProducer(url=cluster.url) as flows:  # in several slots, so clients carry it
            flow = flows.submit(
                FlowSpec(
                    "f",
                    [FlowNode("n", queue="etl", job="a"), FlowNode("m", queue="bi", job="a", after=["n"])],
                ),
                flow_id="f",
            )
            told = {node.name: (node.job_id, node.state, list(node.after)) for node in flow.nodes()}
        nodes = spark.read.format("glidemq").options(**place, table="nodes").load()
        assert {row.node: (row.job_id, row.state, row.after) for row in nodes.collect()} == told
