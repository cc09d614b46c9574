"""The packages from which a worker may import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from glidemq_orchestrate.worker.handlers.named_call import check_packages

BROKEN = "raise RuntimeError('it was imported')"


def test_a_package_that_cannot_be_found_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    named = ["nosuchmodule", "json.tool", "other_missing.steps", "monthly_steps", "team_steps.etl"]
    (tmp_path / "monthly_steps.py").write_text(BROKEN)
    (tmp_path / "team_steps").mkdir()
    (tmp_path / "team_steps" / "__init__.py").write_text(BROKEN)

    assert check_packages(named) == tuple(named)

    (record,) = caplog.records
    expected = "allow_import: there is no module nosuchmodule, other_missing.steps. Fix: "
    assert (record.levelname, record.getMessage().startswith(expected)) == ("WARNING", True)


class BrokenFinder:
    @staticmethod
    def find_spec(*_: object) -> None:
        raise OSError("a disk is gone")


def test_a_broken_search_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "meta_path", [BrokenFinder])
    assert check_packages(["nosuchmodule", "__main__"]) == ("nosuchmodule", "__main__")
    assert not caplog.records
