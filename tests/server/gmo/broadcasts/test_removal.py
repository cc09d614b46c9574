"""Old messages are removed by age, number and hand, and never before all have ended them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues.removal import clean
from tests.server.gmo.broadcasts.conftest import ETL, STREAM, News

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench


def test_clean_leaves_what_a_slow_subscription_has_not_handled(news: News, bench: Bench) -> None:
    ids = [news.publish() for _ in range(20)]
    news.handle("a")
    for attempt in news.take("b", 4):
        news.end("b", attempt)
    bench.now += 1
    cleaned = bench.hand.run(clean(ETL, JobState.COMPLETED, timedelta(0), 100, bench.now))
    assert sorted(cleaned) == sorted(ids[:4])
    assert len(news.take("b")) == 16
    assert bench.client.xlen(STREAM) == 16, "what is removed leaves the stream too"


def test_clean_leaves_a_message_that_only_node_says_has_completed(news: News, bench: Bench) -> None:
    news.publish()
    bench.client.xreadgroup("a", "node", {STREAM: ">"})
    (entry_id, _), *_ = bench.client.xrange(STREAM)
    keys = ETL.keys("stream", "completed", "events")
    keys += [ETL.job("1"), ETL.key("metrics:completed")]
    bench.raw("glidemq_complete", keys, "1", entry_id, "1", bench.now, "a", 0, 0, 0, "", "", 1)
    assert news.state("1") == "completed"
    bench.now += 1
    assert bench.hand.run(clean(ETL, JobState.COMPLETED, timedelta(0), 100, bench.now)) == []
    news.handle("b")
    assert bench.hand.run(clean(ETL, JobState.COMPLETED, timedelta(0), 100, bench.now)) == ["1"]


@pytest.mark.parametrize("kind", ["done", "fail"])
def test_a_retention_counts_when_all_have_ended_it(news: News, bench: Bench, kind: str) -> None:
    news.publish(remove_on_complete=True, remove_on_fail=True)
    news.handle("a", kind)
    assert len(news.keys()) == 1
    news.handle("b", kind)
    assert (news.keys(), bench.client.xlen(STREAM)) == ([], 0)


def test_a_bound_removes_messages_with_their_jobs(bench: Bench) -> None:
    news = News(bench)
    for _ in range(150):
        news.publish(50)
    assert len(news.keys()) == 50
    assert bench.client.xlen(STREAM) == 50
    News(bench, "a").handle("a")
    assert news.counts() == {"completed": 50}
    for _ in range(60):
        news.publish(50)
    assert len(news.keys()) == 50
    assert bench.client.zcard(ETL.key("completed")) == 0


def test_a_run_ends_although_its_message_was_trimmed(news: News, bench: Bench) -> None:
    job_id = news.publish(attempts=2)
    (attempt,) = news.take("a")
    for _ in range(3):
        news.publish(2)
    assert news.state(job_id) == "active"
    assert news.end("a", attempt, "fail", 2, 10) == "retrying"
    bench.now += 10
    news.upkeep()
    news.handle("a")
    assert news.state(job_id) == "gone"


def test_a_smaller_bound_removes_the_excess(news: News, bench: Bench) -> None:
    for _ in range(300):
        news.publish()
    news.publish(10)
    assert len(news.keys()) == bench.client.xlen(STREAM) == 10
