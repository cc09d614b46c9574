"""gmo_note_published, and what becomes of the notes when an outcome is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.changes import remove_jobs
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.spark.published import catching_up
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
DAY_MS = 86_400_000


@pytest.fixture
def attempt(bench: Bench) -> Attempt:
    bench.call(add_job_call(ETL, "work", "1", JobOptions(job_id="j"), bench.now))
    return bench.begin()


def note(attempt: Attempt, *lines: str) -> Any:
    return attempt_calls.note_published(attempt, ETL, lines, 1_000_000)


def noted(bench: Bench) -> list[str]:
    found: list[str] = bench.hand.run(catching_up.noted_lines(ETL))
    return found


def test_a_note_counts_with_the_result_and_outlives_its_job(bench: Bench, attempt: Attempt) -> None:
    assert bench.call(note(attempt, "a", "b c")) == 2
    assert bench.unchanged(note(attempt, "a", "b c")) == 2
    assert bench.call(note(attempt, "d")) == 3
    assert noted(bench) == []
    bench.hand_in(Outcome(attempt, Kind.DONE, "1", "true 0 0"))
    assert bench.job("j") == {}
    assert noted(bench) == ["a", "b c", "d"]
    assert 0 < bench.client.pttl("glide:{etl}:gmo:published") <= 30 * DAY_MS
    bench.hand.run(catching_up.forget_lines(ETL, ["b c", "d"]))
    bench.hand.run(catching_up.forget_lines(ETL, ["b c"]))
    assert noted(bench) == ["a"]
    bench.hand.run(catching_up.forget_lines(ETL, ["a"]))
    assert not bench.client.exists("glide:{etl}:gmo:published")


def test_a_job_that_stays_keeps_no_note_of_its_own(bench: Bench, attempt: Attempt) -> None:
    bench.call(note(attempt, "a"))
    bench.finish(attempt)
    assert "gmo:published" not in bench.job("j")
    bench.call(remove_jobs(ETL, [("j", "")], "removed", bench.now))
    assert noted(bench) == ["a"]


@pytest.mark.parametrize("kind", [Kind.SKIP, Kind.FAIL, Kind.LATER, Kind.BACK])
def test_no_other_end_lets_it_count(bench: Bench, attempt: Attempt, kind: Kind) -> None:
    bench.call(note(attempt, "a"))
    bench.hand_in(Outcome(attempt, kind, "" if kind == Kind.LATER else "why", "", 1))
    assert noted(bench) == []


def test_a_key_of_another_kind_costs_the_note_and_not_the_job(bench: Bench, attempt: Attempt) -> None:
    bench.client.set("glide:{etl}:gmo:published", "x")
    bench.call(note(attempt, "a"))
    bench.finish(attempt)
    assert bench.job("j")["state"] == "completed"


def test_the_notes_of_an_attempt_before_do_not_count(bench: Bench, attempt: Attempt) -> None:
    bench.call(note(attempt, "lost"))
    bench.reclaim(lock_ms=0)
    bench.now += 1
    second = bench.begin()
    assert bench.refused(note(attempt, "late")) == "GMO_STALE"
    assert bench.call(note(second, "mine")) == 1
    bench.finish(second)
    assert noted(bench) == ["mine"]


def test_what_nobody_has_made_visible_for_a_month_goes(bench: Bench, attempt: Attempt) -> None:
    bench.call(note(attempt, "old"))
    bench.finish(attempt)
    for days, left in ((20, ["old", "j20"]), (11, ["j20", "j11"])):
        bench.now += days * DAY_MS
        bench.call(add_job_call(ETL, "work", "1", JobOptions(job_id=f"j{days}"), bench.now))
        later = bench.begin()
        bench.call(note(later, f"j{days}"))
        bench.finish(later)
        assert noted(bench) == left
