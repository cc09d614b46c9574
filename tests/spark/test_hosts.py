"""Session hosts: real processes with a real session each."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from glidemq_orchestrate import FlowNode, Queue
from glidemq_orchestrate.errors import JavaMissing, LeaseLost
from glidemq_orchestrate.spark.failures import SessionGone, SessionUnfit, StepCancelled
from glidemq_orchestrate.spark.hosts import host, pool
from glidemq_orchestrate.spark.hosts.pool import Hosts
from glidemq_orchestrate.spark.setup.request import SessionRequest
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.signals import RetryLater
from tests.conftest import Eventually
from tests.processes import runs
from tests.spark.conftest import MakeRun, Run

STEPS = """
    import collections, decimal, logging, multiprocessing, os, sys, threading, time
    from datetime import timedelta
    from pathlib import Path
    from glidemq_orchestrate import FlowNode, RetryLater
    from glidemq_orchestrate.spark import publish

    def about(spark, ctx, *, rows=3):
        conf = spark.sparkContext.getConf()
        return {
            "pid": os.getpid(),
            "rows": spark.range(rows).count(),
            "memory": conf.get("spark.driver.memory"),
            "temporary": spark._jvm.java.lang.System.getProperty("java.io.tmpdir"),
            "description": spark.sparkContext.getLocalProperty("spark.job.description"),
            "told": [
                tell(f"spark.glidemq.{name}")
                for tell in (lambda name: spark.conf.get(name, None), spark.sparkContext.getLocalProperty)
                for name in ("queue", "job", "node", "user")
            ],
        }

    def counts_jobs(spark, ctx, *, url):
        return spark.read.format("GlideMQ").options(url=url, table="jobs").load().count()

    def talks(spark, ctx):
        ctx.log("by hand")
        logging.getLogger("mine").warning("by %s", "logging", extra={"action": "tried", "odd": object()})
        logging.getLogger("mine").debug("not told")
        ctx.progress({"part": 1})
        ctx.check_owner()
        ctx.flow.add_nodes([FlowNode("more", queue="spark", job="other")], before=["last"])
        return ctx.inputs

    def checks(spark, ctx):
        try:
            ctx.check_owner()
        except Exception as exc:
            return type(exc).__name__

    def later(spark, ctx):
        raise RetryLater(timedelta(seconds=7), "not yet", counts=False)

    def leaves(spark, ctx, *, how):
        how == "os" and os._exit(3)
        sys.exit(4)

    def waits(spark, ctx, *, go):
        Path(go + ".begun").touch()
        while not Path(go).exists():
            time.sleep(0.05)
        return spark.range(5).count()

    def slow(spark, ctx, *, go):
        def wait(_):
            Path(go + ".begun").touch()
            time.sleep(60)
        spark.sparkContext.parallelize([1]).foreach(wait)

    def caches(spark, ctx, *, name):
        frame = spark.range(3).selectExpr(f"'{name}' as a").cache()
        frame.count()
        frame.createOrReplaceGlobalTempView(name)
        spark.sql(f"create global temporary view {name}2 as select 1 as a")
        spark.sql(f"cache table global_temp.{name}2")
        spark.sparkContext.parallelize([1]).cache().count()
        return left(spark, ctx)

    class Odd(str):
        def __new__(cls, one, two):
            return super().__new__(cls, one + two)

    def odd(spark, ctx, *, what):
        if what == "result":
            return collections.defaultdict(lambda: 0, a=1)
        if what == "progress":
            ctx.progress({"part": Odd("a", "b")})
            ctx.log(Odd("c", "d"))
            logging.getLogger("mine").warning(Odd("e", "f"), extra={"more": Odd("g", "h")})
        if what == "log":
            logging.getLogger("mine").warning("done", 3)
        if what == "error":
            raise Broken()
        return what

    class Broken(Exception):
        def __reduce__(self):
            raise RuntimeError("not to be pickled")

    def forks(spark, ctx):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            child = pool.apply(_logs)
        ctx.check_owner()
        return child

    def _logs():
        logging.getLogger("mine").warning("in a forked process")
        return os.getpid()

    def leaves_a_child(spark, ctx):
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        os.system("sleep 60 &")
        os._exit(3)

    def adds(spark, ctx, *, path):
        spark.sparkContext.addPyFile(path)
        os.environ["HOST_STEPS"] = path
        return os.environ["HOST_STEPS"]

    def rounds(spark, ctx):
        third = str(decimal.Decimal(1) / 3)
        decimal.getcontext().prec = 3
        return third

    def sets_up_logging(spark, ctx, *, go=None):
        if go:
            Path(go + ".begun").touch()
            while not Path(go).exists():
                time.sleep(0.05)
            logging.getLogger("mine").warning("as before")
        else:
            logging.basicConfig(level=logging.WARNING, force=True, handlers=[logging.NullHandler()])

    def left_in_the_process(spark, ctx):
        return os.environ.get("HOST_STEPS")

    def left(spark, ctx):
        storage = spark.sparkContext._jsc.sc().getRDDStorageInfo()
        views = [table.name for table in spark.catalog.listTables("global_temp")]
        return {"cached": len(storage), "views": sorted(views)}
"""


WORKER = """
import time
from glidemq_orchestrate.spark.hosts.pool import hosts
hosts.start()
print(hosts.pids, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def _steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("package")
    (folder / "host_steps.py").write_text(textwrap.dedent(STEPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        yield


@contextmanager
def pool_of(**limits: Any) -> Iterator[Hosts]:
    hosts = Hosts()
    try:
        hosts.start()
        hosts._limits = replace(hosts._limits, **limits)
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture(scope="module")
def shared(_spark_environment: None) -> Iterator[Hosts]:
    """For tests that leave it as it was."""
    with pool_of() as hosts:
        yield hosts


@pytest.fixture
def make(make_run: MakeRun) -> Callable[..., Run]:
    def made(step: str, *, node: str = "step", data: Any = None, inputs: Any = None, **arguments: Any) -> Run:
        payload = {"callable": f"host_steps:{step}", "arguments": arguments, **(data or {})}
        return make_run(payload, inputs, node=node)

    return made


Make = Callable[..., Run]


def run(hosts: Hosts, one: Run, **how: Any) -> Any:
    return json.loads(hosts.run(one.ctx, "step", SessionRequest.of(one.ctx.data, os.environ), **how).result)


class TestOneHost:
    def test_a_step_that_needs_another_session_takes_none_from_others(
        self, shared: Hosts, make: Make, tmp_path: Path, eventually: Eventually
    ) -> None:
        paths = [tmp_path / folder / "added_by_steps.py" for folder in "ab"]
        for path in paths:
            path.parent.mkdir()
            path.write_text(str(path))
        before = shared.pids
        assert run(shared, make("adds", path=str(paths[0]))) == str(paths[0])
        with pytest.raises(SessionUnfit, match=r"a different file added_by_steps\.py while it ran step"):
            run(shared, make("adds", path=str(paths[1])))
        own = make("adds", path=str(paths[1]), data={"session": "own"})
        assert run(shared, own) == str(paths[1])
        assert run(shared, make("about"))["pid"] in before
        eventually(lambda: shared.pids == before, timeout=30)  # so the next has not what this one has left

    def test_a_step_runs_in_a_process_of_its_own_with_its_session(self, shared: Hosts, make: Make) -> None:
        found = run(shared, make("about", data={"user": "Ana of sales"}))
        assert found["pid"] in shared.pids
        assert found["pid"] != os.getpid()
        assert found["rows"] == 3
        assert [one.name.partition("-")[0] for one in Path(found["temporary"]).iterdir()]
        assert Path(found["temporary"]).parent == Path(tempfile.gettempdir())
        assert found["memory"] == "1g"
        assert found["description"] == "spark: step (job-step, attempt 1, Ana of sales)"
        assert found["told"] == ["spark", "job-step", "step", "Ana of sales"] * 2

    def test_what_libraries_keep_for_a_thread_is_that_of_a_step(self, shared: Hosts, make: Make) -> None:
        assert [len(run(shared, make("rounds"))) for _ in range(2)] == [30, 30]

    def test_a_step_reads_jobs_without_registering_the_data_source(
        self, shared: Hosts, make: Make, url: str
    ) -> None:
        with Queue("etl", url=url) as queue:
            queue.add("a")
        assert run(shared, make("counts_jobs", url=url)) == 1

    def test_what_a_step_says_reaches_its_job_and_the_log_of_the_worker(
        self, shared: Hosts, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        added = []

        class Flow:
            def add_nodes(self, nodes: Any, *, before: Any = ()) -> None:
                added.append((nodes, before))

        one = make("talks", inputs={"before": [1]})
        one.ctx.flow = Flow()  # type: ignore[assignment]
        assert run(shared, one) == {"before": [1]}
        assert one.recorder.lines == ["by hand", "WARNING by logging"]
        assert {"part": 1} in one.recorder.reported
        assert added == [([FlowNode("more", queue="spark", job="other")], ("last",))]
        (record,) = [record for record in caplog.records if record.name == "mine"]
        assert (record.getMessage(), record.levelno) == ("by logging", logging.WARNING)
        assert record.__dict__["action"] == "tried"

    def test_what_a_step_does_to_logging_takes_no_line_from_another(
        self,
        shared: Hosts,
        make: Make,
        tmp_path: Path,
        eventually: Eventually,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        beside, go = make("sets_up_logging", go=str(tmp_path / "go")), tmp_path / "go"
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(run, shared, beside)
            eventually((tmp_path / "go.begun").exists, timeout=30)
            run(shared, make("sets_up_logging"))
            go.touch()
            running.result(30)
        assert beside.recorder.lines == ["WARNING as before"]
        run(shared, later := make("sets_up_logging", go=str(go)))
        assert later.recorder.lines == ["WARNING as before"]
        assert "as before" in caplog.text

    def test_errors_travel_both_ways_with_their_classes(
        self, shared: Hosts, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(RetryLater, match="not yet") as caught:
            run(shared, make("later"))
        assert (caught.value.delay.seconds, caught.value.counts) == (7, False)
        with pytest.raises(Exception, match="4") as exits:
            run(shared, make("leaves", how="sys"))
        assert type(exits.value).__name__ == "SystemExit"
        with pytest.raises(InvalidCall, match="has no nothing"):
            run(shared, make("nothing"))
        one = make("checks")

        def lost() -> None:
            raise LeaseLost("gone")

        monkeypatch.setattr(one.recorder, "check_owner", lost)
        assert run(shared, one) == "LeaseLost"
        assert run(shared, make("about"))["rows"] == 3

    @pytest.mark.parametrize("what", ["result", "progress", "log", "error"])
    def test_what_cannot_travel_harms_no_step(self, shared: Hosts, make: Make, what: str) -> None:
        one = make("odd", what=what)
        if what == "error":
            with pytest.raises(Exception, match=r"^$") as caught:
                run(shared, one)
            assert type(caught.value).__name__ == "Broken"
        else:
            assert run(shared, one) == ({"a": 1} if what == "result" else what)
        if what == "progress":
            assert one.recorder.lines == ["cd", "WARNING ef"]
        assert run(shared, make("about"))["rows"] == 3

    def test_a_process_that_a_step_forks_reports_nothing_and_ends(self, shared: Hosts, make: Make) -> None:
        one = make("forks")
        assert run(shared, one) not in {0, os.getpid(), *shared.pids}
        assert one.recorder.lines == []
        assert run(shared, make("about"))["rows"] == 3

    def test_a_cancel_reaches_what_runs_on_the_executors(
        self, shared: Hosts, make: Make, tmp_path: Path, eventually: Eventually
    ) -> None:
        one = make("slow", go=str(tmp_path / "go"))
        with ThreadPoolExecutor(1) as threads:
            step = threads.submit(run, shared, one)
            eventually((tmp_path / "go.begun").exists, timeout=30)
            one.cancelled.set()
            began = time.monotonic()
            with pytest.raises(StepCancelled):
                step.result(timeout=30)
            assert time.monotonic() - began < 5

    def test_what_a_step_caches_and_its_global_views_end_with_it(self, shared: Hosts, make: Make) -> None:
        inside = run(shared, make("caches", name="mine"))
        assert inside["cached"] >= 2
        assert inside["views"] == ["mine", "mine2"]
        assert run(shared, make("left")) == {"cached": 0, "views": []}

    def test_settings_that_may_run_code_are_refused(self, shared: Hosts, make: Make) -> None:
        with pytest.raises(InvalidCall, match=r"spark\.jars: they are the worker's"):
            run(shared, make("about", data={"conf": {"spark.jars": "/tmp/evil.jar"}}))
        with pytest.raises(InvalidCall, match="is not a setting of Spark SQL"):
            run(shared, make("about", data={"conf": {"spark.sql.warehouse.dir": "/tmp/x"}}))


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
class TestSeveralHosts:
    def test_settings_of_a_session_make_one_and_the_next_step_uses_it(self, make: Make) -> None:
        with pool_of() as hosts:
            small = run(hosts, make("about"))["pid"]
            data = {"conf": {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": 3}}
            first, second = (run(hosts, make("about", data=data)) for _ in range(2))
            assert first["pid"] == second["pid"] != small
            assert first["memory"] == "700m"
            assert run(hosts, make("about"))["pid"] == small

    def test_a_session_of_its_own_has_nothing_of_another(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "added_by_steps.py").touch()
        with pool_of() as hosts:
            run(hosts, make("adds", path=str(tmp_path / "added_by_steps.py"), data={"session": "own"}))
            assert run(hosts, make("left_in_the_process", data={"session": "own"})) is None

    def test_a_step_waits_for_a_session_of_its_own_while_all_are_in_use(
        self, make: Make, tmp_path: Path, eventually: Eventually
    ) -> None:
        data, go = {"session": "own"}, str(tmp_path / "go")
        with pool_of(sessions=2) as hosts, ThreadPoolExecutor(3) as threads:
            waiting = threads.submit(run, hosts, make("waits", data=data, go=go))
            eventually((tmp_path / "go.begun").exists, timeout=60)
            second, third = make("about", data=data), make("about", data=data)
            steps = [threads.submit(run, hosts, one) for one in (second, third)]
            eventually(lambda: second.recorder.lines and third.recorder.lines, timeout=30)
            assert "all 2 Spark sessions of this worker are in use" in second.recorder.lines[0]
            third.cancelled.set()
            with pytest.raises(StepCancelled):
                steps[1].result(timeout=10)
            assert run(hosts, make("about"))["rows"] == 3  # the shared one has room
            Path(go).touch()
            assert waiting.result(timeout=30) == 5
            assert steps[0].result(timeout=60)["rows"] == 3

    def test_a_worn_session_is_replaced_before_it_ends(self, make: Make, eventually: Eventually) -> None:
        with pool_of(steps=2) as hosts:
            first = [run(hosts, make("about"))["pid"] for _ in range(2)]
            assert first[0] == first[1]
            ready = []

            def is_replaced() -> bool:
                ready.append({place.host.pid for place in hosts._members if place.is_ready})
                return first[0] not in hosts.pids

            eventually(is_replaced, timeout=60)
            assert ready[0] == {first[0]}
            assert all(ready)  # at each moment there is one that takes steps
            assert run(hosts, make("about"))["pid"] in ready[-1] - {first[0]}


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
class TestEnds:
    @pytest.mark.parametrize("how", ["a step", "kill -9", "the JVM", "and leaves a child"])
    def test_a_host_that_ends_takes_its_steps_along_and_the_next_gets_another(
        self,
        make: Make,
        tmp_path: Path,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
        how: str,
    ) -> None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
        with pool_of() as hosts, ThreadPoolExecutor(2) as threads:
            (pid,) = hosts.pids
            neighbour = threads.submit(run, hosts, make("slow", go=str(tmp_path / "go")))
            eventually((tmp_path / "go.begun").exists, timeout=30)
            below = psutil.Process(pid).children(recursive=True)
            if how == "and leaves a child":
                with pytest.raises(SessionGone, match="ended with exit code 3"):
                    run(hosts, make("leaves_a_child"))
                below = []
            elif how == "a step":
                with pytest.raises(SessionGone, match="ended with exit code 3 while it ran step"):
                    run(hosts, make("leaves", how="os"))
            else:
                java = next(one for one in below if one.name() == "java")
                (psutil.Process(pid) if how == "kill -9" else java).kill()
            with pytest.raises(SessionGone):
                neighbour.result(timeout=30)
            eventually(lambda: not any(map(runs, below)), timeout=30)
            assert run(hosts, make("about"))["rows"] == 3
            assert run(hosts, make("about"), fresh=True)["pid"] not in hosts.pids
            # What the killed JVM has written is gone, and what the living one has is there.
            eventually(lambda: len(list((tmp_path / "local").iterdir())) == 1, timeout=30)
            assert run(hosts, make("about"))["temporary"].startswith(str(tmp_path / "local"))
        assert not list((tmp_path / "local").iterdir())

    def test_a_step_that_does_not_stop_is_ended_with_its_host_once_it_is_alone(
        self, make: Make, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host, "CANCEL_GRACE_SECONDS", 1.0)
        with pool_of() as hosts, ThreadPoolExecutor(2) as threads:
            (pid,) = hosts.pids
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
            stubborn = make("waits", node="stubborn", go=str(tmp_path / "one" / "go"))
            steps = [
                threads.submit(run, hosts, stubborn),
                threads.submit(run, hosts, make("waits", go=str(tmp_path / "two" / "go"))),
            ]
            eventually(lambda: len(list(tmp_path.glob("*/go.begun"))) == 2, timeout=30)
            stubborn.cancelled.set()
            with pytest.raises(StepCancelled, match="but continued for 1 s"):
                steps[0].result(timeout=10)
            assert run(hosts, make("about"))["pid"] != pid
            assert pid in hosts.pids
            (tmp_path / "two" / "go").touch()
            assert steps[1].result(timeout=30) == 5
            eventually(lambda: not psutil.pid_exists(pid), timeout=30)

    @pytest.mark.parametrize("what", ["the host", "an idle JVM"])
    def test_one_that_does_not_reply_is_replaced(
        self, make: Make, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        for name, seconds in {"MEASURE": 0.5, "SILENT": 2.0, "KILL": 4.0}.items():
            monkeypatch.setattr(pool, f"{name}_SECONDS", seconds)
        with pool_of() as hosts, ThreadPoolExecutor(1) as threads:
            (pid,) = hosts.pids
            if what == "the host":
                step = threads.submit(run, hosts, make("waits", go=str(tmp_path / "go")))
                eventually((tmp_path / "go.begun").exists, timeout=30)
                psutil.Process(pid).suspend()
                with pytest.raises(SessionGone, match="was ended by SIGKILL"):
                    step.result(timeout=60)
            else:
                below = psutil.Process(pid).children(recursive=True)
                next(one for one in below if one.name() == "java").kill()
            eventually(lambda: pid not in hosts.pids and hosts.pids, timeout=60)
            assert run(hosts, make("about"))["rows"] == 3

    def test_a_signal_to_the_whole_group_leaves_a_step_to_its_worker(
        self, make: Make, tmp_path: Path, eventually: Eventually
    ) -> None:
        with pool_of() as hosts, ThreadPoolExecutor(1) as threads:
            (pid,) = hosts.pids
            step = threads.submit(run, hosts, make("waits", go=str(tmp_path / "go")))
            eventually((tmp_path / "go.begun").exists, timeout=30)
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
            (tmp_path / "go").touch()
            assert step.result(timeout=30) == 5

    def test_nothing_is_left_of_a_killed_worker(
        self, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
        process = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            below = psutil.Process(process.pid).children(recursive=True)
            assert [one for one in below if one.name() == "java"]
        finally:
            process.kill()
            process.communicate()
        eventually(lambda: not any(map(runs, below)), timeout=15)
        left = list(tmp_path.iterdir())
        assert left
        with pool_of():
            assert not [one for one in left if one.exists()]


def test_a_host_that_cannot_have_a_session_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    hosts = Hosts()
    try:
        with pytest.raises(JavaMissing, match=f"{tmp_path}/bin/java does not run"):
            hosts.start()
    finally:
        hosts.stop()  # meanwhile another try may have begun
    assert not hosts.pids
