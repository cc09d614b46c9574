"""Programs by ``spark-submit``, each with a driver of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, Queue
from glidemq_orchestrate.spark.drivers.folder import DriverFolder, home
from glidemq_orchestrate.spark.drivers.keeper import TAG_VARIABLE
from glidemq_orchestrate.spark.session import CONF_VARIABLE, MASTER_VARIABLE
from glidemq_orchestrate.spark.submit.application import ALLOW_VARIABLE, JOB_NAME
from glidemq_orchestrate.spark.submit.driver import DriverCancelled, DriverFailed, Drivers, drivers
from glidemq_orchestrate.spark.submit.handler import run_application
from glidemq_orchestrate.worker.context import Cancelled
from glidemq_orchestrate.worker.imported import InvalidCall
from tests.conftest import Eventually
from tests.processes import spawned
from tests.spark.conftest import MakeRun, Run

pytestmark = pytest.mark.usefixtures("_spark_environment")

Submit = Callable[..., Any]
SLEEPS = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"], start_new_session=True)  # what a program leaves behind
print("sleeping", flush=True)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""

WORKER = """
import sys
from datetime import timedelta
from glidemq_orchestrate import Worker
from glidemq_orchestrate.spark.submit import handlers
seconds = {"lock_duration": timedelta(seconds=2), "shutdown_timeout": timedelta(seconds=1)}
Worker(sys.argv[1], queues=["spark"], handlers=handlers, **seconds).run()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ALLOW_VARIABLE, f"{tmp_path}/*")
    _move(tmp_path / "machine", monkeypatch)
    return tmp_path


def _move(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process, and the workers that it starts, are on a machine of their own."""
    machine.mkdir()
    monkeypatch.setenv("TMPDIR", str(machine))
    monkeypatch.setattr("tempfile.tempdir", str(machine))


@pytest.fixture
def make(folder: Path, make_run: MakeRun) -> Callable[..., Run]:
    def made(program: str, *args: Any, **more: Any) -> Run:
        (folder / "program.py").write_text(program)
        run = make_run({"application": str(folder / "program.py"), "args": list(args)} | more)
        run.ctx.name = JOB_NAME
        return run

    return made


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
        "master": "local[2]",
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


def test_without_a_result_its_id_is_told(make: Callable[..., Run]) -> None:
    assert run_application(make("print('done')").ctx) == {"application_id": None}


@pytest.mark.parametrize(
    ("program", "kind", "expected"),
    [
        ("import sys; sys.exit(3)", DriverFailed, r"program.py ended with exit code 3: .*"),
        ("import os; os.abort()", DriverFailed, r"program.py ended with exit code"),
        ("def f():\n    raise ValueError('no day')\nf()", DriverFailed, r"ValueError: no day \(in f, .*:2\)"),
        ("print('x'); import nowhere_x", DriverFailed, "No module named 'nowhere_x'"),
        ("import os; open(os.environ['GLIDEMQ_RESULT'], 'w').write('{')", InvalidCall, "is not JSON"),
        (
            "import os; open(os.environ['GLIDEMQ_RESULT'], 'w').write('7' * 2_000_000)",
            InvalidCall,
            "its result has more than 1048576 bytes",
        ),
    ],
)
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
    with pytest.raises(DriverFailed, match=r"PATH_NOT_FOUND.*To mend it: see that the step that writes it"):
        run_application(make(program).ctx)


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
        run_application(run.ctx)
        assert {tag: process.poll() is not None for tag, process in left.items()} == marks
    assert "ended the driver that an earlier attempt had left here" in run.recorder.lines


RUNS = """
import json, os, sys, time
folder = sys.argv[1]
open(f"{folder}/runs", "a").write(os.environ["GLIDEMQ_JOB"] + "\\n")
print("first line", flush=True)
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.05)
print("last line", flush=True)
json.dump(sys.argv[2], open(os.environ["GLIDEMQ_RESULT"], "w"))
sys.exit(int(os.path.exists(f"{folder}/fails")))
"""


class Taken:
    """A job whose program runs until it may end, and the workers that have it."""

    def __init__(self, url: str, folder: Path, eventually: Eventually) -> None:
        (folder / "program.py").write_text(RUNS)
        self.url, self.folder, self.eventually = url, folder, eventually
        self.data = {"application": str(folder / "program.py"), "args": [str(folder), "result"]}

    @property
    def runs(self) -> list[Any]:
        """What each run of the program has been told."""
        file = self.folder / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add(self, queue: Queue, **options: Any) -> str:
        """Add the job."""
        return queue.add(JOB_NAME, self.data, options=JobOptions(**options))

    def completes(self, queue: Queue, job: str) -> None:
        """Wait until the job has completed, and nothing is kept any more."""
        self.eventually(lambda: queue.get_job(job).state == "completed", timeout=60)
        self.eventually(lambda: _kept() == [], timeout=10)

    def lose_worker(self, number: int = signal.SIGKILL) -> None:
        """Start a worker, and end it when the program runs."""
        with spawned([sys.executable, "-c", WORKER, self.url]) as worker:
            self.eventually(lambda: self.runs, timeout=60)
            time.sleep(0.3)
            worker.send_signal(number)
            worker.wait(30)


@pytest.fixture
def taken(url: str, folder: Path, eventually: Eventually) -> Iterator[Taken]:
    made = Taken(url, folder, eventually)
    yield made
    (folder / "go").touch()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("ends", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_the_next_worker_takes_over_the_driver_of_one_that_is_gone(
    taken: Taken, number: int, ends: str
) -> None:
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker(number)
        if ends == "before":  # it ends while no worker is there
            (taken.folder / "go").touch()
            taken.eventually(lambda: any(folder.code == 0 for folder in _kept()), timeout=10)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: "goes on with the driver" in str(queue.logs(job).lines), timeout=60)
            (taken.folder / "go").touch()
            taken.completes(queue, job)
        assert queue.get_job(job).result == "result"
        assert [run["attempt"] for run in taken.runs] == [1], "the program ran once"
        lines = [line for line in queue.logs(job).lines if " line" in line]
        assert sorted(set(lines)) == ["first line", "last line"]
        assert len(lines) - len(set(lines)) <= 1, "a line may be there twice after a kill"


@pytest.mark.long
def test_a_driver_that_fails_while_no_worker_is_there_fails_the_attempt(taken: Taken) -> None:
    (taken.folder / "fails").touch()
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker()
        (taken.folder / "go").touch()
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: queue.get_job(job).state == "failed", timeout=60)
        assert str(queue.get_job(job).failed_reason).endswith("ended with exit code 1: last line")
    assert len(taken.runs) == 1


def test_a_node_of_a_flow_that_was_restarted_takes_nothing_over(taken: Taken) -> None:
    """The flow was restarted: the driver of before is ended first."""
    with FlowProducer(taken.url) as flows:
        flow = flows.submit(FlowSpec("f", [FlowNode("n", "spark", JOB_NAME, taken.data)]), flow_id="f")
        taken.lose_worker()
        flow.restart()
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: len(taken.runs) == 2, timeout=60)
            assert len(_kept()) == len(_drivers()) == 1
            (taken.folder / "go").touch()
            assert flow.wait(timeout=timedelta(seconds=60)).status.state == "completed"
            taken.eventually(lambda: _kept() == [], timeout=10)
        assert taken.runs[0]["job_id"] != taken.runs[1]["job_id"]


@pytest.mark.parametrize("patience", [pytest.param("0", marks=pytest.mark.long), "1"])
def test_a_driver_ends_when_no_worker_comes_and_the_next_one_runs_it_again(
    taken: Taken, monkeypatch: pytest.MonkeyPatch, patience: str
) -> None:
    monkeypatch.setenv("GLIDEMQ_SPARK_DRIVER_PATIENCE", patience)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{taken.folder}/one,{taken.folder}/two")
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker()
        taken.eventually(lambda: _kept() == [], timeout=30)
        assert not list(taken.folder.glob("*/glidemq-spark-*"))
        assert _drivers() == []
        (taken.folder / "go").touch()
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.completes(queue, job)
    assert len(taken.runs) == 2


def test_a_killed_keeper_ends_its_driver_and_fails_the_attempt(taken: Taken) -> None:
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: taken.runs, timeout=60)
            progress: Any = queue.get_job(job).progress
            os.kill(progress["pid"], signal.SIGKILL)
            taken.eventually(lambda: queue.get_job(job).state == "failed", timeout=60)
        assert "the process that kept its driver was killed" in str(queue.get_job(job).failed_reason)
        assert (_drivers(), _kept()) == ([], [])


KILLED = WORKER.replace(
    "Worker(",
    """
import os
from glidemq_orchestrate import Middleware

class Dies(Middleware):
    async def around(self, execution, proceed):
        await proceed()
        os.kill(os.getpid(), 9)

Worker(""",
).replace("**seconds", "middleware=[Dies()], **seconds")


def test_a_result_that_the_server_does_not_have_yet_is_not_lost_with_its_worker(taken: Taken) -> None:
    (taken.folder / "go").touch()
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        with spawned([sys.executable, "-c", KILLED, taken.url]) as worker:
            assert worker.wait(60) == -signal.SIGKILL
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.completes(queue, job)
            assert queue.get_job(job).result == "result"
    assert len(taken.runs) == 1


def test_a_driver_whose_folder_was_removed_ends(taken: Taken) -> None:
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: taken.runs, timeout=60)
            _kept()[0].remove()
            taken.eventually(lambda: queue.get_job(job).state == "failed", timeout=60)
        taken.eventually(lambda: _drivers() == [], timeout=20)


class Stopped(Cancelled):
    """Of an attempt in a process that is stopped, until it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it goes on, too."""
        self.goes_on.wait()
        return super().wait(timeout)


def test_a_stale_attempt_ends_nothing_of_the_next_one(make: Callable[..., Run], folder: Path) -> None:
    first, second = make(RUNS, str(folder), "x"), make(RUNS, str(folder), "x")
    first.ctx.cancelled = stopped = Stopped()
    second.ctx.epoch = first.ctx.epoch + 1
    with ThreadPoolExecutor(2) as threads:
        stale = threads.submit(run_application, first.ctx)
        _until((folder / "runs").exists)
        current = threads.submit(run_application, second.ctx)
        _until(lambda: len((folder / "runs").read_text().splitlines()) == 2)
        stopped.goes_on.set()
        with pytest.raises(DriverFailed):
            stale.result(30)  # its driver was ended
        time.sleep(0.3)
        (folder / "go").touch()
        assert current.result(30) == "x"


@pytest.mark.long
def test_a_driver_of_another_machine_is_waited_for(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is whatever has a folder for drivers of its own."""
    monkeypatch.setenv("GLIDEMQ_SPARK_DRIVER_PATIENCE", "1")
    with Queue("spark", taken.url) as queue:
        job = taken.add(queue)
        taken.lose_worker()
        lost = time.monotonic()
        _move(taken.folder / "other", monkeypatch)
        with spawned([sys.executable, "-c", WORKER, taken.url]):
            taken.eventually(lambda: len(taken.runs) == 2, timeout=60)
            assert time.monotonic() - lost > 16, "its patience, its grace and some slack"
            (taken.folder / "go").touch()
            taken.completes(queue, job)
        assert queue.get_job(job).attempts_made <= 1


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


@pytest.fixture(autouse=True)
def _no_drivers_are_left() -> Iterator[None]:
    yield
    assert [one for one in psutil.process_iter() if "spark-submit" in " ".join(_command(one))] == []


def _kept() -> list[DriverFolder]:
    """The folders of drivers."""
    return [DriverFolder(path) for path in home().iterdir() if path.is_dir()]


def _drivers() -> list[str]:
    found = [" ".join(_command(one)) for one in psutil.process_iter()]
    return [text for text in found if "SparkSubmit" in text and "program.py" in text]


def _until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _marked(tag: str) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get(TAG_VARIABLE) == tag:
                found.append(one)
        except psutil.Error:
            continue
    return found
