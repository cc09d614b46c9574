"""gmo_write_messages, and what becomes of the messages when an outcome is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.jobs import output
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.jobs.output import AcceptedAttempt, accepted_attempt, page
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")


@pytest.fixture
def attempt(bench: Bench) -> Attempt:
    bench.call(add_job_call(ETL, "work", "1", JobOptions(job_id="j"), bench.now))
    return bench.begin()


def write(attempt: Attempt, first: int, *texts: str) -> Any:
    return output.write_messages(attempt, ETL, first, texts, 1_000_000)


def texts(bench: Bench, job_id: str = "j") -> list[tuple[str, int, str]]:
    return [(one.attempt, one.number, one.text) for one in bench.call(page(ETL, job_id, "", 100))]


def accepted(bench: Bench, job_id: str = "j") -> AcceptedAttempt | None:
    found: AcceptedAttempt | None = bench.call(accepted_attempt(ETL, job_id))
    return found


def test_messages_are_numbered_and_expire(bench: Bench, attempt: Attempt) -> None:
    assert bench.call(write(attempt, 1, "a", "b")) == 2
    assert bench.call(write(attempt, 3, "c")) == 3
    name = f"{attempt.token} {attempt.processed_on}"
    assert texts(bench) == [(name, 1, "a"), (name, 2, "b"), (name, 3, "c")]
    left = bench.client.pttl("glide:{etl}:gmo:messages:j")
    assert 0 < left <= output.MESSAGES_KEPT_MS
    bench.client.persist("glide:{etl}:gmo:messages:j")
    bench.call(write(attempt, 4, "d"))
    assert bench.client.pttl("glide:{etl}:gmo:messages:j") > output.MESSAGES_KEPT_MS - 60_000


def test_a_repeat_appends_nothing_and_an_overlap_only_what_is_new(bench: Bench, attempt: Attempt) -> None:
    bench.call(write(attempt, 1, "a", "b"))
    before = bench.dump()
    assert bench.call(write(attempt, 1, "a", "b")) == 2
    assert bench.dump() == before
    assert bench.call(write(attempt, 2, "b", "c")) == 3
    assert [text for _, _, text in texts(bench)] == ["a", "b", "c"]


def test_messages_behind_lost_ones_are_not_appended(bench: Bench, attempt: Attempt) -> None:
    """As after a failover to a replica that had not received them."""
    bench.call(write(attempt, 1, "a"))
    assert bench.call(write(attempt, 3, "c")) == 1
    assert [text for _, _, text in texts(bench)] == ["a"]


@pytest.mark.parametrize("how", ["ended", "reclaimed", "removed"])
def test_an_attempt_that_lost_its_job_writes_nothing(bench: Bench, attempt: Attempt, how: str) -> None:
    bench.call(write(attempt, 1, "a"))
    if how == "ended":
        bench.finish(attempt)
    elif how == "reclaimed":
        bench.reclaim(lock_ms=0)
        bench.now += 1
        bench.begin()
    else:
        bench.client.delete("glide:{etl}:job:j")
    assert bench.refused(write(attempt, 2, "b")) == "GMO_STALE"


def test_the_attempt_that_completed_is_accepted_with_its_count(bench: Bench, attempt: Attempt) -> None:
    bench.call(write(attempt, 1, "a", "b"))
    assert accepted(bench) is None
    bench.finish(attempt)
    assert accepted(bench) == AcceptedAttempt(f"{attempt.token} {attempt.processed_on}", 2, "j")


@pytest.mark.parametrize("kind", [Kind.SKIP, Kind.FAIL, Kind.BACK])
def test_no_other_end_accepts_it(bench: Bench, attempt: Attempt, kind: Kind) -> None:
    bench.call(write(attempt, 1, "a"))
    bench.hand_in(Outcome(attempt, kind, "why", "", 1))
    assert accepted(bench) is None


def test_the_messages_of_an_attempt_before_do_not_count(bench: Bench, attempt: Attempt) -> None:
    bench.call(write(attempt, 1, "lost"))
    bench.reclaim(lock_ms=0)
    bench.now += 1
    second = bench.begin()
    bench.finish(second)
    assert accepted(bench) is None
    assert [text for _, _, text in texts(bench)] == ["lost"]


def test_a_node_that_runs_again_or_is_completed_by_hand_has_none(bench: Bench, node: Any) -> None:
    bench.submit(node("a"))
    attempt = bench.begin()
    bench.call(output.write_messages(attempt, ETL, 1, ["a"], bench.now))
    bench.finish(attempt)
    assert accepted(bench, "f~a") is not None
    home = "glide:{etl}:gmo:flow:f"
    bench.raw("gmo_change_nodes", [home], bench.now, "f", "completed", "r1", "1", "a", "2")
    assert bench.job("f~a")["returnvalue"] == "2"
    assert accepted(bench, "f~a") is None
