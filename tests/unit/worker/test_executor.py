"""What a worker decides."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from glidemq_orchestrate import Backoff, Handlers, RetryLater, Suspend, Unrecoverable, WaitForChildren
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.foundation.texts import MAX_REASON
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.executor import Unhandled, outcome_of_error, outcome_of_value, unknown_handler
from glidemq_orchestrate.worker.job_slots import MAX_AHEAD, JobSlots
from glidemq_orchestrate.worker.tasks import reconnect_delays

if TYPE_CHECKING:
    from tests.unit.conftest import ManualClock

BACKOFF = Backoff("exponential", timedelta(milliseconds=100), jitter=0.5)


def attempt(
    job_id: str = "1", queue: str = "etl", made: int = 0, attempts: int = 3, token: str = "t"
) -> Attempt:
    options = RunOptions(attempts, BACKOFF, None)
    return Attempt(queue, job_id, "1-1", token, "1", "work", "null", options, made, None, None)


def failure(reason: str, attempts: int, backoff_ms: int) -> tuple[Any, ...]:
    return (Kind.FAIL, reason, "", attempts, backoff_ms)


def fields_of(outcome: Outcome) -> tuple[Any, ...]:
    return tuple(outcome)[1:-1]


def test_a_worker_asks_for_as_much_as_it_has_room_for() -> None:
    slots = JobSlots(3, prefetch=0)
    assert slots.room() == 3
    slots.take(attempt("1"))
    slots.take(attempt("2"))
    assert slots.room() == 1
    slots.reserved = 1
    assert slots.room() == 0


def test_a_job_that_another_worker_may_run_by_now_is_back_soon(clock: ManualClock) -> None:
    for longest, pause in ((1_000, 1_000), (10_000, 8_000)):

        async def run(op: Any, longest: int = longest) -> Any:
            op.close()
            return longest

        queues = {"etl": QueueKeys("glide", "etl")}
        unhandled = Unhandled(run, queues, Handlers(), "w", clock, pauses={("etl", "1"): 8_000})
        outcome = asyncio.run(unhandled.outcome_of(attempt()))
        assert (outcome.kind, outcome.first - clock.now_ms()) == (Kind.LATER, pause)


def test_a_stopping_worker_takes_nothing() -> None:
    slots = JobSlots(3, stopping=True)
    assert slots.room() == 0


def test_a_worker_holds_more_short_jobs_than_it_runs_and_no_long_ones() -> None:
    slots = JobSlots(10)
    assert slots.ahead() == 0, "nothing is known yet"
    for _ in range(200):
        slots.ran(0.000_1)
    assert slots.ahead() == MAX_AHEAD
    for _ in range(200):
        slots.ran(0.02)
    assert slots.ahead() in (9, 10), "as many as start within 20 ms"
    for _ in range(200):
        slots.ran(5)
    assert slots.ahead() == 0
    assert JobSlots(10, prefetch=7).ahead() == 7


def test_jobs_of_two_queues_with_one_id_are_two_jobs() -> None:
    slots = JobSlots(3)
    one, other = attempt("1", "a"), attempt("1", "b")
    slots.take(one)
    slots.take(other)
    slots.free(one)
    assert list(slots.held.values()) == [other]


def test_the_end_of_an_older_attempt_leaves_the_newer_one() -> None:
    slots = JobSlots(3)
    older = attempt()
    newer = attempt(token="new")
    slots.take(older)
    slots.take(newer)
    slots.free(older)
    assert list(slots.held.values()) == [newer]
    slots.free(newer)
    slots.free(newer)
    assert slots.room() == 3


def test_a_result_is_handed_in_as_json() -> None:
    assert fields_of(outcome_of_value(attempt(), {"rows": 1}, 0.0)) == (Kind.DONE, '{"rows":1}', "", 0, 0)
    assert fields_of(outcome_of_value(attempt(), None, 0.0)) == (Kind.DONE, "null", "", 0, 0)


def test_a_result_that_is_not_json_is_a_failure_of_the_attempt(subtests: pytest.Subtests) -> None:
    wrong: list[Any] = [{1, 2}, float("nan"), {1: 2}, "x" * 1_048_576, object()]
    for value in wrong:
        with subtests.test(value=value):
            verdict = outcome_of_value(attempt(), value, 0.0)
            assert verdict.kind is Kind.FAIL
            assert "result of job work" in verdict.text
            assert verdict.text.startswith(("EncodeError: ", "PayloadTooLarge: "))


def test_a_result_that_is_not_json_is_told_with_its_place_and_a_conversion() -> None:
    result: Any = {"days": [datetime(2026, 1, 1)]}  # noqa: DTZ001  as it comes from a row
    told = outcome_of_value(attempt(), result, 0.0)
    assert told.text == (
        "EncodeError: result of job work is not JSON: the value at ['days'][0] is of type datetime.datetime. "
        "Convert it by str(...)"
    )


def test_an_error_is_reported_with_its_type_and_the_pause_doubles() -> None:
    assert fields_of(outcome_of_error(attempt(made=0), ValueError("x"), 0.0)) == failure(
        "ValueError: x", 3, 100
    )
    assert fields_of(outcome_of_error(attempt(made=1), ValueError("x"), 0.0)) == failure(
        "ValueError: x", 3, 200
    )
    assert fields_of(outcome_of_error(attempt(made=1), ValueError("x"), 0.5)) == failure(
        "ValueError: x", 3, 250
    )
    assert outcome_of_error(attempt(), KeyError(), 0.0).text == "KeyError"
    many = ExceptionGroup("many", [ExceptionGroup("some", [ValueError("x")]), KeyError("y")])
    assert outcome_of_error(attempt(), many, 0.0).text == (
        "ExceptionGroup: many (2 sub-exceptions), the first is ExceptionGroup: some (1 sub-exception), "
        "the first is ValueError: x"
    )


def test_an_unrecoverable_error_ends_the_job_whatever_its_options_say() -> None:
    assert fields_of(outcome_of_error(attempt(), Unrecoverable("gone"), 0.0)) == failure("gone", 0, 0)
    assert outcome_of_error(attempt(), Unrecoverable(), 0.0).text == "Unrecoverable"


def test_a_failure_has_the_group_that_its_handler_named_and_no_other() -> None:
    class Quiet(Unrecoverable):
        def __init__(self) -> None:
            """Does not call the constructor above."""

    assert outcome_of_error(attempt(), Unrecoverable("gone", group="disk"), 0.0).group == "disk"
    for error in (Unrecoverable("gone"), Quiet(), ValueError("gone")):
        assert outcome_of_error(attempt(), error, 0.0).group == ""


def test_a_retry_on_request_keeps_its_own_pause_within_the_attempts() -> None:
    later = RetryLater(timedelta(seconds=7), "busy")
    assert fields_of(outcome_of_error(attempt(made=2), later, 0.9)) == failure("busy", 3, 7000)


def test_a_long_reason_is_cut_and_shows_it() -> None:
    assert outcome_of_error(attempt(), Unrecoverable("x" * MAX_REASON), 0.0).text == "x" * MAX_REASON
    for error in (
        ValueError("x" * 10_000),
        Unrecoverable("x" * 10_000),
        RetryLater(timedelta(0), "x" * 10_000),
    ):
        reason = outcome_of_error(attempt(), error, 0.0).text
        assert len(reason) == MAX_REASON == 4_000
        assert reason.endswith("x…")


class Mute(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


def test_an_error_without_a_text_is_reported_by_its_type() -> None:
    assert fields_of(outcome_of_error(attempt(), Mute(), 0.0)) == failure("Mute", 3, 100)


def test_a_reason_that_is_not_unicode_can_be_sent() -> None:
    reason = outcome_of_error(attempt(), ValueError("bad \ud800 byte"), 0.0).text
    assert reason.encode()
    assert reason.startswith("ValueError: bad ")


def test_an_unknown_handler_is_reported_with_the_worker_and_the_remedy() -> None:
    start = (
        f"HandlerNotFound: no handler for job 'work' in worker {socket.gethostname()} {os.getpid()} (known: "
    )
    end = (
        "), nor in another live worker of queue etl. Fix: correct the job name, or start a worker with the "
        "code that has the handler; then retry"
    )
    assert fields_of(unknown_handler(attempt(), ["a", "b"])) == failure(f"{start}a, b{end}", 0, 0)
    assert fields_of(unknown_handler(attempt(), [])) == failure(f"{start}none{end}", 0, 0)


def test_pauses_between_reconnects_double_up_to_two_seconds() -> None:
    assert list(itertools.islice(reconnect_delays(), 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_what_a_handler_asks_for_instead_of_a_result() -> None:
    later = RetryLater(timedelta(seconds=7), "busy", counts=False)
    assert fields_of(outcome_of_error(attempt(), later, 0.0, now_ms=1_000)) == (Kind.LATER, "", "", 8_000, 0)
    assert fields_of(outcome_of_error(attempt(), WaitForChildren(), 0.0)) == (Kind.CHILDREN, "", "", 0, 0)
    parked = outcome_of_error(attempt(), Suspend("approval", timedelta(seconds=2)), 0.0)
    assert fields_of(parked) == (Kind.SUSPEND, "approval", "", 2_000, 0)
    assert fields_of(outcome_of_error(attempt(), Suspend(), 0.0)) == (Kind.SUSPEND, "", "", 0, 0)


def test_a_registered_backoff_decides_where_the_job_names_it() -> None:
    job = attempt(made=1)
    job.options = RunOptions(3, BACKOFF, None, backoff_name="mine")
    seen: list[Any] = []

    def mine(failures: int, error: BaseException) -> timedelta:
        seen.append((failures, error))
        return timedelta(seconds=9)

    error = ValueError("x")
    outcome = outcome_of_error(job, error, 0.0, backoffs={"mine": mine})
    assert outcome.second == 9_000
    assert seen == [(2, error)]
    assert outcome_of_error(job, error, 0.0, backoffs={"other": mine}).second == 200

    def broken(failures: int, error: BaseException) -> timedelta:
        raise RuntimeError

    outcome = outcome_of_error(job, error, 0.0, backoffs={"mine": broken})
    assert outcome.second == 0
    assert outcome.text == "ValueError: x (and backoff 'mine' raised RuntimeError)"


def test_retention_goes_with_the_outcome() -> None:
    job = attempt()
    job.options = RunOptions.from_wire('{"removeOnComplete":true,"removeOnFail":{"age":10,"count":5}}')
    assert outcome_of_value(job, 1, 0.0).retention == "true 0 0"
    assert outcome_of_error(job, ValueError(), 0.0).retention == "age_count 5 10"
