"""A short run of every entry, the same cases each time; ``make fuzz`` looks for others, and for more."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fuzz.__main__ import app
from tests.fuzz.campaign import run
from tests.fuzz.entries import ENTRIES

CASES = {
    "flow-files": 150,
    "constructors": 200,
    "addresses": 150,
    "calls": 80,
    "replies": 100,
    "commands": 25,
    "stored": 12,
}


def test_every_entry_has_a_short_run() -> None:
    assert CASES.keys() == ENTRIES.keys()


@pytest.mark.parametrize("name", CASES)
def test_bad_input_breaks_nothing(name: str) -> None:
    report = run(ENTRIES[name], 1, CASES[name])
    assert report.cases == CASES[name]
    assert not report.findings, report


@pytest.mark.long
def test_the_same_seed_has_the_same_cases_in_another_process() -> None:
    """As the command runs: Hypothesis also draws constants of the modules that a process has loaded."""
    script = (
        "from tests.fuzz.campaign import run; from tests.fuzz.entries import ENTRIES;"
        "print(*(run(ENTRIES['constructors'], seed, 15).inputs for seed in (5, 6)))"
    )
    command = [sys.executable, "-c", script]
    first, other = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)
    )
    assert first == other
    assert first[0] != first[1]


def test_the_command_reports_an_unknown_entry_and_the_cases_of_a_known_one() -> None:
    unknown: Any = CliRunner().invoke(app, ["--entry", "nope"])
    assert (unknown.exit_code, "flow-files" in unknown.output) == (2, True)
    known: Any = CliRunner().invoke(app, ["--entry", "constructors", "--cases", "20", "--seed", "1"])
    assert known.exit_code == 0, known.output
    assert "constructors: 20 cases" in known.output
    assert "repeat: python -m tests.fuzz --entry constructors --seed 1 --cases 20" in known.output
