"""The command as a whole."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate.cli import app


def test_it_tells_its_version() -> None:
    ran = CliRunner().invoke(app, ["--version"])
    assert (ran.exit_code, ran.output) == (0, f"glidemq-orchestrate {version('glidemq-orchestrate')}\n")


def test_without_a_command_it_says_what_there_is() -> None:
    ran = CliRunner().invoke(app, [])
    assert "Run DAGs as flows of jobs on Valkey" in ran.output
    assert "worker" in ran.output


WRONG = [
    ("flow list --state foo", "'--state': 'foo' is not one of 'staging', 'running',"),
    ("queue jobs etl --state foo", "'--state': 'foo' is not one of 'waiting', 'active',"),
    ("worker --app x --queue q --log-level loud", "'--log-level': 'loud' is not one of 'debug',"),
    ("queue jobs etl --limit x", "'--limit': must be a valid integer"),
    ("worker --app x --queue q --concurrency 0", "'--concurrency': must be greater than or equal to 1"),
    ("server --port 99999999", "'--port': must be less than or equal to 65535"),
]


def test_a_wrong_value_is_told_in_plain_words(subtests: pytest.Subtests) -> None:
    for line, expected in WRONG:
        with subtests.test(line=line):
            ran = CliRunner().invoke(app, line.split())
            said = " ".join(ran.output.replace("│", " ").split())
            assert ran.exit_code == 2
            assert f"Invalid value for {expected}" in said
            assert "Value error" not in said
            assert "unable to parse" not in said
