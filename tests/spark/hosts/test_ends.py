"""Session hosts that end, hang, or lose their worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from glidemq_orchestrate.spark.failures import SessionGone, StepCancelled
from glidemq_orchestrate.spark.hosts import host, pool
from tests.conftest import Eventually
from tests.processes import runs
from tests.spark.hosts.conftest import Make, pool_of, run

WORKER = """
import time
from glidemq_orchestrate.spark.hosts.pool import hosts
hosts.start()
print(hosts.pids, flush=True)
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
@pytest.mark.parametrize("how", ["a step", "kill -9", "the JVM", "and leaves a child"])
def test_a_host_that_ends_ends_its_steps_and_is_replaced(
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


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_a_step_that_does_not_stop_is_ended_once_it_is_alone(
    make: Make, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
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
        with pytest.raises(StepCancelled, match="but was still running 1 s later"):
            steps[0].result(timeout=10)
        assert run(hosts, make("about"))["pid"] != pid
        assert pid in hosts.pids
        (tmp_path / "two" / "go").touch()
        assert steps[1].result(timeout=30) == 5
        eventually(lambda: not psutil.pid_exists(pid), timeout=30)


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
@pytest.mark.parametrize("what", ["the host", "an idle JVM"])
def test_a_host_that_does_not_reply_is_replaced(
    make: Make, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, what: str
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


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_a_signal_to_the_whole_group_leaves_a_step_to_its_worker(
    make: Make, tmp_path: Path, eventually: Eventually
) -> None:
    with pool_of() as hosts, ThreadPoolExecutor(1) as threads:
        (pid,) = hosts.pids
        step = threads.submit(run, hosts, make("waits", go=str(tmp_path / "go")))
        eventually((tmp_path / "go.begun").exists, timeout=30)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        (tmp_path / "go").touch()
        assert step.result(timeout=30) == 5


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_a_killed_worker_leaves_nothing_behind(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
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
