"""Outcomes of slices of arrays, and what they say of each element."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.jobs.attempt import Attempt, Slice
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.worker.early_reports import EarlyReports
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.slices import SliceSizes, ends_of, for_kept, is_of_elements


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


def test_an_early_report_is_about_the_elements_that_have_ended(attempt: Attempt) -> None:
    outcome = Outcome(attempt, Kind.ELEMENTS, "d7\na1\nk")
    assert (outcome.elements, outcome.is_early) == (1, True)
    ((end, verdict),) = ends_of(outcome, "ok")
    assert (end.kind, end.text, end.attempt.element, verdict) == (Kind.DONE, "7", 3, "ok")
    nothing = Outcome(attempt, Kind.ELEMENTS, "k")
    assert (nothing.elements, nothing.is_early, list(ends_of(nothing, "ok"))) == (0, True, [])


def test_the_end_of_a_kept_element_says_which_it_is(attempt: Attempt) -> None:
    failure = Outcome(attempt, Kind.FAIL, "revoked")
    assert for_kept(failure) is failure
    assert attempt.slice is not None
    attempt.slice = replace(attempt.slice, indexes=[4], tried=[1], is_kept=True)
    assert for_kept(failure) == Outcome(attempt, Kind.ELEMENTS, "f0 0 revoked", first=5)


class Reports:
    """What ``EarlyReports`` reports and cancels."""

    def __init__(self) -> None:
        self.sent: list[Outcome] = []
        self.cancelled: list[Attempt] = []
        self.early = EarlyReports(self.sent.append, self.cancelled.append)


@pytest.mark.parametrize(
    ("verdict", "is_lost"),
    [("ok", False), ("ok\nretrying", False), ("stale it is lost", True), ("error x", True)],
)
def test_the_end_of_an_attempt_waits_for_the_verdict_on_its_early_report(
    attempt: Attempt, verdict: str, *, is_lost: bool
) -> None:
    reports, other = Reports(), replace(attempt, job_id="f~a{2}")
    early, end = Outcome(copy(attempt), Kind.ELEMENTS, "d\nk"), Outcome(attempt, Kind.ELEMENTS, "d", first=5)
    reports.early.begin(attempt, early)
    assert reports.early.unreported("etl") == []
    reports.early.end(end)
    reports.early.end(Outcome(other, Kind.BACK))
    assert reports.sent == [early, Outcome(other, Kind.BACK)]
    assert reports.early.unreported("etl") == [attempt]
    assert reports.early.unreported("spark") == []
    assert reports.early.judged(early, verdict) is is_lost
    assert reports.sent[2:] == [end]
    assert reports.cancelled == [attempt] * is_lost
    assert not reports.early.judged(end, "stale it is lost")
    assert reports.cancelled == [attempt] * is_lost


def test_an_early_report_that_had_to_become_a_failure_stops_the_handler(attempt: Attempt) -> None:
    reports, reported = Reports(), copy(attempt)
    reports.early.begin(attempt, Outcome(reported, Kind.ELEMENTS, "d\nk"))
    reports.early.judged(Outcome(reported, Kind.FAIL, "EncodeError"), "failed\nfailed")
    assert reports.cancelled == [attempt]


def test_a_long_element_makes_slices_shorter_only_as_far_as_it_holds_others_up(attempt: Attempt) -> None:
    sizes = SliceSizes(Handlers())
    for _ in range(20):
        sizes.ran(Outcome(attempt, Kind.ELEMENTS, "\n".join("d" * 50)), 0.05)
    assert sizes.of("etl") == '{"": 1, "a": 100}'
    sizes.ran(Outcome(attempt, Kind.ELEMENTS, "d\nd\nd\nd\nk"), 0.5)
    attempt.slice = replace(attempt.slice, indexes=[4], is_kept=True)  # type: ignore[type-var]
    sizes.ran(Outcome(attempt, Kind.ELEMENTS, "d"), 3_600)
    assert sizes.of("etl") == '{"": 1, "a": 3}'
