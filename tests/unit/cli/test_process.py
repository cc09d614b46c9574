"""The log of a worker as JSON lines, and what a worker may import."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate.cli.process import JsonLines, loaded

LOG_LINES: list[tuple[Any, Any]] = [
    ({}, {}),
    (
        {"action": "slow", "seconds": 1.5, "job_id": "7"},
        {"action": "slow", "seconds": 1.5, "job_id": "7"},
    ),
    ({"flow_id": None}, {}),
    ({"path": object}, {"path": str(object)}),
]


def test_a_line_has_every_field_that_the_record_was_given(subtests: pytest.Subtests) -> None:
    for extra, shown in LOG_LINES:
        with subtests.test(extra=extra):
            logger = logging.getLogger("tests")
            record = logger.makeRecord(
                "tests", logging.INFO, "f.py", 1, "it took %d s", (2,), None, extra=extra
            )
            found = json.loads(JsonLines().format(record))
            assert found.pop("time").endswith("+00:00")
            assert found == {"level": "info", "logger": "tests", "message": "it took 2 s", **shown}


APP = "glidemq_orchestrate.python"
BROKEN = "raise RuntimeError('it was imported')"


def test_a_package_that_cannot_be_found_is_reported_once_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    named = ["nosuchmodule", "json.tool", "other_missing.steps", "monthly_steps", "team_steps.etl"]
    (tmp_path / "monthly_steps.py").write_text(BROKEN)
    (tmp_path / "team_steps").mkdir()
    (tmp_path / "team_steps" / "__init__.py").write_text(BROKEN)

    _, packages = loaded([APP], named)

    assert packages == named
    (record,) = caplog.records
    expected = "--allow-import: there is no module nosuchmodule, other_missing.steps. Fix: "
    assert (record.levelname, record.getMessage().startswith(expected)) == ("WARNING", True)


def test_the_packages_of_the_app_need_no_search(caplog: pytest.LogCaptureFixture) -> None:
    assert loaded([APP], None)[1] == [APP]
    assert not caplog.records


class BrokenFinder:
    @staticmethod
    def find_spec(*_: object) -> None:
        raise OSError("a disk is gone")


def test_a_broken_search_does_not_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "meta_path", [BrokenFinder])
    assert loaded([APP], ["nosuchmodule", "", "__main__"])[1] == ["nosuchmodule", "", "__main__"]
    assert not caplog.records
