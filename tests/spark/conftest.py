"""One warm session for all tests here, on two cores, and stand-ins for what a worker would pass."""

from __future__ import annotations

import json
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.spark.session import CONF_VARIABLE, MASTER_VARIABLE, require_java, warm_session
from glidemq_orchestrate.worker.context import Cancelled, Context, Unheard
from tests.guard import nothing_is_left

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", FutureWarning
    )  # about versions of pandas; PySpark warns once, when imported
    import pyspark.sql
    import pyspark.testing  # noqa: F401

SPARK_CONF = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 4}


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
        patch.setenv(MASTER_VARIABLE, "local[2]")
        patch.setenv(CONF_VARIABLE, json.dumps(SPARK_CONF))
        yield
        warm_session.stop()


@pytest.fixture
def spark(_spark_environment: None) -> SparkSession:
    """The warm session; a test may kill it, the next one gets a new one."""
    return warm_session.get()


@dataclass
class Recorder(Unheard):
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
            speaker=recorder,
            cancelled=cancelled,
            allow_import=allow_import,
            epoch=time.time_ns() // 1_000_000,
            token=secrets.token_hex(8),
        )
        return Run(ctx, recorder, cancelled)

    return make
