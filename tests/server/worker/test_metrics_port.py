"""What Prometheus reads of a worker: one in this process, and the sum of several processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest

from glidemq_orchestrate import ArrayNode, Context, FlowProducer, FlowSpec, JobState, NewJob, Queue, Worker
from glidemq_orchestrate.errors import ConfigurationError
from tests.processes import spawned

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(url: str | None) -> Samples:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  optional

    assert url is not None
    reply = httpx.get(url, timeout=10)
    assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    found = [one for family in text_string_to_metric_families(reply.text) for one in family.samples]
    assert all(one.name.startswith("glidemq_worker_") for one in found)
    samples = {(one.name, frozenset(one.labels.items())): one.value for one in found}
    assert len(samples) == len(found), "no sample is there twice"
    return samples


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"glidemq_worker_{name}", frozenset(labels.items())))


def test_a_worker_tells_what_it_has_run(
    queue: Queue, flows: FlowProducer, run_worker: RunWorker, redis_client: Any, eventually: Eventually
) -> None:
    go_on = threading.Event()

    def load(ctx: Context) -> int:
        if ctx.data == "bad" or (ctx.data == "later" and ctx.attempt == 1):
            raise ValueError(ctx.data)
        if ctx.data == "gone":
            redis_client.delete(f"glide:{{etl}}:job:{ctx.job_id}")
        if ctx.data == "long":
            assert go_on.wait(30)
        time.sleep(0.005)
        return 1

    jobs = [NewJob("load", "ok"), NewJob("load", "bad"), NewJob("load", "later", attempts=2)]
    queue.add_many([*jobs, NewJob("load", "gone"), NewJob("load", "long")])
    flow = flows.submit(FlowSpec("n", [ArrayNode("each", job="load", over=range(5), queue="etl")]))
    worker = run_worker(["etl"], {"load": load}, concurrency=3, metrics_port=0).worker
    flow.wait(timeout=30)
    labels = {"queue": "etl", "handler": "load"}

    def has_run() -> bool:
        found = scrape(worker.metrics_url)
        return value(found, "jobs_ended_total", **labels, outcome="completed") == 7

    eventually(has_run, 20)
    eventually(lambda: value(scrape(worker.metrics_url), "lost_leases_total", queue="etl") == 1, 20)
    found = scrape(worker.metrics_url)
    assert value(found, "jobs_ended_total", **labels, outcome="failed") == 1
    assert value(found, "jobs_ended_total", **labels, outcome="retried") == 1
    assert value(found, "jobs_running", **labels) == 1
    assert (value(found, "places"), value(found, "places_taken")) == (3, 1)
    assert (value(found, "jobs_started_total", **labels) or 0) >= 7
    assert value(found, "job_running_seconds_count", **labels) == 7
    assert value(found, "job_running_seconds_bucket", **labels, le="0.004") == 0
    assert value(found, "job_running_seconds_bucket", **labels, le="60.0") == 7
    assert (value(found, "job_waiting_seconds_count", **labels) or 0) >= 6
    assert (value(found, "process_resident_memory_bytes", process="0") or 0) > 10_000_000
    assert (value(found, "process_cpu_seconds_total", process="0") or 0) > 0
    assert abs((value(found, "last_exchange_timestamp_seconds", queue="etl") or 0) - time.time()) < 5
    go_on.set()
    eventually(lambda: value(scrape(worker.metrics_url), "jobs_running", **labels) == 0, 20)


def test_the_shards_of_a_queue_are_one(url: str, run_worker: RunWorker, eventually: Eventually) -> None:
    with Queue("s", url, shards=3) as queue:
        queue.add_many([NewJob("load", number) for number in range(12)])
    worker = run_worker(["s"], {"load": lambda _: 1}, metrics_port=0).worker
    ended = {"queue": "s", "handler": "load", "outcome": "completed"}
    eventually(lambda: value(scrape(worker.metrics_url), "jobs_ended_total", **ended) == 12, 20)
    names = {dict(labels).get("queue", "s") for _, labels in scrape(worker.metrics_url)}
    assert names == {"s"}


def test_whoever_reads_badly_disturbs_nobody(run_worker: RunWorker) -> None:
    worker = run_worker(["etl"], {"load": lambda _: 1}, metrics_port=0).worker
    assert worker.metrics_url is not None
    place = urlsplit(worker.metrics_url)
    silent = [socket.create_connection((place.hostname, place.port or 0)) for _ in range(40)]
    try:
        silent[-1].sendall(b"GET /met")
        scrape(worker.metrics_url)
        assert httpx.get(worker.metrics_url.replace("/metrics", "/")).status_code == 404
        assert httpx.post(worker.metrics_url).status_code == 405
        assert httpx.head(worker.metrics_url).content == b""
        accepted = {"accept": "application/openmetrics-text; version=1.0.0"}
        assert httpx.get(worker.metrics_url, headers=accepted).text.endswith("# EOF\n")
        silent[-2].sendall(b"x" * 100_000)
        scrape(worker.metrics_url)
    finally:
        for one in silent:
            one.close()
    worker.stop()


def test_a_port_that_is_taken_or_a_missing_library_is_named(url: str, monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}.*in use"):
            Worker(url, queues=["etl"], metrics_port=port).run()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'glidemq-orchestrate\[metrics\]'"):
        Worker(url, queues=["etl"], metrics_port=0).run()


APP = """
import os, time
from pathlib import Path
from glidemq_orchestrate import Handlers

handlers = Handlers()

@handlers.handler
def pid(ctx):
    Path(f"{os.getpid()}.pid").touch()
    while len(list(Path().glob("*.pid"))) < 2:  # so that each of two processes has a job
        time.sleep(0.01)
    return os.getpid()
"""


def test_one_port_serves_the_sum_of_all_processes_also_of_those_that_ended(
    url: str, queue: Queue, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "app", "--queue", "etl"]
    command += ["--url", url, "--processes", "2", "--concurrency", "3", "--lease", "1", "--metrics-port", "0"]
    with (
        (tmp_path / "log").open("wb") as log,
        spawned(command, cwd=tmp_path, stderr=log) as parent,
    ):
        eventually(lambda: len(queue.workers()) == 2, 60)
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", (tmp_path / "log").read_text())
        assert address
        ended = {"queue": "etl", "handler": "pid", "outcome": "completed"}

        def count() -> float | None:
            return value(scrape(address[0]), "jobs_ended_total", **ended)

        added = [queue.add("pid") for _ in range(40)]
        eventually(lambda: count() == 40, 20)
        pids = {job.result for one in added if (job := queue.get_job(one))}
        assert len(pids) == 2
        found = scrape(address[0])
        assert (value(found, "places"), value(found, "places_taken")) == (3, 0)
        memory = {str(number): "process_resident_memory_bytes" for number in range(3)}
        assert all((value(found, name, process=number) or 0) > 0 for number, name in memory.items())
        os.kill(min(pids), signal.SIGKILL)
        eventually(lambda: len({one.pid for one in queue.workers()} - {min(pids)}) == 2, 20)
        assert count() == 40, "a counter never falls"
        queue.add_many([NewJob("pid") for _ in range(10)])
        eventually(lambda: count() == 50, 20)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(20) == 0
    assert queue.counts()[JobState.COMPLETED] == 50
    assert isinstance(parent, subprocess.Popen)
