"""Steps on a real Spark Connect server."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyspark
import pytest

from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.errors import ConfigurationError, LeaseLost
from glidemq_orchestrate.spark import handler
from glidemq_orchestrate.spark.failures import SessionGone, StepCancelled, StepFailed
from glidemq_orchestrate.spark.hosts.pool import Hosts
from glidemq_orchestrate.spark.published.acceptance import make_versions
from glidemq_orchestrate.spark.setup.request import SessionRequest
from glidemq_orchestrate.spark.setup.spark_settings import CONF_VARIABLE, MASTER_VARIABLE
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from tests.conftest import Eventually
from tests.processes import end, spawn
from tests.spark.conftest import MakeRun, Run

pytestmark = pytest.mark.long
IDLE_SECONDS = 4
"""After which the server closes a session."""

STEPS = """
    import os, signal, threading, time
    from pathlib import Path
    from pyspark.sql import SparkSession, functions as F
    from glidemq_orchestrate.spark import publish, read_published

    def about(spark, ctx):
        found = []
        thread = threading.Thread(target=lambda: found.append(SparkSession.builder.getOrCreate() is spark))
        thread.start()
        thread.join()
        spark.stop()
        names = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.glidemq.user")
        return {
            "pid": os.getpid(),
            "rows": spark.range(10).groupBy(F.col("id") % 2).count().count(),
            "active": found + [SparkSession.getActiveSession() is spark],
            "conf": [spark.conf.get(name, None) for name in names],
        }

    def slow(spark, ctx, *, begun, seconds=60):
        @F.udf("int")
        def wait(number):
            import time
            Path(begun).touch()
            time.sleep(seconds)
            return 1
        return spark.range(1).select(wait("id")).collect()[0][0]

    def idles(spark, ctx, *, seconds, stopped=False):
        spark.range(7).createOrReplaceTempView("seven")
        if stopped and not os.fork():  # a child that lets it go on
            time.sleep(seconds)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP) if stopped else time.sleep(seconds)
        return spark.table("seven").count()

    def raises(spark, ctx, *, text):
        raise ValueError(text)

    def missing(spark, ctx):
        spark.read.parquet("/no/such/path").count()

    def table(spark, ctx, *, folder):
        return publish(ctx, folder, spark.range(4))

    def counted(spark, ctx, *, folder):
        return read_published(spark, folder).count()

    def jobs(spark, ctx, *, url):
        writing = spark.range(3).write.format("glidemq").options(url=url, queue="etl", name="a", key="id")
        writing.mode("append").save()
        return spark.read.format("glidemq").options(url=url, table="jobs").load().count()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("connect")
    (folder / "connect_steps.py").write_text(textwrap.dedent(STEPS))
    home = Path(pyspark.__file__).parent
    own = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "PYTHONPATH": str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    settings = {
        "grpc.binding.port": port,
        "grpc.binding.address": "127.0.0.1",
        "session.manager.defaultSessionTimeout": f"{IDLE_SECONDS}s",
        "session.manager.maintenanceInterval": "500ms",
    }
    with (folder / "log").open("wb") as log:
        process = spawn(
            [
                home / "bin" / "spark-submit", "--master", "local[2]", "--driver-memory", "1g",
                "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
                *[f"--conf=spark.connect.{name}={value}" for name, value in settings.items()],
            ],
            env={**os.environ, **own}, stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
        try:
            until = time.monotonic() + 120
            while not _answers(port):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.2)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(MASTER_VARIABLE, f"sc://127.0.0.1:{port}")
                patch.setenv(CONF_VARIABLE, json.dumps({"spark.sql.shuffle.partitions": 3}))
                patch.syspath_prepend(str(folder))
                yield f"sc://127.0.0.1:{port}"
        finally:
            end(process)


def _answers(port: int) -> bool:
    with closing(socket.socket()) as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def hosts(server: str) -> Iterator[Hosts]:
    pool = Hosts()
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()


Make = Callable[..., Run]


@pytest.fixture
def make(make_run: MakeRun) -> Make:
    def made(step: str, *, node: str = "step", data: Any = None, **arguments: Any) -> Run:
        return make_run(
            {"callable": f"connect_steps:{step}", "arguments": arguments, **(data or {})}, node=node
        )

    return made


def run(pool: Hosts, one: Run) -> Any:
    return json.loads(pool.run(one.ctx, "step", SessionRequest.of(one.ctx.data)).result)


def test_a_step_has_a_session_of_its_own_on_the_server(hosts: Hosts, make: Make) -> None:
    data = {"conf": {"spark.sql.session.timeZone": "Asia/Tokyo"}, "user": "Ana"}
    one = make("about", data=data)
    found = run(hosts, one)
    assert found["rows"] == 2
    assert found["active"] == [True, True]
    assert found["conf"] == ["3", "Asia/Tokyo", "Ana"]
    assert one.recorder.reported[-1]["tasks_done"] == one.recorder.reported[-1]["tasks"] > 0
    again = run(hosts, make("about"))  # the session of the first attempt was closed
    assert again["conf"][0] == "3"
    assert again["conf"][1] != "Asia/Tokyo"


def test_a_step_reads_and_adds_jobs_on_the_server(hosts: Hosts, make: Make) -> None:
    with EmbeddedServer() as valkey:
        assert run(hosts, make("jobs", url=valkey.url)) == 3


def test_a_cancel_interrupts_what_runs_on_the_server(
    hosts: Hosts, make: Make, tmp_path: Path, eventually: Eventually
) -> None:
    one = make("slow", begun=str(tmp_path / "begun"))
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(run, hosts, one)
        eventually(lambda: (tmp_path / "begun").exists() or step.done(), timeout=60)
        one.cancelled.set()
        began = time.monotonic()
        with pytest.raises(StepCancelled):
            step.result(timeout=30)
        assert time.monotonic() - began < 5


def test_the_session_of_a_step_that_is_idle_for_long_is_kept(hosts: Hosts, make: Make) -> None:
    assert run(hosts, make("idles", node="idle", seconds=3 * IDLE_SECONDS)) == 7


def test_a_session_that_the_server_has_closed_is_a_failure_that_says_so(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs an attempt, and nobody says that memory ran out: the server goes on, and so does the host."""
    pool = Hosts()
    try:
        pool.start()
        monkeypatch.setattr(handler, "hosts", pool)
        before = pool.pids
        one = make("idles", node="stopped", seconds=2 * IDLE_SECONDS, stopped=True)
        with pytest.raises(StepFailed, match=r"has closed the session .*defaultSessionTimeout") as caught:
            handler.run_python_step(one.ctx)
        assert "memory" not in str(caught.value)
        assert not handler.losses.is_suspect("spark:job-stopped")
        assert run(pool, make("idles", node="next", seconds=0)) == 7
        assert pool.pids == before
    finally:
        pool.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_attempt_ends_what_a_lost_client_has_left_running(
    hosts: Hosts, make: Make, tmp_path: Path, eventually: Eventually, how: signal.Signals
) -> None:
    """Of the same job: the query of the first would run for a minute and hold its executor."""
    other = Hosts()
    try:
        other.start()
        (pid,) = other.pids
        with ThreadPoolExecutor(2) as threads:
            name = f"job-{how.name}"
            lost = threads.submit(run, other, make("slow", node=name, begun=str(tmp_path / "begun")))
            eventually(lambda: (tmp_path / "begun").exists() or lost.done(), timeout=60)
            os.kill(pid, how)
            second = make("slow", node=name, begun=str(tmp_path / "two"), seconds=0)
            began = time.monotonic()
            assert run(hosts, second) == 1
            assert time.monotonic() - began < 20
            if how == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
            with pytest.raises(SessionGone):
                lost.result(timeout=60)
    finally:
        other.stop()


def test_an_older_attempt_does_not_end_a_newer_one(
    hosts: Hosts, make: Make, tmp_path: Path, eventually: Eventually
) -> None:
    newer, older = (make("slow", node="fenced", begun=str(tmp_path / n), seconds=5) for n in ("new", "old"))
    older.ctx.epoch = newer.ctx.epoch - 1_000
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(run, hosts, newer)
        eventually(lambda: (tmp_path / "new").exists() or step.done(), timeout=60)
        with pytest.raises(LeaseLost, match="another attempt runs job"):
            run(hosts, older)
        assert step.result(timeout=60) == 1
    assert not (tmp_path / "old").exists()


@pytest.mark.parametrize("text", ["status UNAVAILABLE", "SESSION_CLOSED", "OPERATION_CANCELED"])
def test_an_error_of_the_steps_own_is_not_taken_for_a_lost_session(
    hosts: Hosts, make: Make, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        run(hosts, make("raises", text=text))


def test_errors_of_the_server_are_told_like_any_other(hosts: Hosts, make: Make) -> None:
    with pytest.raises(StepFailed, match=r"^\[PATH_NOT_FOUND\] .*no/such/path.* Fix: check that"):
        run(hosts, make("missing"))
    with pytest.raises(InvalidCall, match="is not a setting of Spark SQL"):
        run(hosts, make("about", data={"conf": {"spark.sql.warehouse.dir": "/x"}}))
    with pytest.raises(InvalidCall, match="Spark Connect"):
        run(hosts, make("about", data={"conf": {"spark.driver.memory": "4g"}}))


def test_tables_are_published_where_worker_and_server_share_a_folder(
    hosts: Hosts, make: Make, tmp_path: Path
) -> None:
    one = make("table", folder=str(tmp_path / "t"))
    outcome = hosts.run(one.ctx, "step", SessionRequest())
    make_versions(outcome.published)
    assert json.loads(outcome.result)["published"]["rows"] == 4
    assert run(hosts, make("counted", folder=str(tmp_path / "t"))) == 4


@pytest.mark.usefixtures("server")
def test_a_url_that_is_none_is_refused_without_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    server = os.environ[MASTER_VARIABLE]
    monkeypatch.setenv(MASTER_VARIABLE, f"{server}/;token=hunter2==")
    pool = Hosts()
    try:
        with pytest.raises(ConfigurationError, match="is not the URL of a Spark Connect server") as caught:
            pool.start()
        assert "hunter2" not in str(caught.value)
    finally:
        pool.stop()


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv(MASTER_VARIABLE, f"sc://127.0.0.1:{port}/;token=hunter2")
    pool, began = Hosts(), time.monotonic()
    try:
        with pytest.raises(ConfigurationError, match="GLIDEMQ_SPARK_MASTER") as caught:
            pool.start()
        assert "hunter2" not in str(caught.value)
        assert time.monotonic() - began < 60
    finally:
        pool.stop()
