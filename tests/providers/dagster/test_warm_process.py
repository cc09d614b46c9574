"""A warm process that does not answer, or is no longer needed, harms no other job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster_glidemq.warm import process as module
from dagster_glidemq.warm.execution import PRELOAD
from dagster_glidemq.warm.process import Stale, WarmProcess

from glidemq_orchestrate import Unrecoverable
from tests.providers.dagster.stepping import run_job, wait_for


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmProcess]:
    """One whose import does not end."""
    monkeypatch.setattr(module, "END_SECONDS", 0.2)
    process = WarmProcess()
    os.kill(process._process.pid, signal.SIGSTOP)
    yield process
    process.close()


def test_what_waits_for_an_endless_import_goes_elsewhere(
    hung: WarmProcess,
) -> None:
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            hung.run("step", {}, lambda: 0, 1.0)
        except BaseException as exc:  # noqa: BLE001  looked at below
            raised.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: not hung.is_idle, 10)
    assert not hung.retire()
    with pytest.raises(Unrecoverable, match="before its process began"):
        hung.run("step", {}, lambda: signal.SIGINT, 0.1)
    waiting.join(20)
    assert [type(one) for one in raised] == [Stale]
    assert not hung.is_usable


def test_one_that_is_retired_takes_no_job(hung: WarmProcess) -> None:
    assert hung.retire()
    with pytest.raises(Stale):
        hung.run("step", {}, lambda: 0, 1.0)


@pytest.mark.long
def test_the_storages_of_a_new_home_are_not_made_before_there_is_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins at that moment makes them too, and together they would spoil them."""
    home, imported = tmp_path / "home", tmp_path / "imported"
    home.mkdir()
    (home / "dagster.yaml").touch()
    (tmp_path / "preloaded.py").write_text(f"open({str(imported)!r}, 'w').close()")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv(PRELOAD, "preloaded")
    process = WarmProcess()
    try:
        wait_for(imported.exists, 120)
        assert [entry.name for entry in home.iterdir()] == ["dagster.yaml"]
        with pytest.raises(Unrecoverable, match="has no run"):
            process.run("run", run_job("made up").payload(), lambda: 0, 1.0)
        assert (home / "schedules").exists()
    finally:
        process.close()


@pytest.mark.long
def test_the_commands_of_dagster_are_imported_before_the_first_fork() -> None:
    """Otherwise each step would import them itself."""
    code = (
        "import sys; from dagster_glidemq.warm.execution import WarmExecution, Sources; "
        "WarmExecution(Sources()).warm_up(); print('dagster._cli.api' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"
