"""One warm session for all tests here, on two cores, and stand-ins for what a worker would pass."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from glidemq_orchestrate.spark.handler import handlers, stop_session
from glidemq_orchestrate.spark.published.catching_up import catch_up
from glidemq_orchestrate.spark.sessions.warm import warm_session
from glidemq_orchestrate.spark.setup.jvm import require_java
from glidemq_orchestrate.spark.setup.spark_settings import CONF_VARIABLE, MASTER_VARIABLE
from glidemq_orchestrate.worker.handlers.context import Cancelled, Context, Reporter
from glidemq_orchestrate.worker.handlers.handler import Handlers
from tests.guard import nothing_is_left
from tests.processes import end, spawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Eventually

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about pandas and PyArrow; PySpark warns once, when imported
    import pyspark.sql
    import pyspark.testing

with suppress(ImportError):  # PySpark 3.5
    from pyspark.logger import PySparkLogger

    # It gives its JSON form to every handler that it gets: also to pytest's own, for the rest of the run.
    PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[assignment,method-assign]

MASTER = "local[2,3]"
"""Two cores; a task that has failed runs again, as on clusters."""
SPARK_CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 4,
    # Compiling whole stages of a plan does not pay for a few rows.
    "spark.sql.codegen.wholeStage": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """But the warm session, which lasts from test to test."""
    yield from nothing_is_left(kept=lambda command: "org.apache.spark.deploy.SparkSubmit" in command)


@pytest.fixture(scope="session")
def _spark_environment() -> Iterator[None]:
    require_java()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MASTER_VARIABLE, MASTER)
        patch.setenv(CONF_VARIABLE, json.dumps(SPARK_CONF))
        yield
        warm_session.stop()


@pytest.fixture
def spark(_spark_environment: None) -> SparkSession:
    """The warm session; a test may kill it, the next one gets a new one."""
    return warm_session.get()


@pytest.fixture
def warm_handlers(spark: SparkSession) -> Handlers:
    """The handlers of a worker that runs its steps on the warm session, which goes on when the worker stops.

    A worker with all the hooks has a JVM of its own, and ends it.
    """
    found = Handlers()
    found.include(handlers)
    found.stop_hooks.remove(stop_session)
    found.on_stop(catch_up.stop)
    return found


@dataclass
class Recorder(Reporter):
    """What a step reported."""

    reported: list[Any] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def progress(self, value: Any) -> None:
        self.reported.append(value)

    def log(self, line: str) -> None:
        self.lines.append(line)

    def check_owner(self) -> None:
        """It does."""


@dataclass
class Run:
    """A context as a worker makes it, and what was reported through it."""

    ctx: Context
    recorder: Recorder
    cancelled: Cancelled


MakeRun = Callable[..., Run]


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    def make(
        data: Any = None,
        inputs: dict[str, Any] | None = None,
        *,
        node: str = "step",
        attempt: int = 1,
        allow_import: Sequence[str] | None = None,
    ) -> Run:
        """Without an allow-list, the module that the job names is allowed."""
        if allow_import is None:
            named = data.get("callable") if isinstance(data, dict) else None
            allow_import = [str(named).partition(":")[0]]
        recorder, cancelled = Recorder(), Cancelled()
        ctx = Context(
            queue="spark",
            job_id=f"job-{node}",
            name="spark.python",
            attempt=attempt,
            data=json.loads(json.dumps(data)),
            inputs=json.loads(json.dumps(inputs or {})),
            flow_id="flow",
            node=node,
            reporter=recorder,
            cancelled=cancelled,
            allow_import=allow_import,
            epoch=time.time_ns() // 1_000_000,
            token=secrets.token_hex(8),
        )
        return Run(ctx, recorder, cancelled)

    return make


def forget_last_commit(commits: Path) -> None:
    """As if the driver of a stream had been killed before it noted the end of the last batch."""
    last = max(commits.glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink()


Start = Callable[..., Any]
_HOME = Path(pyspark.__file__).parent
_SPARK = [str(_HOME / "bin" / "spark-class")]
_OWN = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(_HOME), "PYSPARK_PYTHON": sys.executable}


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    del url  # the server ends after its clients
    with ExitStack() as stack:

        def started(*command: str, **environment: str) -> Any:
            log = stack.enter_context((tmp_path / "processes.log").open("ab"))
            process = spawn(list(command), env={**os.environ, **environment}, stdout=log, stderr=log)
            stack.callback(end, process)
            return process

        yield started


class SparkWorkers:
    """Workers of a standalone cluster, with one core each."""

    def __init__(self, start: Start) -> None:
        self._start, self._started = start, list[psutil.Process]()

    def add(self, master: str) -> None:
        """Start one."""
        size = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
        worker = self._start(*_SPARK, "org.apache.spark.deploy.worker.Worker", *size, master, **_OWN)
        self._started.append(psutil.Process(worker.pid))

    def below(self) -> list[psutil.Process]:
        """Their executors, and what these have started."""
        return [below for one in self._started for below in one.children(recursive=True)]


@pytest.fixture
def spark_workers(start: Start) -> SparkWorkers:
    """None yet."""
    return SparkWorkers(start)


@pytest.fixture
def master(start: Start, spark_workers: SparkWorkers, eventually: Eventually) -> str:
    """The URL of a standalone cluster with one worker of one core."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    start(*_SPARK, "org.apache.spark.deploy.master.Master", *place, **_OWN)
    url = f"spark://127.0.0.1:{port}"

    def answers() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    eventually(answers, timeout=60)
    spark_workers.add(url)
    return url
