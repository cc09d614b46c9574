"""The log of a worker as JSON lines."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from glidemq_orchestrate.cli.process import JsonLines

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
