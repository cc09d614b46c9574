"""Dagster jobs as users run them: processes of Dagster, a worker process, a real Valkey."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from glidemq_orchestrate import FlowProducer, FlowState
from tests.processes import spawned

pytestmark = pytest.mark.system

HERE = Path(__file__).parent


@dataclass
class Place:
    """The directory of one test: marks for the handlers, and what they noted."""

    path: Path
    url: str

    def mark(self, name: str) -> Path:
        file = self.path / name
        file.touch()
        return file

    def runs(self) -> Counter[str]:
        file = self.path / "runs"
        return Counter(file.read_text().split() if file.exists() else [])


@pytest.fixture
def place(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A worker process for the jobs of ``dagster_app``, and an environment for Dagster."""
    search = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        "PYTHONPATH": search,
        "GLIDEMQ_URL": url,
        "TEST_PLACE": str(tmp_path),
        "DAGSTER_HOME": str(tmp_path / "home"),
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(HERE)  # where the processes of steps look for the job
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    command = [
        sys.executable,
        "-m",
        "glidemq_orchestrate",
        "worker",
        "--app",
        "dagster_app",
        "--queue",
        "etl",
    ]
    log = tmp_path / "worker.log"
    with log.open("wb") as out, spawned([*command, "--lease", "1"], stdout=out, stderr=out) as worker:
        wait_for(lambda: b"serves" in log.read_bytes(), 60)
        yield Place(tmp_path, url)
        worker.terminate()
        assert worker.wait(60) == 0, log.read_text()


def wait_for(predicate: Callable[[], Any], timeout: float) -> Any:
    end = time.monotonic() + timeout
    while not (found := predicate()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)
    return found


def materialized(result: Any) -> list[str]:
    return [
        event.asset_key.to_user_string()
        for event in result.filter_events(lambda e: e.is_step_materialization)
    ]


@pytest.mark.long
def test_a_re_execution_from_failure_repairs_the_flow(place: Place) -> None:
    job = dg.reconstructable(importlib.import_module("dagster_app").etl_job)
    broken = place.mark("fail-right")
    with dg.instance_for_test() as instance:
        with dg.execute_job(job, instance) as first:
            assert not first.success
            assert set(materialized(first)) == {"extract", "left"}
        broken.unlink()
        again = dg.ReexecutionOptions.from_failure(first.run_id, instance)
        with dg.execute_job(job, instance, reexecution_options=again) as second:
            assert second.success
            assert materialized(second)[-1] == "report"
    assert place.runs() == Counter({"extract": 1, "left": 1, "right": 2, "report": 1})


@contextmanager
def running_job(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "dagster",
        "job",
        "execute",
        "-f",
        str(HERE / "dagster_app.py"),
        "-j",
        "etl_job",
    ]
    with (
        (place.path / "dagster.log").open("wb") as log,
        spawned(command, stdout=log, stderr=log, preexec_fn=_take_signals) as job,
    ):
        yield job


def _take_signals() -> None:
    """Whatever the shell that started the tests has set: Dagster ends on what ends an ordinary process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.long
def test_the_command_line_runs_the_job(place: Place) -> None:
    began = time.monotonic()
    with running_job(place) as job:
        assert job.wait(90) == 0, (place.path / "dagster.log").read_text()
    assert place.runs() == Counter(["extract", "left", "right", "report"])
    assert time.monotonic() - began < 60


@pytest.mark.long
def test_terminating_the_process_cancels_the_flow(place: Place) -> None:
    place.mark("hold-extract")
    with running_job(place) as job:
        wait_for(lambda: place.runs()["extract"], 60)
        job.terminate()
        job.wait(60)
    wait_for((place.path / "held-extract").exists, 25)
    wait_for((place.path / "held-extract").read_text, 5)
    assert (place.path / "held-extract").read_text() == "cancelled"
    assert place.runs() == Counter(["extract"])
    log = (place.path / "dagster.log").read_text()
    flow_id = next(word for word in log.split() if word.startswith("dg-"))
    with FlowProducer(place.url) as producer:
        assert producer.get(flow_id).status().state is FlowState.CANCELLED
