"""The built distributions hold what they need, and can be used without the extras."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
DISTRIBUTIONS = {
    "glidemq_orchestrate": [
        "_lua/glidemq.lua",
        "_lua/glidemq_orchestrate.lua",
        "_lua/MANIFEST.json",
        "flow.schema.json",
        "project/steps.py.txt",
    ],
    "airflow_provider_glidemq": ["get_provider_info.py"],
    "dagster_glidemq": ["resource.py"],
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [UV, "build", "--quiet", "--all-packages", "--wheel", "--no-build-isolation", "--out-dir", out],
        cwd=ROOT,
        check=True,
        timeout=240,
    )
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_a_wheel_holds_its_data_and_its_type_marker(wheels: dict[str, Path], package: str) -> None:
    names = zipfile.ZipFile(wheels[package]).namelist()

    for needed in ["__init__.py", "py.typed", *DISTRIBUTIONS[package]]:
        assert f"{package}/{needed}" in names
    assert not [name for name in names if name.startswith(("tests/", "lua/"))]


def test_the_core_wheel_works_without_extras(wheels: dict[str, Path], tmp_path: Path) -> None:
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [
            UV, "pip", "install", "--quiet", "--python", python,
            "-c", ROOT / "constraints.txt", wheels["glidemq_orchestrate"],
        ],
        check=True,
        timeout=240,
    )  # fmt: skip

    spec = "FlowSpec('f', [FlowNode('a', queue='q', job='j')])"
    code = f"from glidemq_orchestrate import *; print(check_flow({spec}).home)"
    imported = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    command = subprocess.run(
        [tmp_path / "venv" / "bin" / "glidemq", "server", "--port", "1"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    subprocess.run([tmp_path / "venv" / "bin" / "glidemq", "init", "new"], cwd=tmp_path, check=True)

    assert (tmp_path / "new" / "steps.py").exists()
    assert imported.stdout.strip() == "q"
    assert command.returncode == 2
    assert "pip install" in command.stderr
