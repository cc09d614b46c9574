"""Tables that workers publish: right once, whatever is killed, stopped or late."""

from __future__ import annotations

import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, JobState, Queue
from glidemq_orchestrate.spark import handlers, published_path, read_published, tidy
from glidemq_orchestrate.spark.published import acceptance, catching_up
from glidemq_orchestrate.spark.published.locations.store import LocalStore
from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.worker.handlers.handler import Handlers
from tests.processes import end, spawn
from tests.spark.published.writing import rows, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Eventually, RunWorker


@pytest.fixture
def queue(url: str) -> Any:
    with Queue("spark", url) as one:
        yield one


def step(name: str, after: list[str] | None = None, **arguments: Any) -> FlowNode:
    data: Any = {"callable": f"published_steps:{name}", "arguments": arguments}
    return FlowNode(name, queue="spark", job="spark.python", data=data, after=after or [])


@pytest.mark.usefixtures("_spark_environment")
class TestWorkers:
    def test_what_a_flow_publishes_is_seen_when_it_is_done(  # noqa: PLR0917  fixtures
        self, spark: SparkSession, url: str, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        table, files = str(tmp_path / "table"), str(tmp_path / "files")
        spec = FlowSpec(
            "published",
            [
                step("table", rows=5, folder=table),
                step("counted", ["table"], node="table"),
                step("report", ["counted"], folder=files),
            ],
        )
        with FlowProducer(url) as flows:
            results = flows.submit(spec).wait(timeout=timedelta(seconds=60)).results
        assert results["counted"] == 5
        eventually(lambda: versions(Path(files)))
        assert read_published(spark, table).count() == 5
        assert (published_path(files) / "report.txt").read_text() == "done"

    @pytest.mark.long
    def test_days_that_are_published_at_the_same_time_are_all_there(
        self, spark: SparkSession, url: str, run_worker: RunWorker, eventually: Eventually, tmp_path: Path
    ) -> None:
        run_worker(["spark"], handlers, allow_import=["published_steps"], concurrency=4)
        nodes = []
        for number in range(6):
            node = step("days", day=f"d{number}", rows=number + 1, folder=str(tmp_path))
            nodes.append(FlowNode(f"day{number}", queue=node.queue, job=node.job, data=node.data))
        with FlowProducer(url) as flows:
            flows.submit(FlowSpec("days", nodes)).wait(timeout=timedelta(seconds=90))
        eventually(lambda: len(versions(tmp_path)) == 6)
        found = read_published(spark, str(tmp_path)).groupBy("day").count().collect()
        assert {row.day: row["count"] for row in found} == {f"d{number}": number + 1 for number in range(6)}

    @pytest.mark.long
    def test_an_attempt_that_timed_out_ends_before_the_next_overwrites(
        self, spark: SparkSession, queue: Queue, run_worker: RunWorker, tmp_path: Path
    ) -> None:
        run_worker(["spark"], handlers, allow_import=["published_steps"], concurrency=2)
        folder = str(tmp_path / "table")
        spark.range(3).write.parquet(folder)
        options = JobOptions(attempts=2, timeout=timedelta(seconds=10))
        data = step("overwrites", folder=folder).data
        assert queue.add_and_wait("spark.python", data, options=options, timeout=timedelta(seconds=90)) == 2
        assert rows(spark.read.parquet(folder)) == [(n,) for n in range(8)]

    def test_what_a_worker_could_not_make_is_made_by_the_next(  # noqa: PLR0917  fixtures
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        with monkeypatch.context() as patch:  # as if it was killed between the two
            patch.setattr(acceptance.accepted, "make", lambda *_: None)
            first = run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
            data = step("table", rows=3, folder=str(tmp_path)).data
            queue.add_and_wait("spark.python", data, timeout=timedelta(seconds=60))
            first.stop()
        assert versions(tmp_path) == []
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.2)
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        eventually(lambda: versions(tmp_path), timeout=20)

    @pytest.mark.parametrize("gone", ["with its job", "its job removed", "its flow run again"])
    def test_a_version_is_made_though_its_job_is_gone(  # noqa: PLR0917
        self, url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, redis_client: Any, warm_handlers: Handlers, gone: str,
    ) -> None:  # fmt: skip
        """Accepted while ``versions`` cannot be written, or by a worker that dies right after it."""
        node = step("table", rows=3, folder=str(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr(acceptance.accepted, "make", lambda *_: None)
            first = run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
            if gone == "its flow run again":
                with FlowProducer(url) as flows:
                    flow = flows.submit(FlowSpec("f", [node]), flow_id="f")
                    flow.wait(timeout=timedelta(seconds=60))
                    first.stop()
                    flows.submit(FlowSpec("f", [node]), flow_id="f", on_existing="restart").cancel("enough")
            else:
                options = JobOptions(remove_on_complete=gone == "with its job")
                job_id = queue.add("spark.python", node.data, options=options)
                eventually(lambda: redis_client.exists("glide:{spark}:gmo:published"), timeout=60)
                first.stop()
                if gone == "its job removed":
                    queue.remove(job_id)
        assert versions(tmp_path) == []
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.2)
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        eventually(lambda: versions(tmp_path), timeout=20)
        eventually(lambda: not redis_client.exists("glide:{spark}:gmo:published"), timeout=20)

    def test_what_was_accepted_and_is_gone_is_told_once_and_noted_no_more(  # noqa: PLR0917  fixtures
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, redis_client: Any, caplog: pytest.LogCaptureFixture,
        warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        stays = Publication(str(tmp_path / "file"), "7-0123456789ab")
        (tmp_path / "file").touch()  # where a folder should be
        lost = Publication(str(tmp_path / "gone"), "8-0123456789ab")
        lines = {
            one: float(number) for number, one in enumerate([lost.line, stays.line, "of a later release"])
        }
        redis_client.zadd("glide:{spark}:gmo:published", lines)
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.05)
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        eventually(lambda: redis_client.zcard("glide:{spark}:gmo:published") == 2, timeout=30)
        job_id = queue.add("spark.python", step("looks_away").data)
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=60)
        assert caplog.text.count("was accepted but cannot be made") == 2
        assert "its data were removed. Fix: run the job again" in caplog.text

    @pytest.mark.long
    def test_a_worker_that_was_stopped_before_it_wrote_changes_nothing(  # noqa: PLR0917  fixtures
        self, spark: SparkSession, url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually,
        tmp_path: Path, warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        table, go = tmp_path / "table", tmp_path / "go"
        command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", url, "--queue", "spark"]
        command += ["--app", "glidemq_orchestrate.spark", "--allow-import", "published_steps", "--lease", "1"]
        stopped = spawn(command)
        try:
            data = step("waits", rows=4, folder=str(table), go=str(go)).data
            job_id = queue.add("spark.python", data)
            eventually(go.with_name("go.begun").exists, timeout=180)  # its JVM starts first
            stopped.send_signal(signal.SIGSTOP)
            run_worker(["spark"], warm_handlers, allow_import=["published_steps"], lease=timedelta(seconds=1))
            eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=60)
            eventually(lambda: versions(table))
            before = rows(read_published(spark, str(table)))
            go.touch()
            stopped.send_signal(signal.SIGCONT)
            eventually(lambda: len(LocalStore(table).names("attempts")) == 2, timeout=30)
            marker = queue.add("spark.python", step("table", rows=1, folder=str(tmp_path / "other")).data)
            eventually(lambda: queue.get_job(marker).state is JobState.COMPLETED, timeout=30)
        finally:
            end(stopped)
        assert len(versions(table)) == 1
        assert rows(read_published(spark, str(table))) == before == [(n,) for n in range(4)]
        assert tidy(str(table), grace=timedelta(0)) == 1
        assert rows(read_published(spark, str(table))) == before
