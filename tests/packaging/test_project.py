"""What ``glidemq init`` writes runs."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema  # type: ignore[import-untyped]
from typer.testing import CliRunner

from glidemq_orchestrate.cli import app
from tests.command_line import glidemq_problems

if TYPE_CHECKING:
    from tests.conftest import RunWorker


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "new" / "project"
    done = CliRunner().invoke(app, ["init", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def test_its_test_passes(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_its_assets_materialize(
    project: Path, url: str, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIDEMQ_URL", url)
    run_worker(["etl"], runpy.run_path(str(project / "steps.py"))["handlers"], url=url)
    definitions: Any = runpy.run_path(str(project / "definitions.py"))["defs"]

    done = definitions.resolve_implicit_global_asset_job_def().execute_in_process()

    assert done.success
    made = {event.asset_key.to_user_string() for event in done.get_asset_materialization_events()}
    assert made == {"january", "february", "report"}


def test_its_containers_are_described_as_compose_expects(project: Path) -> None:
    compose = yaml.safe_load((project / "compose.yaml").read_text())
    jsonschema.validate(compose, get_builtin_schema("vendor.compose-spec"))
    (_, _, command) = compose["services"]["worker"]["command"]
    assert glidemq_problems([command.partition("exec ")[2].split()]) == []


def test_it_replaces_nothing_unless_asked(project: Path) -> None:
    (project / "steps.py").write_text("mine")
    (project / "nightly.yaml").unlink()

    refused = CliRunner().invoke(app, ["init", str(project)])

    assert refused.exit_code == 2
    assert not (project / "nightly.yaml").exists()
    assert (project / "steps.py").read_text() == "mine"
    assert CliRunner().invoke(app, ["init", str(project), "--overwrite", "--json"]).exit_code == 0
    assert (project / "steps.py").read_text() != "mine"
