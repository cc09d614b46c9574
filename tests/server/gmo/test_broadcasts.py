"""Each subscription of a broadcast has its own state; a message ends when all have ended it."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Broadcast, BroadcastWorker, JobOptions
from glidemq_orchestrate.broadcasts import messages, subscriptions
from glidemq_orchestrate.broadcasts.messages import Result, Subscription, begin, renew_call
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.jobs.attempt import OF_BROADCASTS, worker_id
from glidemq_orchestrate.jobs.changes import retry as retry_job
from glidemq_orchestrate.jobs.job import get_job
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import dead_letters, listing
from glidemq_orchestrate.queues.removal import clean
from glidemq_orchestrate.queues.removal import revoke as revoke_job
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
STREAM = ETL.key("stream")
DAY = 86_400_000


class News:
    """Subscriptions ``a`` and ``b`` of a queue, each with a worker that does what the test says."""

    def __init__(self, bench: Bench, *names: str) -> None:
        self.bench = bench
        self.subs = {name: Subscription(ETL, name, "0", ()) for name in names}
        for sub in self.subs.values():
            bench.hand.run(messages.open_subscription(sub))

    def publish(self, most: int | None = None, **options: Any) -> str:
        made = JobOptions(**options)
        return self.bench.hand.run(messages.publish(ETL, "s", {"x": 1}, made, self.bench.now, most))

    def take(self, name: str, room: int = 100, consumer: str = "gmo-1", **options: Any) -> list[Attempt]:
        given: dict[str, Any] = {"again": False, "held": set(), "block_ms": 1} | options
        sub = self.subs[name]
        return self.bench.hand.run(messages.take(sub, consumer, room=room, clock=self.bench, **given))

    def end(
        self, name: str, attempt: Attempt, kind: str = "done", *more: Any, consumer: str = "gmo-1"
    ) -> str:
        result = Result(attempt.entry_id, attempt.job_id, kind, "1", *more)
        return self.bench.hand.run(messages.report(self.subs[name], consumer, result, self.bench))

    def handle(self, name: str, kind: str = "done", *more: Any) -> None:
        for attempt in self.take(name):
            self.end(name, attempt, kind, *more)

    def take_over(self, name: str, room: int = 100, consumer: str = "gmo-2", most: int = 3) -> list[Attempt]:
        call = messages.take_over(
            self.subs[name], consumer, room=room, lock_ms=0, max_stalled=most, clock=self.bench
        )
        return self.bench.hand.run(call)

    def upkeep(self) -> None:
        self.bench.hand.run(messages.upkeep(self.subs["a"], 30_000, self.bench))

    def state(self, job_id: str) -> str:
        return self.bench.job(job_id).get("state", "gone")

    def states(self, job_id: str) -> dict[str, str]:
        found = self.bench.hand.run(subscriptions.message_states(ETL, job_id, self.bench))
        return {name: str(one.state) for name, one in found.items()}

    def counts(self) -> dict[str, int]:
        found = self.bench.hand.run(listing.counts(ETL, indexed_only=True))
        return {str(state): count for state, count in found.items() if count}

    def keys(self) -> list[str]:
        """Jobs; glide-mq's counters of attempts have a time to live."""
        return sorted(key for key in self.bench.client.keys("glide:{etl}:job:*") if ":sub:" not in key)


@pytest.fixture
def news(bench: Bench) -> News:
    return News(bench, "a", "b")


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


def test_a_message_that_is_not_for_a_subscription_is_ended_by_it(news: News) -> None:
    job_id = news.publish()
    news.handle("a")
    news.subs["b"] = Subscription(ETL, "b", "0", ("other",))
    assert news.take("b") == []
    assert news.state(job_id) == "completed"


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


def test_clean_leaves_it_too_where_node_says_that_it_has_completed(news: News, bench: Bench) -> None:
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


def test_what_nobody_has_begun_has_not_stalled(news: News, bench: Bench) -> None:
    news.publish()
    bench.client.xreadgroup("a", "gmo-1", {STREAM: ">"})  # the worker died with the reply
    for number in range(5):
        assert len(news.take_over("a", consumer=f"gmo-{number}", most=0)) == (number == 0)


def test_one_that_ends_its_workers_fails_for_this_subscription_only(news: News, bench: Bench) -> None:
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
def test_only_the_one_that_ends_its_workers_fails(news: News, guilty: int) -> None:
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


def test_what_ran_beside_a_suspect_is_one_too(news: News, bench: Bench) -> None:
    innocent = news.publish()
    news.take("a", 1, consumer="gmo-1")
    (first,) = news.take_over("a", 2, consumer="gmo-2")
    guilty = news.publish()
    (second,) = news.take("a", 1, consumer="gmo-2")
    assert (first.suspect, second.suspect) == (1, 0)
    (again,) = news.take_over("a", 2, consumer="gmo-3")  # one at a time now
    fields = [bench.client.hget(ETL.job(one), "gmo:suspect:a") for one in (innocent, guilty)]
    assert (again.suspect, fields) == (2, ["2", "1"])


def test_what_was_begun_after_the_last_renewal_is_judged_with_the_rest(news: News, bench: Bench) -> None:
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


def test_a_lease_lasts_as_long_as_its_worker_says_whoever_looks(news: News, bench: Bench) -> None:
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


def test_a_retry_is_for_the_subscription_that_failed_and_leaves_the_stream(news: News, bench: Bench) -> None:
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
def test_a_final_failure_is_not_hidden_by_others_and_has_a_dead_letter(
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


@pytest.mark.parametrize("kind", ["done", "fail"])
def test_a_retention_counts_when_all_have_ended_it(news: News, bench: Bench, kind: str) -> None:
    news.publish(remove_on_complete=True, remove_on_fail=True)
    news.handle("a", kind)
    assert len(news.keys()) == 1
    news.handle("b", kind)
    assert (news.keys(), bench.client.xlen(STREAM)) == ([], 0)


def test_at_most_so_many_messages_are_kept_with_their_jobs(bench: Bench) -> None:
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


def test_a_run_that_has_begun_ends_though_its_message_was_trimmed(news: News, bench: Bench) -> None:
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


def test_a_smaller_bound_removes_what_is_too_much(news: News, bench: Bench) -> None:
    for _ in range(300):
        news.publish()
    news.publish(10)
    assert len(news.keys()) == bench.client.xlen(STREAM) == 10


@pytest.mark.parametrize("why", ["expired", "revoked"])
def test_one_that_may_not_run_any_more_has_failed_where_it_was_not_handled(
    news: News, bench: Bench, why: str
) -> None:
    job_id = news.publish(ttl=timedelta(seconds=1))
    news.handle("a")
    if why == "revoked":
        bench.client.hset(ETL.job(job_id), "revoked", "1")
    else:
        bench.now += 2_000
    assert news.take("b") == []
    assert news.states(job_id) == {"a": "completed", "b": "failed"}
    assert bench.hand.run(get_job(ETL, job_id)).failed_reason == f"b: {why}"


def test_one_that_is_revoked_has_failed_where_it_was_not_begun(news: News, bench: Bench) -> None:
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


def test_a_subscription_that_is_removed_holds_nothing_back(news: News, bench: Bench) -> None:
    kept, gone = news.publish(), news.publish(remove_on_complete=True)
    news.handle("a")
    assert bench.hand.run(messages.unsubscribe(ETL, "b", bench)) is True
    assert (news.state(kept), news.state(gone)) == ("completed", "gone")
    assert bench.hand.run(messages.unsubscribe(ETL, "b", bench)) is False


def test_retries_of_a_subscription_that_is_removed_leave_the_stream(news: News, bench: Bench) -> None:
    for _ in range(2):
        news.publish(attempts=2, remove_on_complete=True)
    news.handle("b", "fail", 2, 10)
    bench.now += 10
    news.upkeep()
    assert bench.client.xlen(STREAM) == 4
    bench.hand.run(messages.unsubscribe(ETL, "b", bench))
    assert bench.client.xlen(STREAM) == 2
    news.handle("a")
    assert (news.keys(), bench.client.xlen(STREAM)) == ([], 0)


def test_a_retry_that_falls_due_after_its_subscription_was_removed_too(news: News, bench: Bench) -> None:
    news.publish(attempts=2, remove_on_complete=True)
    news.handle("b", "fail", 2, 10)
    bench.hand.run(messages.unsubscribe(ETL, "b", bench))
    news.handle("a")
    bench.now += 10
    news.upkeep()
    assert news.take("a") == []
    assert (news.keys(), bench.client.xlen(STREAM)) == ([], 0)
    assert bench.client.zcard(ETL.key("scheduled")) == 0


@pytest.mark.parametrize("most", [None, 1])
def test_a_message_that_waits_for_one_ends_with_the_others(
    news: News, bench: Bench, most: int | None
) -> None:
    """Its retry falls due after its subscription was removed."""
    job_id = news.publish(attempts=2)
    news.handle("b", "fail", 2, 10)
    news.handle("a")
    if most:
        news.publish(most)
    bench.hand.run(messages.unsubscribe(ETL, "b", bench))
    bench.now += 10
    news.upkeep()
    news.handle("a")
    assert news.state(job_id) == ("gone" if most else "completed")


def test_the_workers_of_jobs_are_no_subscription(url: str) -> None:
    with Broadcast("etl", url) as news, pytest.raises(ConfigurationError, match="workers"):
        news.unsubscribe("workers")
    with pytest.raises(ConfigurationError, match="workers"):
        BroadcastWorker("etl", print, url, subscription="workers")


def test_a_reply_that_was_lost_is_read_again_as_far_as_there_is_room(news: News) -> None:
    for _ in range(6):
        news.publish()
    (held, _, _) = news.take("a", 3)
    again = news.take("a", 1, again=True, held={held.entry_id})
    assert [attempt.job_id for attempt in again] == ["2"]
    assert news.states("2")["a"] == "active"


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
