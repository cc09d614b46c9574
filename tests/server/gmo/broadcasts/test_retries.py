"""Retries, dead letters and their replay concern the subscriptions that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.jobs.changes import retry as retry_job
from glidemq_orchestrate.jobs.job import get_job
from glidemq_orchestrate.queues import dead_letters
from tests.server.gmo.broadcasts.conftest import ETL, STREAM, News

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench


DAY = 86_400_000


def test_attempts_are_counted_for_longer_than_a_day(news: News, bench: Bench) -> None:
    job_id = news.publish(attempts=3)
    news.handle("a", "fail", 3, 2 * DAY)
    for made in (1, 2):
        assert news.states(job_id)["a"] == "delayed"
        bench.client.delete(f"{ETL.job(job_id)}:sub:a")  # glide-mq's own counter expires after a day
        bench.now += 2 * DAY
        news.upkeep()
        (attempt,) = news.take("a")
        assert attempt.attempts_made == made
        news.end("a", attempt, "fail", 3, 2 * DAY)
    assert news.states(job_id)["a"] == "failed"


def test_a_retry_reaches_only_the_subscription_that_failed(news: News, bench: Bench) -> None:
    job_id = news.publish(attempts=2)
    news.handle("b")
    news.handle("a", "fail", 2, 10)
    assert news.counts() == {"delayed": 1}
    bench.now += 10
    news.upkeep()
    assert news.take("b") == []
    news.handle("a")
    assert (news.state(job_id), bench.client.xlen(STREAM)) == ("completed", 1)


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_final_failure_is_not_hidden_by_others_and_has_a_letter(
    news: News, bench: Bench, first: str
) -> None:
    bench.hand.run(dead_letters.set_queue(ETL, "spark"))
    job_id = news.publish()
    for name in (first, {"a": "b", "b": "a"}[first]):
        news.handle(name, "done" if name == "b" else "fail")
    assert news.states(job_id) == {"a": "failed", "b": "completed"}
    assert news.counts() == {"failed": 1}
    assert bench.hand.run(get_job(ETL, job_id)).failed_reason == "a: 1"
    news.upkeep()
    (letter,) = bench.hand.run(dead_letters.dead_letters(ETL, 0, 10))
    assert (letter.job_id, letter.subscription, letter.failed_reason) == (job_id, "a", "1")
    assert (letter.data, letter.attempts_made) == ({"x": 1}, 1)


def test_each_subscription_that_fails_has_a_letter(news: News, bench: Bench) -> None:
    bench.hand.run(dead_letters.set_queue(ETL, "spark"))
    news.publish(remove_on_fail=True)
    news.handle("a", "fail")
    news.handle("b", "fail")
    assert news.keys() == []
    news.upkeep()
    letters = bench.hand.run(dead_letters.dead_letters(ETL, 0, 10))
    assert sorted(str(letter.subscription) for letter in letters) == ["a", "b"]


@pytest.mark.parametrize("removed", [True, False])
def test_a_letter_is_replayed_to_its_subscription_only(news: News, bench: Bench, *, removed: bool) -> None:
    bench.hand.run(dead_letters.set_queue(ETL, "spark"))
    job_id = news.publish(remove_on_fail=removed)
    news.handle("b")
    news.handle("a", "fail")
    news.upkeep()
    (letter,) = bench.hand.run(dead_letters.dead_letters(ETL, 0, 10))
    again = bench.hand.run(dead_letters.replay(ETL, letter.id, bench.now))
    assert (again == job_id) is not removed
    news.upkeep()
    assert news.take("b") == []
    (attempt,) = news.take("a")
    assert (attempt.job_id, attempt.data, attempt.attempts_made) == (again, '{"x":1}', 0)
    news.end("a", attempt)
    assert news.state(again) == "completed"


def test_a_retry_by_hand_concerns_the_subscriptions_that_failed(news: News, bench: Bench) -> None:
    job_id = news.publish()
    news.handle("b")
    news.handle("a", "fail")
    bench.hand.run(retry_job(ETL, job_id, bench.now))
    assert news.state(job_id) == "delayed"
    news.upkeep()
    assert news.take("b") == []
    news.handle("a")
    assert news.state(job_id) == "completed"
