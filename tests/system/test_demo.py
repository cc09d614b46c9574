"""The demonstration, as a new user runs it: real orchestrator, Valkey, worker and Spark, real flights."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow.parquet as pq
import pytest

from tests.processes import run, runs, spawn

if TYPE_CHECKING:
    from tests.conftest import Eventually

ROOT = Path(__file__).parents[2]
MONTHS, NODES = "1,2", 10
FLIGHTS = 27_004 + 24_951
PARTS = {"airflow": ("scheduler", "dag-processor", "triggerer", "api"), "dagster": ("dagster job execute",)}

pytestmark = [pytest.mark.system, pytest.mark.spark]


def run_demo(orchestrator: str, home: Path) -> str:
    """Of two months; tests/spark has the whole year in the long profile."""
    command = [sys.executable, "-m", "glidemq_orchestrate", "demo", "--orchestrator", orchestrator]
    command += ["--months", MONTHS]
    done = run([*command, "--home", home, "--project", ROOT], timeout=560)
    logs = "\n".join(
        f"--- {log.relative_to(home)}\n{log.read_text(errors='replace')[-3000:]}"
        for log in home.rglob("*.log")
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.parametrize("orchestrator", ["airflow", "dagster"])
def test_the_flights_run_end_to_end_and_leave_a_chart_and_a_report(orchestrator: str, tmp_path: Path) -> None:
    shown = run_demo(orchestrator, tmp_path)

    assert f"completed  {NODES}/{NODES} completed" in shown
    chart = Path(re.findall(r"Chart: +(\S+)", shown)[0])
    report = Path(re.findall(r"Report: +(\S+)", shown)[0])
    assert chart.read_bytes().startswith(b"\x89PNG\r\n")
    rows = pq.read_table(report).to_pylist()
    assert [row["flights"] for row in rows if row["section"] == "all"] == [FLIGHTS]
    assert sum(row["flights"] for row in rows if row["section"] == "carrier") == FLIGHTS
    assert f"{FLIGHTS:,}" in shown
    assert processes_below(tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("orchestrator", ["airflow", "dagster"])
def test_a_demo_that_is_killed_leaves_nothing(
    orchestrator: str, tmp_path: Path, eventually: Eventually
) -> None:
    command = [sys.executable, "-m", "glidemq_orchestrate", "demo", "--home", str(tmp_path)]
    command += ["--project", str(ROOT), "--orchestrator", orchestrator]
    output = tmp_path / "output"
    with output.open("wb") as file:
        demo = spawn(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        eventually((tmp_path / "flights").is_dir, 240)  # by then all is there, and steps run
        below = psutil.Process(demo.pid).children(recursive=True)
        names = " ".join(name_of(each) for each in below)
    finally:
        demo.kill()  # and not its group: ending it is the demo's own task
        demo.wait()
    for part in ("valkey-server", "glidemq_orchestrate worker", "java", *PARTS[orchestrator]):
        assert part in names
    killed = time.monotonic()
    eventually(lambda: not any(map(runs, below)) and not processes_below(tmp_path), 30)
    assert time.monotonic() - killed < 15


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def processes_below(home: Path) -> list[str]:
    """Processes that still work on the demo's data."""
    found: list[str] = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(home) in line or str(process.info["cwd"] or "").startswith(str(home)):
            found.append(line)
    return found
