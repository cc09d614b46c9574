"""A check passes unless its result says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate.jobs.attempt import has_passed

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
