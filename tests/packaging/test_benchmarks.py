"""The harness of the benchmarks runs, with our own contender alone and tiny sizes; figures do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import instructions

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    """What a program of ``benchmarks`` prints."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def test_every_row_has_a_figure_of_ours() -> None:
    report = json.loads(run("benchmarks", "--rivals=", "--scale", "0.002", "--rounds", "1", "--json"))
    figures = report["figures"]
    assert all(found["glidemq"] >= 0 for found in figures.values())
    rows = ["add one by one, jobs/s", "add in bulk, jobs/s", "drain at 50, jobs/s", "add to finished p99, ms"]
    shapes = ["fan-in of 101", "columns of 101", "layers of 101", "chain of 100"]
    assert {*rows, *(f"submit {shape}, ms" for shape in shapes)} <= figures.keys()
    assert {row["shape"] for row in report["flow sizes"]} == {"mesh", "fan-in", "fan-out"}
    assert all(row["bytes/node"] > 0 for row in report["flow sizes"])


def test_the_profile_names_the_sides_and_the_functions() -> None:
    profile = run("benchmarks.profile_worker", "--jobs", "200")
    assert "fcall" in profile
    assert "worker/runner.py" in profile


@pytest.mark.parametrize("work", ["add", "drain", "run mesh"])
def test_what_is_counted_is_done(work: str, url: str, redis_client: Any) -> None:
    for todo in (instructions.WORKS[work], work):
        if todo:
            instructions.do(ROOT, url, todo, 200)
    has_run = work.startswith(("drain", "run"))
    assert redis_client.zcard("glide:{bench}:completed") >= 200 * has_run
    assert (redis_client.xlen("glide:{bench}:stream") == 0) is has_run
