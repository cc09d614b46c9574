"""What the tests of ``spark.submit`` share: programs, and machines with nothing of other tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate.spark.submit.application import ALLOW_VARIABLE, JOB_NAME
from glidemq_orchestrate.spark.submit.handler import drivers
from tests.spark.conftest import MakeRun, Run
from tests.spark.submit.machine import drivers_of, move


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For a test; programs in it may run. No driver is left when the test has ended."""
    monkeypatch.setenv(ALLOW_VARIABLE, f"{tmp_path}/*")
    move(tmp_path / "machine", monkeypatch)
    drivers.start(f"{tmp_path} {secrets.token_hex(4)}")  # other runs of these tests end no driver of this one
    yield tmp_path
    assert drivers_of(tmp_path) == []


@pytest.fixture
def make(folder: Path, make_run: MakeRun) -> Callable[..., Run]:
    def made(program: str, *args: Any, **more: Any) -> Run:
        (folder / "program.py").write_text(program)
        run = make_run({"application": str(folder / "program.py"), "args": list(args)} | more)
        run.ctx.name = JOB_NAME
        return run

    return made
