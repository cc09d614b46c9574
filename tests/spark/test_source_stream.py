"""Events as a stream: each once, and none lost unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Queue
from glidemq_orchestrate.clients.queue import NewJob
from glidemq_orchestrate.errors import ConfigurationError, EventsLost
from glidemq_orchestrate.spark import GlideMQDataSource
from glidemq_orchestrate.spark.source.stream import EventStreamReader
from tests.spark.conftest import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., list[Any]]


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url=url) as opened:
        yield opened


@pytest.fixture
def run(spark: SparkSession, url: str, tmp_path: Path) -> Run:
    """Read what is new, and return the jobs of all events so far."""
    spark.dataSource.register(GlideMQDataSource)
    out, place = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def running(**options: Any) -> list[Any]:
        given = {"url": url, "table": "events", "queue": '["etl", "bi"]', "startingOffsets": "earliest"}
        stream = spark.readStream.format("glidemq").options(**given | options).load()
        writing = stream.writeStream.format("json").option("path", out).option("checkpointLocation", place)
        writing.trigger(availableNow=True).start().awaitTermination(120)
        rows = spark.read.schema("queue string, event_id string, job_id string").json(out).collect()
        assert len({(row.queue, row.event_id) for row in rows}) == len(rows)
        return sorted((row.queue, int(row.job_id)) for row in rows)

    return running


@pytest.mark.long
def test_each_event_comes_once_and_what_is_lost_is_told(
    run: Run, queue: Queue, url: str, tmp_path: Path, redis_client: Any
) -> None:
    queue.add_many(NewJob("a") for _ in range(3))
    assert run() == [("etl", 1), ("etl", 2), ("etl", 3)]
    queue.add("a")
    with Queue("bi", url=url) as other:
        other.add("a")
    expected = [("bi", 1), ("etl", 1), ("etl", 2), ("etl", 3), ("etl", 4)]
    assert run() == expected
    forget_last_commit(tmp_path / "checkpoint" / "commits")
    assert run() == expected

    queue.add_many(NewJob("a") for _ in range(10))
    redis_client.xtrim("glide:{etl}:events", maxlen=4, approximate=False)
    with pytest.raises(Exception, match="6 events of queue etl were trimmed, or removed with it, before"):
        run()
    assert run(failOnDataLoss="false") == sorted([*expected, *(("etl", number) for number in range(11, 15))])


@pytest.mark.long
def test_a_queue_of_the_checkpoint_that_is_named_no_more_is_refused(run: Run, queue: Queue, url: str) -> None:
    queue.add("a")
    with Queue("bi", url=url) as other:
        other.add("a")
    assert run() == [("bi", 1), ("etl", 1)]
    why = "the checkpoint of this stream reads queue etl, which the option queue leaves out: name it again"
    with pytest.raises(Exception, match=why):
        run(queue="bi")
    queue.add("a")
    assert run() == [("bi", 1), ("etl", 1), ("etl", 2)]


def test_a_stream_of_all_queues_goes_on_without_one_that_is_gone(url: str) -> None:
    start, end = {"a": "1-0 1", "b": "1-0 1"}, {"b": "2-0 2"}
    named = {"url": url, "table": "events", "queue": "b"}
    [part] = EventStreamReader.of({"url": url, "table": "events"}).partitions(start, end)
    assert [one.queue for one in part.value] == ["b"]
    with pytest.raises(ConfigurationError, match="reads queue a, which the option queue leaves out"):
        EventStreamReader.of(named).partitions(start, end)
    with pytest.raises(ConfigurationError, match=r"reads queue a \(and 2 more\), which"):
        EventStreamReader.of(named).partitions({"b": "1-0 1", "c": "1-0 1", "d": "1-0 1", **start}, end)


def test_events_of_a_new_queue_that_are_gone_are_told(url: str, queue: Queue, redis_client: Any) -> None:
    queue.add_many(NewJob("a") for _ in range(10))
    redis_client.xtrim("glide:{etl}:events", maxlen=4, approximate=False)
    given = {"url": url, "table": "events", "queue": '["bi", "etl"]'}
    reader = EventStreamReader.of(given)
    [part] = reader.partitions({"bi": "0-0 0"}, reader.latestOffset())
    with pytest.raises(EventsLost) as told:
        list(reader.read(part))
    assert str(told.value) == (
        "6 older events of queue etl, which is new to this checkpoint, are gone: "
        "set the option failOnDataLoss to false to continue with the existing events"
    )
    reader.stop()
    reader = EventStreamReader.of({**given, "failOnDataLoss": "false"})
    [part] = reader.partitions({"bi": "0-0 0"}, reader.latestOffset())
    assert [batch.num_rows for batch in reader.read(part)] == [4]
    reader.stop()


@pytest.mark.parametrize("new", [0, 5, 13, 20, 27, 40])
def test_a_queue_that_began_anew_is_told_however_many_events_it_has(url: str, queue: Queue, new: int) -> None:
    given = {"url": url, "table": "events", "queue": "etl"}
    queue.add_many(NewJob("a") for _ in range(20))
    reader = EventStreamReader.of(given)
    start = reader.latestOffset()
    queue.add_many(NewJob("a") for _ in range(7))  # which nobody reads
    queue.obliterate()
    queue.add_many(NewJob("a") for _ in range(new))
    [part] = reader.partitions(start, reader.latestOffset())
    said = "queue etl has begun again since it was last read" if new else "or removed with it, before they"
    with pytest.raises(EventsLost, match=said):
        list(reader.read(part))
    reader.stop()
    reader = EventStreamReader.of({**given, "failOnDataLoss": "false"})
    assert sum(batch.num_rows for batch in reader.read(part)) == new
    reader.stop()


def test_a_queue_that_began_anew_with_a_clock_behind_is_read_whole(
    url: str, queue: Queue, redis_client: Any
) -> None:
    given = {"url": url, "table": "events", "queue": "etl", "failOnDataLoss": "false"}
    redis_client.xadd("glide:{etl}:events", {"event": "added", "jobId": "7"}, id="99999999999999-0")
    reader = EventStreamReader.of(given)
    start = reader.latestOffset()
    queue.obliterate()
    queue.add_many(NewJob("a") for _ in range(3))
    [part] = reader.partitions(start, reader.latestOffset())
    assert sum(batch.num_rows for batch in reader.read(part)) == 3
    reader.stop()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table": "jobs"}, "only the table events can be read as a stream; read the others again"),
        ({"since": "2026-01-01T00:00:00Z"}, "a stream of glidemq has no option since; it has ca, cert"),
        ({"url": "no"}, "the URL does not name a server: it must begin with one of valkey://"),
    ],
)
def test_options_that_no_stream_has_are_told_by_its_last_error(
    spark: SparkSession, url: str, tmp_path: Path, options: dict[str, str], why: str
) -> None:
    spark.dataSource.register(GlideMQDataSource)
    stream = spark.readStream.format("glidemq").options(**{"url": url, "table": "events"} | options).load()
    writing = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="glidemq") as told:
        writing.trigger(availableNow=True).start().awaitTermination(60)
    assert why in [line for line in str(told.value).splitlines() if "Error: " in line][-1]


@pytest.mark.long
def test_trimmed_events_that_were_read_are_not_lost(run: Run, queue: Queue, redis_client: Any) -> None:
    queue.add_many(NewJob("a") for _ in range(20))
    redis_client.xtrim("glide:{etl}:events", maxlen=10, approximate=False)
    assert len(run()) == 10, "it begins with the oldest that is left"
    redis_client.xtrim("glide:{etl}:events", maxlen=0, approximate=False)
    queue.add("a")
    assert len(run()) == 11


def test_a_stream_without_queues_finds_them_and_begins_with_what_comes(url: str, queue: Queue) -> None:
    queue.add("a")
    given = {"url": url, "table": "events"}
    reader = EventStreamReader.of(given)
    start = reader.initialOffset()
    assert [(name, offset.split()[1]) for name, offset in start.items()] == [("etl", "1")]
    queue.add("a")
    with Queue("new", url=url) as other:
        other.add("a")
    reader._discovered_at = -1e9  # half a minute later
    end = reader.latestOffset()
    [partition] = reader.partitions(start, end)
    batches = list(reader.read(partition))
    assert [(batch.column("queue")[0].as_py(), batch.num_rows) for batch in batches] == [
        ("etl", 1),
        ("new", 1),
    ]
    assert reader.partitions(end, end) == []
    redis_removed = {"etl": "0-0 0"}
    assert len(reader.partitions({"etl": end["etl"]}, redis_removed)) == 1
    reader.stop()
    reader.stop()
