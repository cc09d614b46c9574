"""The comparison with the package runs; figures do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_has_a_figure_of_each() -> None:
    command = [sys.executable, "-m", "benchmarks.chasquimq", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    figures = json.loads(done.stdout)["figures"]
    rows = ("add one by one", "add in bulk", "drain at 1", "drain at 50")
    assert all(min(figures[f"{row}, jobs/s"].values()) > 0 for row in rows)
    assert all(found.keys() == {"glidemq_chasquimq", "chasquimq"} for found in figures.values())
