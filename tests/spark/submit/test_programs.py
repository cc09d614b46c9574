"""Programs by ``spark-submit``, each with a driver of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from glidemq_orchestrate.spark.setup.spark_settings import CONF_VARIABLE, MASTER_VARIABLE
from glidemq_orchestrate.spark.submit.handler import (
    DriverCancelled,
    DriverFailed,
    Drivers,
    drivers,
    run_application,
)
from glidemq_orchestrate.spark.submit.keeper import TAG_VARIABLE
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from tests.conftest import Eventually
from tests.processes import spawned
from tests.spark.conftest import MASTER, Run

pytestmark = pytest.mark.usefixtures("_spark_environment")
LONG = pytest.mark.long

SLEEPS = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"], start_new_session=True)  # what a program leaves behind
print("sleeping", flush=True)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


@LONG
def test_a_program_gets_settings_arguments_and_its_job_and_gives_a_result(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "\\=:#!\t\"'$HOME ü€😀"
    monkeypatch.setenv(CONF_VARIABLE, json.dumps({"spark.odd": odd, "spark.hadoop.x.secret.key": "hunter2"}))
    run = make(
        """
import json, os, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
conf = spark.sparkContext.getConf()
arguments = open("/proc/%d/cmdline" % os.getppid()).read()
result = {
    "args": sys.argv[1:], "rows": spark.range(7).count(), "odd": conf.get("spark.odd"),
    "master": conf.get("spark.master"), "memory": conf.get("spark.executor.memory"),
    "name": conf.get("spark.app.name"), "shown": "hunter2" in arguments,
    "for": conf.get("spark.glidemq.user"),
    "job": json.loads(os.environ["GLIDEMQ_JOB"]),
}
print("a line")
json.dump(result, open(os.environ["GLIDEMQ_RESULT"], "w"))
""",
        "a b",
        7,
        conf={"spark.executor.memory": "700m"},
        user="Ana",
    )
    found: Any = run_application(run.ctx)
    job = found.pop("job")
    assert found == {
        "args": ["a b", "7"],
        "rows": 7,
        "odd": odd,
        "master": MASTER,
        "memory": "700m",
        "name": "spark: step (job-step)",
        "for": "Ana",
        "shown": False,
    }
    assert {name: job[name] for name in ("queue", "job_id", "attempt")} == {
        "queue": "spark", "job_id": "job-step", "attempt": 1,
    }  # fmt: skip
    assert "a line" in run.recorder.lines
    assert not any(" INFO " in line for line in run.recorder.lines)
    assert run.recorder.reported[-1]["ui"].startswith("http://")


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "kind", "expected"),
    [
        pytest.param(
            "import sys; sys.exit(3)", DriverFailed, r"program.py ended with exit code 3: .*", marks=LONG
        ),
        pytest.param("import os; os.abort()", DriverFailed, "program.py ended with exit code", marks=LONG),
        ("def f():\n    raise ValueError('no day')\nf()", DriverFailed, r"ValueError: no day \(in f, .*:2\)"),
        pytest.param("import nowhere_x", DriverFailed, "No module named 'nowhere_x'", marks=LONG),
        ("import os; open(os.environ['GLIDEMQ_RESULT'], 'w').write('{')", InvalidCall, "is not JSON"),
        pytest.param(
            "import os; open(os.environ['GLIDEMQ_RESULT'], 'w')", InvalidCall, "is empty, which is not JSON",
            marks=LONG,
        ),
        pytest.param(
            "import os; os.mkdir(os.environ['GLIDEMQ_RESULT'])",
            InvalidCall, "is not a file: write JSON to it",
            marks=LONG,
        ),
        pytest.param(
            "import os; open(os.environ['GLIDEMQ_RESULT'], 'w').write('7' * 2_000_000)",
            InvalidCall,
            "its result has more than 1048576 bytes",
            marks=LONG,
        ),
    ],
)  # fmt: skip
def test_how_a_program_failed_is_told(
    make: Callable[..., Run], program: str, kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind, match=expected):
        run_application(make(program).ctx)


def test_what_cannot_be_started_is_told(make: Callable[..., Run]) -> None:
    with pytest.raises(DriverFailed, match=r"exit code 126: .* cannot be started: Argument list too long"):
        run_application(make("", "x" * 200_000).ctx)


@pytest.mark.long
def test_the_cause_of_spark_is_told_with_a_remedy(make: Callable[..., Run], folder: Path) -> None:
    program = f"""
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate().read.parquet("{folder}/none").count()
"""
    with pytest.raises(DriverFailed, match=r"PATH_NOT_FOUND.*Fix: check that the step that writes it"):
        run_application(make(program).ctx)


@pytest.mark.long
def test_a_jar_is_run_by_its_main_class(make: Callable[..., Run], folder: Path) -> None:
    (folder / "Daily.java").write_text("""
        public class Daily {
            public static void main(String[] args) throws Exception {
                if (args[0].equals("fail")) throw new IllegalStateException("no " + args[0]);
                java.nio.file.Files.writeString(
                    java.nio.file.Path.of(System.getenv("GLIDEMQ_RESULT")), "\\"" + args[0] + "\\"");
            }
        }
    """)
    for command in (["javac", "Daily.java"], ["jar", "cf", "daily.jar", "Daily.class"]):
        subprocess.run([str(shutil.which(command[0])), *command[1:]], cwd=folder, check=True)
    data = {"application": str(folder / "daily.jar"), "class": "Daily"}
    good, bad = make("", "ü", **data), make("", "fail", **data)
    assert run_application(good.ctx) == "ü"
    with pytest.raises(DriverFailed, match="exit code 1: IllegalStateException: no fail"):
        run_application(bad.ctx)


def test_a_cancelled_program_ends_with_all_that_it_has_started(
    make: Callable[..., Run], folder: Path, eventually: Eventually
) -> None:
    run = make(SLEEPS, str(folder / "pid"))
    with ThreadPoolExecutor(1) as threads:
        submitted = threads.submit(run_application, run.ctx)
        eventually((folder / "pid").exists, timeout=60)
        assert len(_marked(drivers.tag(run.ctx))) >= 3
        run.cancelled.set()
        with pytest.raises(DriverCancelled, match=r"program\.py was cancelled"):
            submitted.result(20)
    assert _marked(drivers.tag(run.ctx)) == []


@pytest.mark.long
def test_what_an_earlier_attempt_has_left_is_ended_first(make: Callable[..., Run]) -> None:
    run = make("print('done')")
    other = Drivers()
    other.start("another server")
    marks = {drivers.tag(run.ctx): True, other.tag(run.ctx): False}
    with ExitStack() as stack:
        left = {
            tag: stack.enter_context(spawned(["sleep", "600"], env={**os.environ, TAG_VARIABLE: tag}))
            for tag in marks
        }
        assert run_application(run.ctx) == {"application_id": None}, "of one without a result"
        assert {tag: process.poll() is not None for tag, process in left.items()} == marks
    assert "ended the driver of an earlier attempt" in run.recorder.lines


@pytest.mark.long
def test_on_a_cluster_its_id_is_told_and_a_cancel_frees_the_cores(
    make: Callable[..., Run], master: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MASTER_VARIABLE, master)
    monkeypatch.setenv(CONF_VARIABLE, '{"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}')
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    counts = """
import time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.parallelize(range(3), 1).map(lambda n: time.sleep({})).count()
"""
    first, second = make(counts.format(600)), make(counts.format(0))
    data: Any = first.ctx.data
    (path := Path(data["application"])).write_text(counts.format(600))
    with ThreadPoolExecutor(1) as threads:
        submitted = threads.submit(run_application, first.ctx)
        eventually(lambda: any("application_id" in one for one in first.recorder.reported), timeout=60)
        first.cancelled.set()
        with pytest.raises(DriverCancelled):
            submitted.result()
    path.write_text(counts.format(0))
    assert str(run_application(second.ctx)).startswith("{'application_id': 'app-")


def _marked(tag: str) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get(TAG_VARIABLE) == tag:
                found.append(one)
        except psutil.Error:
            continue
    return found
