"""Each subscription of a broadcast has its own state; a message ends when all have ended it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.broadcasts import subscriptions
from glidemq_orchestrate.broadcasts.messages import Subscription
from glidemq_orchestrate.jobs.changes import retry as retry_job
from glidemq_orchestrate.jobs.job import get_job
from glidemq_orchestrate.queues.removal import revoke as revoke_job
from tests.server.gmo.broadcasts.conftest import ETL, STREAM, News

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench


def test_a_message_ends_when_all_subscriptions_have_ended_it(news: News) -> None:
    job_id = news.publish()
    assert news.states(job_id) == {"a": "waiting", "b": "waiting"}
    (attempt,) = news.take("a")
    assert (news.state(job_id), news.states(job_id)) == ("active", {"a": "active", "b": "waiting"})
    assert news.end("a", attempt) == "ok"
    assert (news.state(job_id), news.states(job_id)) == ("waiting", {"a": "completed", "b": "waiting"})
    assert news.counts() == {"waiting": 1}
    news.handle("b")
    assert (news.state(job_id), news.states(job_id)) == ("completed", {"a": "completed", "b": "completed"})
    assert news.counts() == {"completed": 1}


def test_a_subscription_ends_a_message_of_another_subject(news: News) -> None:
    job_id = news.publish()
    news.handle("a")
    news.subs["b"] = Subscription(ETL, "b", "0", ("other",))
    assert news.take("b") == []
    assert news.state(job_id) == "completed"


@pytest.mark.parametrize("why", ["expired", "revoked"])
def test_an_expired_message_has_failed_where_it_was_not_handled(news: News, bench: Bench, why: str) -> None:
    job_id = news.publish(ttl=timedelta(seconds=1))
    news.handle("a")
    if why == "revoked":
        bench.client.hset(ETL.job(job_id), "revoked", "1")
    else:
        bench.now += 2_000
    assert news.take("b") == []
    assert news.states(job_id) == {"a": "completed", "b": "failed"}
    assert bench.hand.run(get_job(ETL, job_id)).failed_reason == f"b: {why}"


def test_a_revoked_message_has_failed_where_it_was_not_begun(news: News, bench: Bench) -> None:
    waits, runs, is_tried_again = (news.publish(attempts=2) for _ in range(3))
    (_, running, trying) = [*news.take("a")]
    news.end("a", trying, "fail", 2, 10)
    words = [
        bench.hand.run(revoke_job(ETL, job_id, bench))
        for job_id in (news.publish(), runs, is_tried_again, waits)
    ]
    assert words == ["revoked", "flagged", "revoked", "flagged"]
    assert news.states(is_tried_again) == {"a": "failed", "b": "failed"}
    assert news.states(runs) == {"a": "active", "b": "failed"}
    assert news.end("a", running) == "ok"
    assert (news.states(runs), news.state(runs)) == ({"a": "completed", "b": "failed"}, "failed")
    assert bench.hand.run(get_job(ETL, runs)).failed_reason == "b: revoked"
    bench.now += 10
    news.upkeep()
    assert (news.take("a"), news.take("b")) == ([], [])
    bench.hand.run(retry_job(ETL, runs, bench.now))
    news.upkeep()
    assert news.take("a") == []
    news.handle("b")
    assert news.state(runs) == "completed"


@pytest.mark.parametrize("end", ["delayed", "expired", "revoked"])
def test_a_delayed_message_is_completed_nowhere(news: News, bench: Bench, end: str) -> None:
    job_id = news.publish(delay=timedelta(seconds=1), ttl=timedelta(milliseconds=500))
    if end == "revoked":
        bench.hand.run(revoke_job(ETL, job_id, bench))
    elif end == "expired":
        bench.now += 1_000
        news.upkeep()
    state = "delayed" if end == "delayed" else "failed"
    assert news.states(job_id) == {"a": state, "b": state}


def test_a_job_that_cannot_be_read_ends(news: News, bench: Bench) -> None:
    job_id = news.publish()
    bench.client.set(ETL.job(job_id), "broken")
    (attempt,) = news.take("a")
    assert attempt.unreadable
    assert news.end("a", attempt, "fail") == "failed"
    assert bench.client.xpending(STREAM, "a")["pending"] == 0


def test_how_far_subscriptions_are(news: News, bench: Bench) -> None:
    for _ in range(5):
        news.publish()
    first, *_ = news.take("a", 3)
    news.end("a", first)
    found = bench.hand.run(subscriptions.subscriptions(ETL, None))
    assert [(one.name, one.waiting, one.active) for one in found] == [("a", 2, 2), ("b", 5, 0)]
    bench.client.xdel(STREAM, bench.client.xrange(STREAM)[-2][0])  # now the server does not know the distance
    found = bench.hand.run(subscriptions.subscriptions(ETL, None))
    assert [(one.name, one.waiting, one.active) for one in found] == [("a", 1, 2), ("b", 4, 0)]
