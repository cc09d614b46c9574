"""Outcomes of slices of arrays, and what they say of each element."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.jobs.attempt import Attempt, Slice
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.worker.slices import ends_of, is_of_elements


@pytest.fixture
def attempt() -> Attempt:
    row: list[Any] = [
        "f~a{1}",
        "",
        "1",
        "a",
        "null",
        "{}",
        "0",
        "f",
        "a",
        None,
        None,
        None,
        [],
        "1",
        None,
        "",
    ]
    found = Attempt.from_row("etl", "w/1", [*row, ["3-4", "0,1", "", "0 1"]])
    assert found.slice == Slice("f~a", [3, 4], [0, 1], start=0, step=1)
    assert isinstance(found.options, RunOptions)
    return found


def test_each_line_is_the_end_of_an_element(attempt: Attempt) -> None:
    outcome = Outcome(attempt, Kind.ELEMENTS, "d7\nf2 500 ValueError: no")
    assert outcome.elements == 2
    (first, one), (second, other) = ends_of(outcome, "ok\nretrying")
    assert (first.kind, first.text, first.attempt.element, one) == (Kind.DONE, "7", 3, "ok")
    assert (second.kind, second.text, second.first, second.second) == (Kind.FAIL, "ValueError: no", 2, 500)
    assert (second.attempt.element, second.attempt.attempts_made, other) == (4, 1, "retrying")
    assert {first.attempt.job_id, second.attempt.node_job_id} == {"f~a"}
    assert not is_of_elements(first)
    assert not is_of_elements(second)


@pytest.mark.parametrize("running", [None, 3])
def test_a_slice_that_fails_as_a_whole_is_the_end_of_all(attempt: Attempt, running: int | None) -> None:
    attempt.element = running
    outcome = Outcome(attempt, Kind.FAIL, "the worker's own code failed", first=0)
    assert is_of_elements(outcome)
    ends = list(ends_of(outcome, "failed\nfailed"))
    assert [(end.attempt.element, end.kind, verdict) for end, verdict in ends] == [
        (3, Kind.FAIL, "failed"),
        (4, Kind.FAIL, "failed"),
    ]
