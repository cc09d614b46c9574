"""The command as a whole."""

from __future__ import annotations

from importlib.metadata import version

from typer.testing import CliRunner

from glidemq_orchestrate.cli import app


def test_it_tells_its_version() -> None:
    ran = CliRunner().invoke(app, ["--version"])
    assert (ran.exit_code, ran.output) == (0, f"glidemq-orchestrate {version('glidemq-orchestrate')}\n")


def test_without_a_command_it_says_what_there_is() -> None:
    ran = CliRunner().invoke(app, [])
    assert "Run DAGs as flows of jobs on Valkey" in ran.output
    assert "worker" in ran.output
