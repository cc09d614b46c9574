"""An attempt as fetched, and which results of a check pass."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate.jobs.attempt import Attempt, has_passed
from glidemq_orchestrate.jobs.options import RunOptions

RESULTS: list[tuple[Any, bool]] = [
    (None, True),
    (True, True),
    (0, True),
    (False, False),
    ({"passed": False}, False),
    ({"passed": None}, True),
    ({"passed": True, "checks": [{"passed": True}]}, True),
    ({"checks": [{"passed": True}, {"passed": False}]}, False),
    ({"checks": [{"passed": True}, {"passed": False, "severity": "warn"}]}, True),
    ({"checks": [{"passed": False, "severity": "ERROR"}]}, False),
    ({"checks": [{"passed": False, "severity": None}]}, False),
    ({"checks": [False, 1, None]}, True),
    ({"checks": {"passed": False}}, True),
    ({"rows": 0}, True),
    ([False], True),
]


def test_a_result_fails_only_if_it_says_so(subtests: pytest.Subtests) -> None:
    for result, passed in RESULTS:
        with subtests.test(result=result):
            assert has_passed(result) is passed


def test_a_row_of_the_server_sets_every_field_of_an_attempt() -> None:
    row: list[Any] = ["7", "1-1", "5", "work", "{}", "{}", "2", "nightly", "clean"]
    row += ["[]", "1", "b", ["a", "1"], "9", "3", "*"]
    fetched = Attempt.from_row("etl", "w/t", row)
    options = RunOptions.from_wire("{}")
    built = Attempt(
        "etl", "7", "1-1", "w/t*", "5", "work", "{}", options, 2, "nightly", "clean",
        "[]", 1, "b", {"a": "1"}, epoch=9, suspect=3, is_ahead=True, stored_flow="nightly",
    )  # fmt: skip
    assert fetched == built
