"""Workers that die, stop, lose their server or meet foreign producers: no job lost, none taken twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from glidemq_orchestrate import (
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    JobState,
    NewJob,
    Queue,
    Worker,
)
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed
from glidemq_orchestrate.worker.handlers.registered import JobEvent
from tests.processes import end, spawn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker

LONG = timedelta(seconds=60)
SECOND = timedelta(seconds=1)
STREAM = "glide:{etl}:stream"

APP = """
    import os, time
    from pathlib import Path
    from glidemq_orchestrate import Handlers
    from glidemq_orchestrate.errors import LeaseLost

    handlers = Handlers()

    @handlers.handler("quick")
    def quick(ctx):
        return os.getpid()

    @handlers.handler("hang")
    def hang(ctx):
        open(ctx.data, "w").close()
        ctx.cancelled.wait(60)
        return "late"

    @handlers.handler("fenced")
    def fenced(ctx):
        path = Path(ctx.data)
        path.touch()
        while not path.with_suffix(".go").exists():
            time.sleep(0.01)
        said = "not told"
        try:
            ctx.check_owner()
        except LeaseLost as exc:
            said = str(exc)
        path.with_suffix(".told").write_text(f"{ctx.epoch} {said}.")

    @handlers.handler("deaf")
    def deaf(ctx):
        open(ctx.data, "w").close()
        time.sleep(3)
        return "late"
"""


class StartProcess(Protocol):
    """Starts a worker of the queue ``etl`` as a process and waits until it serves."""

    def __call__(self, *options: str) -> subprocess.Popen[bytes]: ...


@pytest.fixture
def start_process(
    url: str, tmp_path: Path, redis_client: Any, eventually: Eventually
) -> Iterator[StartProcess]:
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        before = redis_client.zcard("glide:{etl}:gmo:workers")
        program = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "app", "--queue", "etl"]
        program += ["--url", url, "--processes", "1", *options]
        process = spawn(program, cwd=tmp_path, stderr=subprocess.DEVNULL)
        started.append(process)
        eventually(lambda: redis_client.zcard("glide:{etl}:gmo:workers") > before, timeout=60)
        return process

    yield start
    for process in started:
        end(process)


def nothing_is_held(redis_client: Any) -> bool:
    return bool(redis_client.xpending(STREAM, "workers")["pending"] == 0) and not [
        key for key in redis_client.keys("*:job:*") if redis_client.hget(key, "state") == "active"
    ]


class TestDying:
    def test_a_killed_worker_loses_no_job(  # noqa: PLR0917  fixtures
        self,
        queue: Queue,
        start_process: StartProcess,
        run_worker: RunWorker,
        redis_client: Any,
        eventually: Eventually,
        tmp_path: Path,
    ) -> None:
        process = start_process("--lease", "1")
        job_id = queue.add("hang", str(tmp_path / "begun"))
        eventually((tmp_path / "begun").exists)
        process.kill()
        run_worker(["etl"], {"hang": lambda ctx: f"attempt {ctx.attempt}"}, lease=SECOND)
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=20)
        assert queue.get_job(job_id).result == "attempt 1"
        assert nothing_is_held(redis_client)

    @pytest.mark.long
    def test_a_job_is_not_lost_when_the_worker_that_watches_it_leaves(  # noqa: PLR0917  fixtures
        self,
        queue: Queue,
        start_process: StartProcess,
        run_worker: RunWorker,
        redis_client: Any,
        eventually: Eventually,
        tmp_path: Path,
    ) -> None:
        process = start_process("--lease", "1")
        job_id = queue.add("hang", str(tmp_path / "begun"))
        eventually((tmp_path / "begun").exists)
        # It must not take the job over by itself, however late the process beats on a busy machine.
        watcher = run_worker(["etl"], {"hang": lambda ctx: "done"}, lease=60 * SECOND)
        process.send_signal(signal.SIGSTOP)
        (entry,) = redis_client.xpending_range(STREAM, "workers", "-", "+", 1)
        # What looking for the dead does with the entry of a live job: the watcher owns it now.
        redis_client.xclaim(STREAM, "workers", watcher.worker.id, 0, [entry["message_id"]])
        assert queue.get_job(job_id).state is JobState.ACTIVE
        watcher.stop()
        process.kill()
        run_worker(["etl"], {"hang": lambda ctx: "done"}, lease=SECOND)
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=20)

    def test_a_stopped_process_that_comes_back_is_refused(  # noqa: PLR0917  fixtures
        self,
        queue: Queue,
        start_process: StartProcess,
        run_worker: RunWorker,
        redis_client: Any,
        eventually: Eventually,
        tmp_path: Path,
    ) -> None:
        process = start_process("--lease", "1")
        job_id = queue.add("deaf", str(tmp_path / "begun"))
        eventually((tmp_path / "begun").exists)
        process.send_signal(signal.SIGSTOP)
        other = run_worker(["etl"], {"deaf": lambda ctx: "taken over"}, lease=SECOND)
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=20)
        other.stop()
        before = redis_client.hgetall(f"glide:{{etl}}:job:{job_id}")
        process.send_signal(signal.SIGCONT)
        marker = queue.add("quick")
        eventually(lambda: queue.get_job(marker).state is JobState.COMPLETED, timeout=20)
        process.terminate()
        assert process.wait(60) == 0
        assert redis_client.hgetall(f"glide:{{etl}}:job:{job_id}") == before
        completed = [
            fields
            for _, fields in redis_client.xrange("glide:{etl}:events")
            if fields["event"] == "completed"
        ]
        assert [fields["jobId"] for fields in completed].count(job_id) == 1

    def test_a_stopped_process_is_told_that_its_job_is_another_s(
        self,
        queue: Queue,
        start_process: StartProcess,
        run_worker: RunWorker,
        eventually: Eventually,
        tmp_path: Path,
    ) -> None:
        process, path = start_process("--lease", "1"), tmp_path / "begun"
        job_id = queue.add("fenced", str(path))
        eventually(path.exists)
        process.send_signal(signal.SIGSTOP)
        other = run_worker(["etl"], {"fenced": lambda ctx: ctx.epoch}, lease=SECOND)
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=20)
        other.stop()
        path.with_suffix(".go").touch()
        process.send_signal(signal.SIGCONT)
        told = path.with_suffix(".told")
        eventually(lambda: told.exists() and told.read_text().endswith("."), timeout=20)
        epoch, said = told.read_text().split(" ", 1)
        later: Any = queue.get_job(job_id).result
        assert int(epoch) < later
        assert f"job {job_id}" in said  # it was asked for, or the worker has just heard it

    def test_a_job_that_loses_worker_after_worker_fails(
        self, flows: FlowProducer, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        spec = FlowSpec(
            "n", [FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl", job="work", after=["a"])]
        )
        found = flows.submit(spec, flow_id="f")
        redis_client.hset("glide:{etl}:job:f~a", "stalledCount", 3)
        redis_client.xgroup_create(STREAM, "workers", "0")
        redis_client.xreadgroup("workers", "dead", {STREAM: ">"})
        redis_client.hset(
            "glide:{etl}:job:f~a", mapping={"state": "active", "processedOn": 1, "lastActive": 1}
        )
        run_worker(["etl"], {"work": lambda ctx: 1}, lease=SECOND)
        outcome = found.wait(timeout=timedelta(seconds=15))
        assert [(node.name, node.reason) for node in outcome.failed] == [
            ("a", "job stalled more than maxStalledCount"),
            ("b", "upstream failed: a"),
        ]
        eventually(lambda: nothing_is_held(redis_client))


class TestStopping:
    def test_a_terminated_process_finishes_what_it_holds_and_ends_well(
        self,
        queue: Queue,
        start_process: StartProcess,
        redis_client: Any,
        eventually: Eventually,
        tmp_path: Path,
    ) -> None:
        process = start_process()
        job_id = queue.add("deaf", str(tmp_path / "begun"))
        eventually((tmp_path / "begun").exists)
        process.terminate()
        assert process.wait(60) == 0
        assert queue.get_job(job_id).state is JobState.COMPLETED
        assert nothing_is_held(redis_client)
        assert redis_client.zcard("glide:{etl}:gmo:workers") == 0
        assert redis_client.xinfo_consumers(STREAM, "workers") == []

    def test_a_terminated_process_gives_back_what_does_not_end(
        self,
        queue: Queue,
        start_process: StartProcess,
        redis_client: Any,
        eventually: Eventually,
        tmp_path: Path,
    ) -> None:
        process = start_process("--stop-after", "0.2")
        job_id = queue.add("hang", str(tmp_path / "begun"))
        eventually((tmp_path / "begun").exists)
        process.terminate()
        assert process.wait(60) == 0
        job = queue.get_job(job_id)
        assert (job.state, job.attempts_made, job.result) == (JobState.WAITING, 0, None)
        assert nothing_is_held(redis_client)

    @pytest.mark.parametrize("kind", ["thread", "async"])
    def test_a_stop_gives_back_what_does_not_end(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually, kind: str
    ) -> None:
        release, begun = threading.Event(), list[str]()

        def in_thread(ctx: Any) -> str:
            begun.append(ctx.job_id)
            release.wait(30)
            return "late"

        async def on_loop(ctx: Any) -> None:
            begun.append(ctx.job_id)
            await asyncio.sleep(30)

        options: dict[str, Any] = {"shutdown_timeout": timedelta(milliseconds=100), "concurrency": 2}
        running = run_worker(["etl"], {"work": in_thread if kind == "thread" else on_loop}, **options)
        jobs = [queue.add("work") for _ in range(5)]
        eventually(lambda: len(begun) == 2)
        running.stop()
        assert {queue.get_job(job_id).state for job_id in jobs} == {JobState.WAITING}
        assert {queue.get_job(job_id).attempts_made for job_id in jobs} == {0}
        assert nothing_is_held(redis_client)
        release.set()
        run_worker(["etl"], {"work": lambda ctx: "again"})
        eventually(lambda: {queue.get_job(job_id).result for job_id in jobs} == {"again"})

    def test_a_stop_before_the_start_is_a_stop(self, url: str) -> None:
        worker = Worker(url, queues=["etl"])
        worker.stop()
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    def test_hooks_run_once_around_the_jobs(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        calls: list[str] = []
        handlers = Handlers()
        handlers.on_start(lambda: calls.append("start"))
        handlers.on_stop(lambda: calls.append("stop"))
        handlers.handler("work")(lambda ctx: calls.append("job"))
        running = run_worker(["etl"], handlers)
        queue.add("work")
        eventually(lambda: "job" in calls)
        running.stop()
        assert calls == ["start", "job", "stop"]

    def test_a_failing_start_hook_stops_the_worker_and_is_raised(self, url: str, redis_client: Any) -> None:
        calls: list[str] = []
        handlers = Handlers()

        @handlers.on_start
        def broken() -> None:
            raise RuntimeError("no database")

        handlers.on_stop(lambda: calls.append("stop"))
        with pytest.raises(RuntimeError, match="no database"):
            Worker(url, queues=["etl"], handlers=handlers).run()
        assert calls == ["stop"]
        assert redis_client.zcard("glide:{etl}:gmo:workers") == 0

    def test_the_end_of_the_interpreter_fails_no_job(
        self, url: str, queue: Queue, tmp_path: Path, redis_client: Any
    ) -> None:
        code = f"""
            import threading, time
            from glidemq_orchestrate import Worker
            worker = Worker({url!r}, queues=["etl"], concurrency=2)
            @worker.handler("work")
            def work(ctx):
                time.sleep(0.05)
                return 1
            threading.Thread(target=worker.run, daemon=True).start()
            worker.ready.wait(20)
            time.sleep(0.5)
        """
        jobs = [queue.add("work") for _ in range(100)]
        program = [sys.executable, "-c", textwrap.dedent(code)]
        subprocess.run(program, check=False, timeout=60, capture_output=True, cwd=tmp_path)
        states = Counter(queue.get_job(job_id).state for job_id in jobs)
        assert states[JobState.FAILED] == 0
        assert states[JobState.COMPLETED] > 0
        assert states[JobState.COMPLETED] < 100

    def test_an_invalid_setting_is_refused(self) -> None:
        cases: list[dict[str, Any]] = [
            {"queues": []},
            {"queues": "etl"},
            {"queues": ["a:b"]},
            {"queues": ["etl"], "concurrency": 0},
            {"queues": ["etl"], "lease": timedelta(milliseconds=999)},
        ]
        for wrong in cases:
            with pytest.raises(ConfigurationError):
                Worker("valkey://127.0.0.1:1", **wrong)

    def test_a_server_that_is_not_there_is_reported_at_the_start(self) -> None:
        with pytest.raises(ConnectionFailed):
            Worker("valkey://127.0.0.1:1", queues=["etl"]).run()


def test_a_worker_publishes_what_it_can_do_while_it_is_alive(
    run_worker: RunWorker, redis_client: Any
) -> None:
    running = run_worker(["etl", "bi"], {"b": lambda ctx: 1, "a": lambda ctx: 1})
    key = f"glide:{{etl}}:w:{running.worker.id}"
    registration = json.loads(redis_client.get(key))
    assert (registration["pid"], registration["handlers"], registration["activeJobs"]) == (
        os.getpid(),
        ["a", "b"],
        0,
    )
    assert 0 < redis_client.pttl(key) <= 30_000
    assert redis_client.zrange("glide:{bi}:gmo:workers", 0, -1) == [running.worker.id]
    running.stop()
    assert redis_client.keys("*:w:*") == redis_client.keys("*gmo:workers") == []


def test_a_delayed_job_runs_when_it_is_due(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"work": lambda ctx: 1})
    added = time.monotonic()
    job_id = queue.add("work", options=JobOptions(delay=timedelta(milliseconds=300)))
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED)
    assert time.monotonic() - added >= 0.3


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jobs", "flow"])
def test_results_do_not_pile_up_in_a_worker(
    kind: str, url: str, queue: Queue, flows: FlowProducer, eventually: Eventually
) -> None:
    """What has run and is not handed in runs again when the worker dies, and its lease is not renewed."""
    count, handlers = 4_000, Handlers()
    ran, taken, most = 0, 0, 0

    @handlers.handler("count")
    async def handle(_: Any) -> None:
        nonlocal ran, most
        ran += 1
        most = max(most, ran - taken)

    @handlers.on_job
    def on_event(event: JobEvent) -> None:
        nonlocal taken
        taken += event.kind == "completed"

    if kind == "jobs":
        queue.add_many([NewJob("count")] * count)
    else:
        nodes = [FlowNode(f"n{number}", queue="etl", job="count") for number in range(count)]
        flows.submit(FlowSpec("wide", nodes), flow_id="wide")
    with Worker(url, queues=["etl"], handlers=handlers, concurrency=50).running():
        eventually(lambda: taken == count, timeout=60)
    assert most < 50 + 128 + 2 * 64 + 50
