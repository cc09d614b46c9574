"""The demonstration, as a new user runs it: real orchestrator, Valkey, worker and Spark, real flights."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.processes import run

ROOT = Path(__file__).parents[2]
ALL_FLIGHTS = 336_776
NODES = 20

pytestmark = [pytest.mark.system, pytest.mark.spark]


def run_demo(orchestrator: str, home: Path) -> str:
    command = [sys.executable, "-m", "glidemq_orchestrate", "demo", "--orchestrator", orchestrator]
    done = run([*command, "--home", home, "--project", ROOT], timeout=560)
    logs = "\n".join(
        f"--- {log.relative_to(home)}\n{log.read_text(errors='replace')[-3000:]}"
        for log in home.rglob("*.log")
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("orchestrator", ["airflow", "dagster"])
def test_the_flights_run_end_to_end_and_leave_a_chart_and_a_report(orchestrator: str, tmp_path: Path) -> None:
    shown = run_demo(orchestrator, tmp_path)

    assert f"completed  {NODES}/{NODES} completed" in shown
    chart = Path(re.findall(r"Chart: +(\S+)", shown)[0])
    report = Path(re.findall(r"Report: +(\S+)", shown)[0])
    assert chart.read_bytes().startswith(b"\x89PNG\r\n")
    rows = pq.read_table(report).to_pylist()
    assert [row["flights"] for row in rows if row["section"] == "all"] == [ALL_FLIGHTS]
    assert sum(row["flights"] for row in rows if row["section"] == "carrier") == ALL_FLIGHTS
    assert f"{ALL_FLIGHTS:,}" in shown
    assert processes_below(tmp_path) == []


def processes_below(home: Path) -> list[str]:
    """Processes that still work on the demo's data."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(home) in line or str(process.info["cwd"] or "").startswith(str(home)):
            found.append(line)
    return found
