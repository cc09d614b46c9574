"""Messages of dead workers are taken over, and one that ends its workers fails."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.broadcasts import messages
from glidemq_orchestrate.jobs.job import get_job
from glidemq_orchestrate.queues import dead_letters
from tests.server.gmo.broadcasts.conftest import ETL, STREAM, News

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench


def test_messages_of_a_dead_worker_are_taken_as_there_is_room(news: News) -> None:
    for _ in range(20):
        news.publish()
    assert len(news.take("a", 20)) == 20
    done = []
    for _ in range(20):
        (attempt,) = news.take_over("a", 1)
        assert news.take_over("a", 0) == []
        assert news.end("a", attempt, consumer="gmo-2") == "ok"
        done.append(attempt.job_id)
    assert sorted(map(int, done)) == list(range(1, 21))
    assert news.bench.client.hget(ETL.job("20"), "gmo:stalls:a") is None


def test_a_message_that_nobody_has_begun_has_not_stalled(news: News, bench: Bench) -> None:
    news.publish()
    bench.client.xreadgroup("a", "gmo-1", {STREAM: ">"})  # the worker died with the reply
    for number in range(5):
        assert len(news.take_over("a", consumer=f"gmo-{number}", most=0)) == (number == 0)


def test_a_message_that_ends_its_workers_fails_in_their_subscription(news: News, bench: Bench) -> None:
    bench.hand.run(dead_letters.set_queue(ETL, "spark"))
    job_id = news.publish()
    news.take("a")
    for number in range(3):
        assert len(news.take_over("a", consumer=f"gmo-{number + 2}", most=3)) == 1
    assert news.take_over("a", consumer="gmo-9", most=3) == []
    assert news.states(job_id) == {"a": "failed", "b": "waiting"}
    news.handle("b")
    assert news.state(job_id) == "failed"
    assert "stalled" in str(bench.hand.run(get_job(ETL, job_id)).failed_reason)


@pytest.mark.parametrize("guilty", [1, 6, 20])
def test_only_the_message_that_ends_its_workers_fails(news: News, guilty: int) -> None:
    ids = [news.publish() for _ in range(20)]
    lives = itertools.count(10)
    name, losses = f"gmo-{next(lives)}", 0
    while True:
        held = news.take_over("a", 4, consumer=name)
        assert sum(bool(one.suspect) for one in held) <= 1
        held += news.take("a", 4 - len(held), consumer=name) if len(held) < 4 else []
        if not held:
            break
        if ids[guilty - 1] in [one.job_id for one in held]:  # it ends this worker, with all that it runs
            name, losses = f"gmo-{next(lives)}", losses + 1
            continue
        for one in held:
            assert news.end("a", one, consumer=name) == "ok"
    assert losses == 4
    states = [news.states(job_id)["a"] for job_id in ids]
    assert states == ["failed" if job_id == ids[guilty - 1] else "completed" for job_id in ids]


def test_a_message_that_ran_beside_a_suspect_is_one_too(news: News, bench: Bench) -> None:
    innocent = news.publish()
    news.take("a", 1, consumer="gmo-1")
    (first,) = news.take_over("a", 2, consumer="gmo-2")
    guilty = news.publish()
    (second,) = news.take("a", 1, consumer="gmo-2")
    assert (first.suspect, second.suspect) == (1, 0)
    (again,) = news.take_over("a", 2, consumer="gmo-3")  # one at a time now
    fields = [bench.client.hget(ETL.job(one), "gmo:suspect:a") for one in (innocent, guilty)]
    assert (again.suspect, fields) == (2, ["2", "1"])


def test_messages_begun_since_the_last_renewal_expire_with_the_rest(news: News, bench: Bench) -> None:
    news.publish()
    news.publish()
    news.take("a", 1)
    bench.client.xclaim(
        STREAM, "a", "gmo-1", 0, [bench.client.xrange(STREAM)[0][0]], idle=40_000, justid=True
    )
    news.take("a", 1)

    def taken(*, suspects: bool) -> list[Attempt]:
        sub = news.subs["a"]
        call = messages.take_over(
            sub, "gmo-2", room=2, lock_ms=30_000, max_stalled=3, clock=bench, suspects=suspects
        )
        return bench.hand.run(call)

    assert taken(suspects=True) == []
    for entry_id, _ in bench.client.xrange(STREAM):
        bench.client.xclaim(STREAM, "a", "gmo-1", 0, [entry_id], idle=45_000, justid=True)
    (first,) = taken(suspects=True)
    assert first.suspect == 1
    assert taken(suspects=False) == []
