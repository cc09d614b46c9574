"""Rows as jobs: each once, whatever fails and whatever is repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from glidemq_orchestrate import Queue
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.spark import GlideMQDataSource
from glidemq_orchestrate.spark.source.options import Options
from glidemq_orchestrate.spark.source.rows import WRITE, RowJobs, forget_old
from tests.conftest import Eventually, RunWorker
from tests.profile import IS_LONG
from tests.spark.conftest import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[..., None]


@pytest.fixture
def patient(spark: SparkSession) -> SparkSession:
    """A session that runs a task that has failed again, as clusters do."""
    spark.dataSource.register(GlideMQDataSource)
    return spark


@pytest.fixture
def write(patient: SparkSession, url: str) -> Write:
    def writing(frame: DataFrame, **options: Any) -> None:
        given = {"url": url, "queue": "etl", "name": "load"} | options
        frame.write.format("glidemq").options(**given).mode("append").save()

    return writing


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url=url) as opened:
        yield opened


MANY = 5_000 if IS_LONG else 300


def jobs(queue: Queue, state: JobState = JobState.WAITING) -> list[Any]:
    return queue.get_jobs(state, limit=10_000)


@pytest.mark.long
def test_many_rows_are_as_many_jobs_and_a_repeat_adds_none(
    patient: SparkSession, write: Write, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    frame = patient.range(0, MANY, 1, 4).selectExpr("id", "id % 7 as rest")
    options = {"key": "id", "write_id": "day-1", "options": '{"remove_on_complete": true}'}
    write(frame, **options)
    assert sorted(job.data["id"] for job in jobs(queue)) == list(range(MANY))
    write(frame, **options)
    assert len(jobs(queue)) == MANY
    done: list[Any] = []
    run_worker(["etl"], {"load": lambda ctx: done.append(ctx.job_id)}, concurrency=50)
    eventually(lambda: len(done) == MANY and not jobs(queue), timeout=60)
    write(frame, **options)
    assert queue.counts(indexed_only=True)[JobState.WAITING] == 0
    assert len(done) == MANY
    write(frame.limit(3), **options | {"write_id": "day-2"})
    eventually(lambda: len(done) == MANY + 3)


def test_a_task_that_fails_half_way_and_runs_again_adds_each_row_once(
    patient: SparkSession, write: Write, queue: Queue, tmp_path: Path
) -> None:
    patient.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    marks = str(tmp_path)

    def fails_at_first(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            mark = Path(marks, f"{batch.column(0)[0].as_py() // 500}")
            if number == 8 and not mark.exists():
                mark.touch()
                raise OSError("the disk is gone")
            yield batch

    frame = patient.range(0, 1_000, 1, 2).mapInArrow(fails_at_first, "id long")
    try:
        write(frame, key="id")
    finally:
        patient.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list(tmp_path.iterdir())) == 2, "no task has failed"
    assert sorted(job.data["id"] for job in jobs(queue)) == list(range(1_000))


@pytest.mark.long
def test_values_of_every_type_become_json(patient: SparkSession, write: Write, queue: Queue) -> None:
    patient.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = patient.sql(
            """select 1 as id, cast(null as string) as nothing, double('NaN') as n, float('-inf') as f,
                  cast('1.50' as decimal(38, 2)) as d, timestamp'2026-11-01 01:30:00' as t,
                  timestamp_ntz'2026-11-01 01:30:00' as l, date'2026-01-02' as day, x'00ff' as x,
                  named_struct('a', array(named_struct('b', 9007199254740993)), 'c', null) as s,
                  map(1, array(true, null), 2, array()) as m, '\u00fc\u2028"\\\\\U0001f600' as u,
                  repeat('y', 900000) as long"""
        )
        write(frame, key='["id", "t", "d", "x"]')
    finally:
        patient.conf.set("spark.sql.session.timeZone", "UTC")
    [job] = jobs(queue)
    assert job.data == {
        "id": 1, "nothing": None, "n": "NaN", "f": "-Infinity", "d": "1.50",
        "t": "2026-11-01T05:30:00+00:00", "l": "2026-11-01T01:30:00", "day": "2026-01-02", "x": "AP8=",
        "s": {"a": [{"b": 9007199254740993}], "c": None}, "m": {"1": [True, None], "2": []},
        "u": '\u00fc\u2028"\\\U0001f600', "long": "y" * 900_000,
    }  # fmt: skip


@pytest.mark.long
def test_columns_give_payload_and_options(patient: SparkSession, write: Write, queue: Queue) -> None:
    frame = patient.sql(
        """select id, to_json(named_struct('n', id)) as body, if(id = 0, null, cast(id as int)) as rank,
              if(id = 1, 3600, null) as pause, concat('k', id) as customer from range(3)"""
    )
    options = {"data": "body", "priority": "rank", "delay": "pause", "ordering_key": "customer"}
    write(
        frame, key="id", attempts="3", options='{"timeout": 60, "ordering": {"key": "x", "concurrency": 2}}'
    )
    assert {job.max_attempts for job in jobs(queue)} == {3}
    assert {job.ordering_key for job in jobs(queue)} == {"x"}
    queue.drain()
    write(frame, key="id", write_id="w", **options)
    delayed, first = jobs(queue, JobState.DELAYED), jobs(queue, JobState.PRIORITIZED)
    found = {job.data["n"]: job for job in [*jobs(queue), *delayed, *first]}
    assert [(n, found[n].priority, found[n].ordering_key) for n in range(3)] == [
        (0, 0, "k0"), (1, 1, "k1"), (2, 2, "k2"),
    ]  # fmt: skip
    assert [job.data for job in delayed] == [{"n": 1}]
    write(patient.sql("select array(1, 2) as data"), data="data", priority="7", queue="plain")
    with Queue("plain", queue._settings) as plain:
        assert [job.data for job in jobs(plain, JobState.PRIORITIZED)] == [[1, 2]]


@pytest.mark.long
def test_without_a_key_equal_rows_are_one_job(patient: SparkSession, write: Write, queue: Queue) -> None:
    write(patient.sql("select id % 3 as one, cast(null as int) as two from range(9)"))
    assert sorted(job.data["one"] for job in jobs(queue)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("select", "options", "why"),
    [
        ("id / 2 as h", {"key": "h"}, "column h of the option key is of type double; a key must be a string"),
        ("id", {"url": "valkey://127.0.0.1:1"}, "cannot connect to valkey://127.0.0.1:1"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ("if(id = 1, null, id) as id", {"key": "id"}, "has null in its key, in column id"),
                ("'{' as d", {"data": "d"}, "column d is not JSON: JSONDecodeError, in the row of job row-"),
                (
                    "5000 as p",
                    {"priority": "p"},
                    "priority must be at most 2048, got 5000, in column p of the row of",
                ),
                (
                    "repeat('x', 1048576) as d",
                    {"key": "d"},
                    "the limit is 1,048,576. Fix: write the data to a file",
                ),
                (
                    "-1 as d",
                    {"delay": "d"},
                    "delay in seconds must be a whole number of at least 0, got -1, in column",
                ),
                (
                    "1000000000000000 as d",
                    {"delay": "d"},
                    "delay in seconds must be at most 864000000, got 10000000",
                ),
            ]
        ),
        ("id", {"write_id": ""}, "the option write_id of a write to glidemq must be 1 to 256 characters"),
    ],
)
def test_what_cannot_be_added_is_told_in_a_sentence_and_adds_nothing(  # noqa: PLR0917  a case
    patient: SparkSession, write: Write, queue: Queue, select: str, options: dict[str, str], why: str
) -> None:
    frame = patient.range(1, 2).selectExpr(select)
    with pytest.raises(Exception, match="glidemq") as told:
        write(frame, **options)
    assert why in str(told.value)
    assert queue.counts(indexed_only=True)[JobState.WAITING] == 0


@pytest.mark.long
def test_a_frame_without_columns_is_refused(patient: SparkSession, write: Write, queue: Queue) -> None:
    with pytest.raises(Exception, match="the frame has no columns: its rows would all be one job"):
        write(patient.range(3).select())
    assert queue.counts(indexed_only=True)[JobState.WAITING] == 0


@pytest.mark.long
def test_jobs_are_never_overwritten(patient: SparkSession, url: str) -> None:
    writing = patient.range(1).write.format("glidemq").options(url=url, queue="etl", name="load")
    with pytest.raises(Exception, match=r'jobs can only be added: write to glidemq with .mode\("append"\)'):
        writing.mode("overwrite").save()


def test_rows_are_forgotten_when_their_time_is_over(queue: Queue, redis_client: Any) -> None:
    options = Options({"queue": "etl", "name": "load", "key": "id", "remember": "60"}, WRITE, "a write")
    rows = RowJobs.read(options, StructType([StructField("id", LongType())]))
    queue.add_many(rows.jobs("w", [(number,) for number in range(300)]))
    key = "glide:{etl}:dedup"
    assert redis_client.hlen(key) == 300
    redis_client.hset(key, "of-others", "1:1000")
    now_ms = round(queue.now().timestamp() * 1000)
    assert queue._run(forget_old(queue._keys, now_ms + 60_000)) == 0
    assert queue._run(forget_old(queue._keys, now_ms + 3_700_000)) == 300
    assert redis_client.hkeys(key) == ["of-others"]


@pytest.mark.long
def test_a_stream_writes_each_batch_once(
    patient: SparkSession, url: str, queue: Queue, tmp_path: Path
) -> None:
    source = tmp_path / "source"

    def run() -> None:
        stream = patient.readStream.schema("id long").json(str(source))
        place = {"url": url, "queue": "etl", "name": "load", "key": "id"}
        writing = stream.writeStream.format("glidemq").options(**place)
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination(120)

    patient.range(10).write.json(str(source))
    run()
    forget_last_commit(tmp_path / "checkpoint" / "commits")
    patient.range(10, 15).write.mode("append").json(str(source))
    run()
    assert sorted(job.data["id"] for job in jobs(queue)) == list(range(15))
    assert json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
