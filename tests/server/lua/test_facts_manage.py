"""Facts about changing, removing and finding jobs, limits, locks and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000
SHIFT = 4398046511104


def test_revoking_fails_what_waits_and_flags_what_runs(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    q.add()
    q.add(delay=10)
    replies = [q.revoke(job_id) for job_id in ("2", "3", "1", "9")]
    assert replies == ["revoked", "revoked", "flagged", "not_found"]
    assert (q.job("2")["state"], q.job("3")["failedReason"]) == ("failed", "revoked")
    assert q.scores("failed") == {"2": T, "3": T}
    assert q.pending() == [entry]
    assert q.stream() == [{"jobId": "1", "name": "n"}]


def test_priority_changes_follow_the_state(q: Queue) -> None:
    q.add()
    q.add(lifo=1)
    q.add(delay=50, priority=1)
    assert q.change_priority("1", 0) == "no_op"
    assert q.change_priority("2", 4) == "error:not_in_stream"
    assert q.change_priority("9", -1) == "error:invalid_priority"
    assert q.change_priority("9", "x") == "error:invalid_priority"
    assert q.change_priority("9", 1) == "error:not_found"
    assert q.change_priority("1", 4) == "ok"
    assert q.change_priority("3", 2) == "ok"
    assert q.scores("scheduled") == {"3": 2 * SHIFT + T + 50, "1": 4 * SHIFT}
    assert q.job("1")["state"] == "prioritized"
    assert q.events()[-2] == ("event", "priority-changed", "jobId", "1", "priority", "4")
    assert q.change_priority("1", 0) == "ok"
    assert (q.job("1")["state"], q.stream()) == ("waiting", [{"jobId": "1", "name": "n"}])


def test_job_without_delay_left_is_prioritised_or_waiting(q: Queue) -> None:
    q.add(delay=10, priority=7)
    q.add(delay=10)
    assert q.change_delay("1", 0) == "ok"
    assert q.scores("scheduled")["1"] == 7 * SHIFT
    assert q.job("1")["state"] == "prioritized"
    assert q.change_delay("1", 0) == "no_op"
    assert q.change_delay("2", 0) == "ok"
    assert q.stream() == [{"jobId": "2", "name": "n"}]
    assert q.change_delay("2", 30, T + 1) == "ok"
    assert (q.scores("scheduled")["2"], q.stream()) == (T + 31, [])
    assert q.change_delay("9", "x") == "error:invalid_delay"


def test_only_delayed_jobs_are_promoted_by_hand(q: Queue) -> None:
    q.add(priority=2)
    q.add(delay=10)
    assert q.promote_job("1") == "error:not_delayed"
    assert q.promote_job("2") == "ok"
    assert q.promote_job("9") == "error:not_found"
    assert (q.job("2")["state"], q.job("2")["delay"], list(q.scores("scheduled"))) == ("waiting", "0", ["1"])


def test_bulk_retry_drops_members_without_a_job(q: Queue) -> None:
    q.add()
    q.fail("1", q.start()[0])
    q.valkey.zadd(q.key("failed"), {"gone": 1})
    assert q.retry_jobs(0, T + 9) == 1
    assert q.scores("failed") == {}
    job = q.job("1")
    assert (job["state"], job["attemptsMade"], job["failedReason"], job["finishedOn"]) == (
        "delayed",
        "0",
        "",
        "",
    )
    assert q.scores("scheduled") == {"1": T + 9}
    assert q.events()[-1] == ("event", "retried", "jobId", "1")
    with pytest.raises(redis.ResponseError, match="invalid timestamp"):
        q.retry_jobs(0, "soon")


def test_drain_spares_active_and_delayed_jobs(q: Queue) -> None:
    q.add()
    q.start()
    q.add()
    q.add(lifo=1)
    q.add(delay=10)
    assert q.drain() == 2
    assert [i for i in "1234" if q.job(i)] == ["1", "4"]
    assert q.events()[-1] == ("event", "drained", "jobId", "2")
    events = len(q.events())
    assert q.drain() == 0
    assert len(q.events()) == events
    assert q.drain("1") == 1
    assert q.job("4") == {}


def test_clean_includes_the_cutoff_itself(q: Queue) -> None:
    for now in (T, T + 1):
        q.add()
        q.complete(str(now - T + 1), q.start(now)[0], now)
    assert q.clean("completed", T, 10) == ["1"]
    assert (q.job("1"), list(q.scores("completed"))) == ({}, ["2"])
    assert q.events()[-1] == ("event", "cleaned", "jobId", "1")
    assert q.clean("completed", T + 9, 0) == []


@pytest.mark.every_server
def test_rate_limit_counts_a_fixed_window_from_the_first_start(q: Queue) -> None:
    replies = [q.call("rateLimit", q.keys("rate", "meta"), 2, 1000, T + 100 * i) for i in range(12)]
    assert replies == [0, 0, 800, 700, 600, 500, 400, 300, 200, 100, 0, 0]


@pytest.mark.every_server
def test_reservation_respects_the_global_concurrency(q: Queue) -> None:
    q.valkey.hset(q.key("meta"), "globalConcurrency", 3)
    q.valkey.set(q.key("list-active"), 2)
    q.valkey.lpush(q.key("priority"), "a", "b")
    keys = q.keys("meta", "stream", "list-active", "priority")
    assert q.call("checkConcurrency", keys[:3], "workers") == 1
    assert q.call("rpopAndReserve", keys, "workers", 5) == ["a"]
    assert q.valkey.get(q.key("list-active")) == "3"
    assert q.call("rpopAndReserve", keys, "workers", 5) == []
    assert q.call("checkConcurrency", keys[:3], "workers") == 0
    q.valkey.delete(q.key("meta"))
    assert q.call("checkConcurrency", keys[:3], "nobody") == -1


def test_lists_are_popped_one_at_a_time(q: Queue) -> None:
    q.valkey.lpush(q.key("priority"), "p1", "p2")
    q.valkey.rpush(q.key("lifo"), "l1", "l2")
    keys = q.keys("priority", "lifo")
    assert q.call("popLists", keys, 5) == ["p1", "p2"]
    assert q.call("popLists", keys) == ["l2"]
    assert q.call("popLists", keys, 5) == ["l1"]
    assert q.call("popLists", keys, 5) == []
    assert not q.valkey.exists(q.key("list-active"))


@pytest.mark.every_server
def test_budget_is_exceeded_above_its_cap_only(q: Queue) -> None:
    key = [q.key("budget:f")]
    assert q.call("recordUsageAndCheckBudget", key, "{}", "{}", 1, 0, "{}", "{}") == "no_budget"
    assert q.call("checkBudget", key) == "no_budget"
    assert not q.valkey.exists(key[0])
    q.valkey.hset(key[0], mapping={"maxTotalTokens": "100", "exceeded": "0"})
    assert q.call("recordUsageAndCheckBudget", key, '{"input":100}', "{}", 100, 0.5, "{}", "{}") == "ok"
    assert q.call("recordUsageAndCheckBudget", key, "no json", "{}", 1, 0, "{}", "{}") == "exceeded"
    assert q.call("checkBudget", key) == "exceeded"
    assert q.hash("budget:f") | {"usedTokens": "101", "usedCost": "0.5", "usedTokens:input": "100"} == q.hash(
        "budget:f"
    )


@pytest.mark.every_server
def test_locks_belong_to_their_token(q: Queue) -> None:
    key = [q.key("schedulers:lock:x")]
    assert q.call("tryLock", key, "a", 5000) == 1
    assert q.call("tryLock", key, "a", 5000) == 0
    assert q.call("unlock", key, "b") == 0
    assert q.call("renewLock", key, "a", 9000) == 1
    assert 8000 < q.valkey.pttl(key[0]) <= 9000
    assert q.call("unlock", key, "a") == 1


def test_removed_job_leaves_nothing_of_its_own(q: Queue) -> None:
    q.add()
    q.valkey.rpush(q.key("log:1"), "line")
    assert q.remove("1") == 1
    assert q.remove("1") == 0
    assert q.valkey.keys(q.key("*:1")) == []
    assert q.events()[-1] == ("event", "removed", "jobId", "1")


@pytest.mark.every_server
def test_jobs_are_found_by_name(q: Queue) -> None:
    for name in ("a", "b", "a"):
        q.add(name=name)
    q.add(name="a", delay=5)
    assert q.call("searchByName", q.keys("stream"), "stream", "a", 10, f"{q.base}:") == ["1", "3"]
    assert q.call("searchByName", q.keys("stream"), "stream", "a", 1, f"{q.base}:") == ["1"]
    assert q.call("searchByName", q.keys("scheduled"), "zset", "a", 10, f"{q.base}:") == ["4"]
    assert q.call("searchByName", q.keys("scheduled"), "list", "a", 10, f"{q.base}:") == []


def test_pausing_sets_the_flag_and_is_logged_every_time(q: Queue) -> None:
    keys = q.keys("meta", "events")
    assert (q.call("pause", keys), q.call("pause", keys), q.hash("meta")) == (1, 1, {"paused": "1"})
    assert (q.call("resume", keys), q.hash("meta")) == (1, {"paused": "0"})
    assert q.events() == [("event", name, "jobId", "0") for name in ("paused", "paused", "resumed")]
