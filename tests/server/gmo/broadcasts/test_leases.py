"""The lease of a message belongs to one worker of one subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glidemq_orchestrate.broadcasts import messages
from glidemq_orchestrate.broadcasts.messages import begin, renew_call
from glidemq_orchestrate.jobs.attempt import OF_BROADCASTS, worker_id
from glidemq_orchestrate.wire.call import ask
from tests.server.gmo.broadcasts.conftest import ETL, STREAM, News

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench


def test_a_lease_lasts_as_long_as_its_worker_says(news: News, bench: Bench) -> None:
    """A worker with short leases took the messages of one with long ones that was blocked for a moment."""
    slow = worker_id(OF_BROADCASTS, "a", 20_000)
    job_id = news.publish()
    (attempt,) = news.take("a", consumer=slow)

    def taken(idle: int) -> list[str]:
        bench.client.xclaim(STREAM, "a", slow, 0, [attempt.entry_id], idle=idle, justid=True)
        call = messages.take_over(news.subs["a"], "gmo-2", room=9, lock_ms=1000, max_stalled=3, clock=bench)
        return [one.job_id for one in bench.hand.run(call)]

    assert (taken(15_000), taken(20_000)) == ([], [job_id])


def test_a_worker_that_was_taken_over_is_stale(news: News) -> None:
    job_id = news.publish()
    (late,) = news.take("a")
    (attempt,) = news.take_over("a")
    assert news.end("a", late) == "stale"
    assert news.states(job_id)["a"] == "active"
    assert news.end("a", attempt, consumer="gmo-2") == "ok"
    assert news.end("a", attempt, consumer="gmo-2") == "stale"


def test_the_lease_of_one_subscription_is_not_renewed_by_another(news: News, bench: Bench) -> None:
    news.publish()
    (of_a,), (of_b,) = news.take("a"), news.take("b")
    member = news.subs["a"].member("gmo-1")
    kept = bench.call(renew_call(member, [(of_a.entry_id, "1"), (of_b.entry_id, "1")], bench.now))
    assert kept == [1, 1]
    assert len(news.take_over("b")) == 1
    (pending,) = bench.client.xpending_range(STREAM, "b", "-", "+", 1)
    assert pending["consumer"] == "gmo-2"
    other = news.subs["b"].member("gmo-1")
    assert bench.call(renew_call(other, [(of_b.entry_id, "1")], bench.now)) == [-1]


def test_a_lost_reply_is_read_again_as_far_as_there_is_room(news: News) -> None:
    for _ in range(6):
        news.publish()
    (held, _, _) = news.take("a", 3)
    again = news.take("a", 1, again=True, held={held.entry_id})
    assert [attempt.job_id for attempt in again] == ["2"]
    assert news.states("2")["a"] == "active"


def test_a_worker_of_node_takes_part(news: News, bench: Bench) -> None:
    job_id = news.publish()
    bench.client.xreadgroup("a", "node", {STREAM: ">"})
    (entry_id, _), *_ = bench.client.xrange(STREAM)
    activated = bench.hand.run(ask(begin(news.subs["a"].member("node"), [], bench.now)))
    assert activated == []
    bench.client.hset(ETL.job(job_id), "lastActive", bench.now)
    call = messages.take_over(news.subs["a"], "gmo-2", room=1, lock_ms=1, max_stalled=1, clock=bench)
    bench.client.xclaim(STREAM, "a", "node", 0, [entry_id], idle=1_000)
    assert bench.hand.run(call) == [], "its heartbeat is in the job"
    bench.now += 1
    call = messages.take_over(news.subs["a"], "gmo-2", room=1, lock_ms=1, max_stalled=1, clock=bench)
    assert len(bench.hand.run(call)) == 1
