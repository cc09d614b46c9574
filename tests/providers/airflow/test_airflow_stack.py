"""Starting and stopping Airflow's processes, with stand-ins for them. The real ones: tests/system."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate.demo import airflow_stack
from glidemq_orchestrate.demo.airflow_stack import AirflowStack, AirflowStackError
from glidemq_orchestrate.lifeline.lifeline import lifeline

FAKE = """#!/bin/sh
echo "$3 $4" >> "$AIRFLOW_HOME/calls"
if [ "$3" = db ]; then env > "$AIRFLOW_HOME/environment"; exit {migrate}; fi
sleep 300 &
echo $! >> "$AIRFLOW_HOME/children"
wait
"""


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, migrate: int = 0) -> None:
    assert lifeline.mark  # its guard is started with the real Python
    script = tmp_path / "python"
    script.write_text(FAKE.format(migrate=migrate))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    """Whether all have ended; a killed process needs a moment for it."""
    until = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def children(home: Path) -> list[int]:
    return [int(line) for line in (home / "children").read_text().split()]


def test_nothing_is_left_of_a_start_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch)
    stack = AirflowStack(tmp_path / "home", tmp_path)
    with pytest.raises(AirflowStackError, match="not healthy"):
        stack.start(timeout=1)
    assert stack.pids == {}
    left = children(stack.home)
    assert len(left) == 4
    assert gone(left)


def test_a_wait_names_the_component_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch)
    monkeypatch.setattr(AirflowStack, "_wait_until_healthy", lambda *_: None)
    monkeypatch.setattr(AirflowStack, "_ask", lambda *_: {"access_token": "t"})
    monkeypatch.setattr(AirflowStack, "dag_run_state", lambda *_: "queued")
    monkeypatch.setattr(AirflowStack, "task_states", lambda *_: {})
    with AirflowStack(tmp_path / "home", tmp_path) as stack:
        (stack.home / "scheduler.log").write_text("database is locked\n")
        os.killpg(stack.pids["scheduler"], signal.SIGKILL)
        with pytest.raises(AirflowStackError, match="airflow scheduler has ended:\ndatabase is locked"):
            stack.wait_for_run("nightly", "r", timeout=30)
        with pytest.raises(AirflowStackError, match="airflow scheduler has ended"):
            stack.wait_for_task("nightly", "r", "flow", ["success"], timeout=30)


def test_nothing_is_left_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch)
    stack = AirflowStack(tmp_path / "home", tmp_path)

    def interrupt(*_: Any) -> None:
        until = time.monotonic() + 10
        while not (stack.home / "children").exists() or len(children(stack.home)) < 4:
            assert time.monotonic() < until
        raise KeyboardInterrupt

    monkeypatch.setattr(stack, "_wait_until_healthy", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stack.start()
    assert gone(children(stack.home))


def test_a_second_start_migrates_nothing_and_keeps_the_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(tmp_path, monkeypatch)
    home = tmp_path / "home"
    kept = []
    for _ in range(2):
        with pytest.raises(AirflowStackError):
            AirflowStack(home, tmp_path).start(timeout=0.5)
        (home / "airflow.db").touch()
        kept.append((home / "secrets.json").read_text())
    assert kept[0] == kept[1]
    assert (home / "secrets.json").stat().st_mode & 0o077 == 0
    assert (home / "calls").read_text().splitlines().count("db migrate") == 1


def test_a_failed_migration_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch, migrate=3)
    with pytest.raises(AirflowStackError, match="db migrate failed"):
        AirflowStack(tmp_path / "home", tmp_path).start()


def test_the_stack_s_own_settings_win_over_the_shell_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(tmp_path, monkeypatch)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "SomethingElse")
    monkeypatch.setenv("PYTHONPATH", "/already/there")
    stack = AirflowStack(
        tmp_path / "home",
        tmp_path,
        connections={"glidemq_default": {"conn_type": "glidemq", "host": "h"}},
        python_path=[tmp_path / "lib"],
        environment={**os.environ, "EXTRA": "1"},
    )
    with pytest.raises(AirflowStackError):
        stack.start(timeout=0.2)
    lines = (stack.home / "environment").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    assert seen["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert seen["PYTHONPATH"] == f"{tmp_path / 'lib'}:/already/there"
    assert seen["EXTRA"] == "1"
    assert json.loads(seen["AIRFLOW_CONN_GLIDEMQ_DEFAULT"]) == {"conn_type": "glidemq", "host": "h"}


def test_a_stop_without_a_start_does_nothing(tmp_path: Path) -> None:
    AirflowStack(tmp_path, tmp_path).stop()
    assert airflow_stack.COMPONENTS == ("api-server", "scheduler", "dag-processor", "triggerer")
