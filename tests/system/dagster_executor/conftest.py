"""A Dagster instance whose steps, or also whose runs, are jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glidemq_orchestrate import EmbeddedServer
from tests.providers.dagster.stepping import Steps, place_of
from tests.system.dagster_executor.launching import LAUNCHER, MONITORING


@pytest.fixture
def steps(server: EmbeddedServer, tmp_path: Path) -> Iterator[Steps]:
    with place_of(server, tmp_path) as place:
        yield place


@pytest.fixture
def launched(server: EmbeddedServer, tmp_path: Path) -> Iterator[Steps]:
    """Runs are launched as jobs, and monitored."""
    with place_of(server, tmp_path, run_launcher=LAUNCHER, run_monitoring=MONITORING) as place:
        yield place
