"""What a worker decides."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from glidemq_orchestrate import Backoff, RetryLater, Unrecoverable
from glidemq_orchestrate._worker_core import (
    MAX_REASON,
    Chore,
    ChoreList,
    Fail,
    Finish,
    Slots,
    judge_error,
    judge_result,
    reconnect_delays,
    unknown_handler,
)
from glidemq_orchestrate.job import Attempt, RunOptions

BACKOFF = Backoff("exponential", timedelta(milliseconds=100), jitter=0.5)


def attempt(
    job_id: str = "1", queue: str = "etl", made: int = 0, attempts: int = 3, token: str = "t"
) -> Attempt:
    options = RunOptions(attempts, BACKOFF, None)
    return Attempt(queue, job_id, "1-1", token, "1", "work", "null", options, made, None, None)


def test_a_worker_takes_as_much_as_it_has_room_for() -> None:
    slots = Slots(3)
    assert [slots.room(waiting) for waiting in range(5)] == [3, 2, 1, 0, 0]
    slots.take(attempt("1"))
    slots.take(attempt("2"))
    assert slots.room(0) == 1
    assert slots.room(2) == 0


def test_a_stopping_worker_takes_nothing() -> None:
    slots = Slots(3, stopping=True)
    assert slots.room(0) == 0


def test_jobs_of_two_queues_with_one_id_are_two_jobs() -> None:
    slots = Slots(3)
    one, other = attempt("1", "a"), attempt("1", "b")
    slots.take(one)
    slots.take(other)
    slots.free(one)
    assert list(slots.held.values()) == [other]


def test_the_end_of_an_older_attempt_leaves_the_newer_one() -> None:
    slots = Slots(3)
    older = attempt()
    newer = replace(older, token="new")
    slots.take(older)
    slots.take(newer)
    slots.free(older)
    assert list(slots.held.values()) == [newer]
    slots.free(newer)
    slots.free(newer)
    assert slots.room(0) == 3


def test_chores_are_due_at_once_and_then_every_period() -> None:
    chores = ChoreList({Chore.BEAT: 100, Chore.UPKEEP: 250})
    assert chores.take(1000) == [Chore.BEAT, Chore.UPKEEP]
    assert chores.take(1000) == []
    assert chores.wait_ms(1000) == 100
    assert chores.take(1100) == [Chore.BEAT]
    assert chores.take(1250) == [Chore.BEAT, Chore.UPKEEP]
    assert chores.wait_ms(9999) == 0


def test_a_chore_can_be_brought_forward_and_not_put_off() -> None:
    chores = ChoreList({Chore.UPKEEP: 1000})
    chores.take(0)
    chores.bring_forward(Chore.UPKEEP, 5000)
    assert chores.wait_ms(0) == 1000
    chores.bring_forward(Chore.UPKEEP, 300)
    assert chores.wait_ms(0) == 300
    assert chores.take(300) == [Chore.UPKEEP]
    assert chores.wait_ms(300) == 1000


def test_a_result_is_handed_in_as_json() -> None:
    assert judge_result(attempt(), {"rows": 1}, 0.0) == Finish('{"rows":1}')
    assert judge_result(attempt(), None, 0.0) == Finish("null")


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), {1: 2}, "x" * 1_048_576, object()], ids=range(5))
def test_a_result_that_is_no_json_is_a_failure_of_the_attempt(value: Any) -> None:
    verdict = judge_result(attempt(), value, 0.0)
    assert isinstance(verdict, Fail)
    assert "result of job work" in verdict.reason
    assert verdict.reason.startswith(("EncodeError: ", "PayloadTooLarge: "))


def test_an_error_is_told_with_its_type_and_the_pause_doubles() -> None:
    assert judge_error(attempt(made=0), ValueError("x"), 0.0) == Fail("ValueError: x", 3, 100)
    assert judge_error(attempt(made=1), ValueError("x"), 0.0) == Fail("ValueError: x", 3, 200)
    assert judge_error(attempt(made=1), ValueError("x"), 0.5) == Fail("ValueError: x", 3, 250)
    assert judge_error(attempt(), KeyError(), 0.0).reason == "KeyError"


def test_an_unrecoverable_error_ends_the_job_whatever_its_options_say() -> None:
    assert judge_error(attempt(), Unrecoverable("gone"), 0.0) == Fail("gone", 0, 0)
    assert judge_error(attempt(), Unrecoverable(), 0.0).reason == "Unrecoverable"


def test_a_retry_on_request_keeps_its_own_pause_within_the_attempts() -> None:
    later = RetryLater(timedelta(seconds=7), "busy")
    assert judge_error(attempt(made=2), later, 0.9) == Fail("busy", 3, 7000)


def test_a_long_reason_is_cut_and_shows_it() -> None:
    assert judge_error(attempt(), Unrecoverable("x" * MAX_REASON), 0.0).reason == "x" * MAX_REASON
    for error in (
        ValueError("x" * 10_000),
        Unrecoverable("x" * 10_000),
        RetryLater(timedelta(0), "x" * 10_000),
    ):
        reason = judge_error(attempt(), error, 0.0).reason
        assert len(reason) == MAX_REASON == 4_000
        assert reason.endswith("x…")


class Mute(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


def test_an_error_that_cannot_tell_itself_is_told_by_its_type() -> None:
    assert judge_error(attempt(), Mute(), 0.0) == Fail("Mute", 3, 100)


def test_a_reason_that_is_no_unicode_can_be_sent() -> None:
    reason = judge_error(attempt(), ValueError("bad \ud800 byte"), 0.0).reason
    assert reason.encode()
    assert reason.startswith("ValueError: bad ")


def test_an_unknown_handler_tells_the_known_names() -> None:
    told = "HandlerNotFound: no handler for job 'work' in this worker (known: "
    assert unknown_handler(attempt(), ["a", "b"]) == Fail(told + "a, b)", 0, 0)
    assert unknown_handler(attempt(), []) == Fail(told + "none)", 0, 0)


def test_pauses_between_reconnects_double_up_to_five_seconds() -> None:
    assert list(itertools.islice(reconnect_delays(), 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
