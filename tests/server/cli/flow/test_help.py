"""Every command of ``glidemq flow`` explains itself."""

from __future__ import annotations

import json

from typer.main import get_group
from typer.testing import CliRunner

from glidemq_orchestrate.cli import app
from glidemq_orchestrate.cli.flow import flow_app
from tests.server.cli.flow.conftest import Glidemq


def test_the_schema_is_printed(glidemq: Glidemq) -> None:
    shown = json.loads(glidemq("flow", "schema").stdout)
    assert shown["title"] == "glidemq flow"
    assert set(shown["properties"]) >= {"name", "nodes", "labels", "retention"}


def test_every_command_explains_itself() -> None:
    for command in get_group(flow_app).commands:
        shown = CliRunner().invoke(app, ["flow", command, "--help"], terminal_width=200)
        assert shown.exit_code == 0
        assert len(shown.output) > 250
        assert f"flow {command}" in shown.output


def test_the_exit_codes_are_documented() -> None:
    for words in (["flow"], ["flow", "submit"], ["flow", "watch"], ["flow", "retry"]):
        shown = CliRunner().invoke(app, [*words, "--help"], terminal_width=200).output
        assert "3 the flow did not end within --timeout" in " ".join(shown.split())
