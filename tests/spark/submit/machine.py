"""A machine for one test, as the drivers of ``spark.submit`` know it: a folder for temporary files."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from glidemq_orchestrate.spark.submit.driver_folder import DriverFolder, home


def move(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process, and the workers that it starts, are on a machine of their own."""
    machine.mkdir()
    monkeypatch.setenv("TMPDIR", str(machine))
    monkeypatch.setattr("tempfile.tempdir", str(machine))


def kept() -> list[DriverFolder]:
    """The folders of drivers."""
    return [DriverFolder(path) for path in home().iterdir() if path.is_dir()]


def drivers_of(folder: Path) -> list[str]:
    """The commands of the drivers that run programs in a folder."""
    found = [" ".join(_command(one)) for one in psutil.process_iter()]
    return [text for text in found if "SparkSubmit" in text and f"{folder}/" in text]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
