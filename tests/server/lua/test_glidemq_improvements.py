"""The improvements over library version 93 that clients cannot see except by failures that stay away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000
SHIFT = 4398046511104


def _refill(q: Queue, **fields: int) -> None:
    q.valkey.hset(q.key("group:g"), mapping=fields)


def test_q1_promotion_drops_members_without_a_job(q: Queue) -> None:
    q.valkey.zadd(q.key("scheduled"), {"gone": T})
    assert q.promote(T) == 1
    assert (q.job("gone"), q.stream(), q.events()) == ({}, [], [])


def test_q2_sweep_deletes_entries_of_deleted_jobs(q: Queue) -> None:
    q.add()
    q.start()
    q.valkey.delete(q.key("job:1"))
    assert q.reclaim(T + 60_000) == 1
    assert (q.job("1"), q.stream(), q.pending()) == ({}, [], [])


def test_q3_finishing_a_missing_job_only_acknowledges(q: Queue) -> None:
    for _ in range(3):
        q.add()
        q.read()
    q.valkey.delete(*q.keys("job:1", "job:2", "job:3", "events"))
    entries = q.pending()
    assert q.complete("1", entries[0]) == 1
    assert q.complete_and_fetch("2", entries[1]) == ["NEXT_NONE", "2"]
    assert q.fail("3", entries[2], attempts=3) == "failed"
    assert set(q.valkey.keys("*")) == set(q.keys("stream", "id"))
    assert (q.stream(), q.pending()) == ([], [])


def test_q3_repeated_completion_changes_nothing(q: Queue) -> None:
    q.add()
    q.complete("1", q.start()[0], T + 1)
    before = q.dump()
    assert q.complete("1", "", T + 9) == 1
    assert q.fail("1", "", T + 9) == "failed"
    assert q.dump() == before


def test_q3_job_is_never_both_completed_and_failed(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    q.reclaim(T + 60_000, max_stalled=0)
    assert q.job("1")["state"] == "failed"
    q.complete("1", entry, T + 60_001)
    assert (list(q.scores("completed")), list(q.scores("failed"))) == (["1"], [])


def test_q4_missing_parents_are_not_created(q: Queue) -> None:
    q.add()
    q.valkey.sadd(q.key("parents:1"), f"{q.base}:gone")
    q.complete_child("gone", f"{q.base}:1")
    q.complete("1", q.read()[0], parent="gone", member=f"{q.base}:1")
    assert q.job("gone") == {}


def test_q5_custom_id_with_bars_survives_promotion(q: Queue) -> None:
    q.add(job_id="a||b", delay=5)
    assert q.promote(T + 5) == 1
    assert q.stream() == [{"jobId": "a||b", "name": "n"}]


@pytest.mark.parametrize("death", ["cost", "expiry", "revoke", "remove", "drain", "bucket", "promotion"])
def test_q6_number_of_a_job_that_never_ran_does_not_block_its_group(q: Queue, death: str) -> None:
    first = {"cost": {"capacity": 1000, "refill": 1, "cost": 2000}, "expiry": {"ttl": 1}}
    first["promotion"] = {"ttl": 1, "delay": 5}
    q.add(group="g", **first.get(death, {}))
    if death == "expiry":
        assert q.start(T + 5)[1] == "EXPIRED"
    elif death == "revoke":
        q.revoke("1")
    elif death == "remove":
        q.remove("1")
    elif death == "drain":
        assert q.drain() == 1
    elif death == "promotion":
        assert q.promote(T + 5) == 1
    elif death == "bucket":
        _refill(q, tbCapacity=500, tbRefillRate=1)
        assert q.start()[1] == "ERR:COST_EXCEEDS_CAPACITY"
    job_id = q.add(group="g")
    assert "active" in q.start(T + 5)[1]
    assert q.job(job_id)["state"] == "active"


def test_q6_death_of_the_next_job_wakes_the_parked_one(q: Queue) -> None:
    q.add(group="g", delay=1000)
    q.add(group="g")
    assert q.start()[1] == "GROUP_ORDERED"
    q.revoke("1")
    assert q.stream() == [{"jobId": "2", "name": "n"}]
    assert "active" in q.start()[1]


def test_q6b_promotion_steps_over_markers(q: Queue) -> None:
    for _ in range(4):
        q.add(group="g", concurrency=4)
    entries = [q.read()[0] for _ in range(4)]
    for i in (2, 4):
        assert q.activate(str(i), entries[i - 1]) == "GROUP_ORDERED"
    q.revoke("3")
    assert q.hash("group:g")["skip:3"] == "1"
    q.activate("1", entries[0])
    q.complete("1", entries[0])
    assert [entry["jobId"] for entry in q.stream()] == ["2", "4"]


@pytest.mark.parametrize("death", ["revoke", "remove"])
def test_q6c_delayed_retry_that_dies_gives_its_slot_back(q: Queue, death: str) -> None:
    q.add(group="g", concurrency=1)
    q.fail("1", q.start()[0], attempts=3, backoff=1000)
    if death == "revoke":
        q.revoke("1")
    else:
        q.remove("1")
    assert q.hash("group:g")["active"] == "0"
    q.add(group="g", concurrency=1)
    assert "active" in q.start()[1]


def test_q6d_retried_job_takes_a_slot_again(q: Queue) -> None:
    q.add(group="g", concurrency=1)
    q.fail("1", q.start()[0])
    q.add(group="g", concurrency=1)
    entry, _ = q.start()
    q.retry_jobs(0, T)
    q.promote(T)
    assert q.start()[1] == "GROUP_FULL"
    q.complete("2", entry)
    retried, reply = q.start()
    assert "active" in reply
    assert q.hash("group:g")["active"] == "1"
    q.complete("1", retried)
    assert q.hash("group:g")["active"] == "0"


def test_q6d_job_requeued_by_its_group_limit_takes_a_slot_again(q: Queue) -> None:
    q.add(group="g", concurrency=2)
    entry, _ = q.start()
    q.add(group="g", concurrency=2)
    q.start()
    q.limit_group("1", entry, T, 100)
    assert q.promote_groups(T + 100) == 1
    again, _ = q.start(T + 100)
    assert q.hash("group:g")["active"] == "2"
    q.complete("1", again)
    assert q.hash("group:g")["active"] == "1"


def test_q7_idle_full_bucket_allows_one_burst_only(q: Queue) -> None:
    for _ in range(2):
        q.add(group="g", concurrency=9, capacity=1000, refill=1000)
    assert "active" in q.start(T + 60_000)[1]
    assert q.start(T + 60_000)[1] == "GROUP_TOKEN_LIMITED"


def test_q8_locks_and_sub_keys_do_not_break_the_scans(q: Queue) -> None:
    q.add(lifo=1)
    q.activate("1")
    q.valkey.set(q.key("job:1:usage-lock"), "x")
    q.valkey.hset(q.key("job:1:sub:a"), mapping={"state": "active", "lifo": "1"})
    q.valkey.set(q.key("list-active"), 1)
    assert q.call("healListActive", q.keys("id")) == 0
    assert q.call("getActiveListJobIds", q.keys("id"), 0, -1) == ["1"]
    assert q.reclaim_lists(T + 60_000, 1000) == 1


@pytest.mark.standalone
def test_q8_queue_names_are_not_patterns(q: Queue) -> None:
    q.valkey.hset("glide:{xy}:job:1", mapping={"state": "active", "lifo": "1"})
    q.valkey.hset("glide:{x*}:job:2", mapping={"state": "active", "lifo": "1"})
    assert q.call("getActiveListJobIds", ["glide:{x*}:id"], 0, -1) == ["2"]


@pytest.mark.standalone
def test_q8b_incomplete_scan_leaves_the_counter_alone(q: Queue) -> None:
    pipe = q.valkey.pipeline(transaction=False)
    for first in range(0, 130_000, 10_000):
        pipe.mset({f"other:{i}": "" for i in range(first, first + 10_000)})
    pipe.execute()
    q.valkey.set(q.key("list-active"), 5)
    assert q.call("healListActive", q.keys("id")) == 0
    assert q.valkey.get(q.key("list-active")) == "5"


@pytest.mark.parametrize(("custom", "following"), [("007", "8"), ("99999999999999999999", "1")])
def test_q9_numeric_custom_ids_never_break_the_counter(q: Queue, custom: str, following: str) -> None:
    assert q.add(job_id=custom) == custom
    assert q.add() == following


def test_q9_large_automatic_ids_stay_digits(q: Queue) -> None:
    q.valkey.set(q.key("id"), 10**15)
    assert q.add() == "1000000000000001"


def test_q10_retention_deletes_what_belongs_to_the_job(q: Queue) -> None:
    q.add()
    q.valkey.rpush(q.key("log:1"), "line")
    for name in ("deps:1", "parents:1"):
        q.valkey.sadd(q.key(name), "glide:{other}:1")
    q.complete("1", q.start()[0], mode="true")
    assert q.valkey.keys(q.key("*:1")) == []


@pytest.mark.parametrize("retention", [{"mode": "count", "count": 1}, {"mode": "age_count", "age": 1}])
def test_retention_spares_what_others_need(q: Queue, retention: dict[str, Any]) -> None:
    """Nodes go with their flow, and a child stays while its parent waits; they do not hide what may go."""
    q.flow({}, [{}])
    q.complete("2", q.start()[0], 1_000)
    q.valkey.hset(q.key("job:1"), "state", "waiting-children")
    for at in (2_000, 3_000):
        q.valkey.hset(q.key(f"job:node-{at}"), mapping={"state": "completed", "gmo:flow": "f"})
        q.valkey.zadd(q.key("completed"), {f"node-{at}": at})
    for at in (10_000, 20_000, 30_000):
        q.complete(q.add(), q.start()[0], at, **retention)
    assert q.valkey.zrange(q.key("completed"), 0, -1) == ["2", "node-2000", "node-3000", "5"]


def test_q10_removal_and_drain_leave_no_relations(q: Queue) -> None:
    q.add()
    q.add(lifo=1)
    for name in ("deps:1", "parents:2"):
        q.valkey.sadd(q.key(name), "glide:{other}:1")
    q.remove("1")
    assert q.drain() == 1
    assert q.valkey.keys(q.key("deps:*")) + q.valkey.keys(q.key("parents:*")) == []


def test_q11_refused_cost_counts_as_failed(q: Queue) -> None:
    q.add()
    q.add(group="g")
    _refill(q, tbCapacity=500, tbRefillRate=1)
    entry, _ = q.start()
    assert q.complete_and_fetch("1", entry) == ["NEXT_NONE", "1"]
    assert q.hash("metrics:failed") == {"m:1699999980000:c": "1"}
    assert q.hash("metrics:completed") == {"m:1699999980000:c": "1"}


@pytest.mark.parametrize("given", [{"lifo": 1}, {"priority": 1}])
def test_q12_list_jobs_pass_the_gates_of_their_group(q: Queue, given: dict[str, int]) -> None:
    q.add()
    q.add(group="g", concurrency=9, rate_max=1, rate_duration=1000, **given)
    _refill(q, rateWindowStart=T, rateCount=1)
    q.promote(T)
    assert q.complete_and_fetch("1", q.start()[0], T + 1) == ["NEXT_NONE", "1"]
    assert q.job("2")["state"] == "group-waiting"
    assert q.scores("ratelimited") == {"g": T + 1000}


def test_q13_dead_head_does_not_stop_the_wake_up(q: Queue) -> None:
    q.add(group="g", capacity=1000, refill=1000)
    _refill(q, tbTokens=0, tbLastRefill=T)
    assert q.start()[1] == "GROUP_TOKEN_LIMITED"
    q.valkey.zadd(q.key("groupq:g"), {"gone": 0})
    assert q.promote_groups(T + 1000) == 1
    assert q.stream() == [{"jobId": "1", "name": "n"}]


def test_q14_lifo_job_resumed_into_the_stream_is_not_a_list_job(q: Queue) -> None:
    q.add(lifo=1)
    q.activate("1")
    q.suspend("1", "")
    q.signal("1")
    q.start()
    q.valkey.set(q.key("list-active"), 1)
    assert q.reclaim_lists(T + 60_000, 1000) == 0
    assert q.call("getActiveListJobIds", q.keys("id"), 0, -1) == []
    q.remove("1")
    assert q.valkey.get(q.key("list-active")) == "1"


def test_q15_limited_group_starts_nothing_until_its_time(q: Queue) -> None:
    q.add(group="g", concurrency=2)
    q.call("rateLimitGroupExternal", q.keys("ratelimited", "events"), "g", 500, T, "max")
    assert q.start(T + 1)[1] == "GROUP_RATE_LIMITED"
    assert q.scores("ratelimited") == {"g": T + 500}
    assert q.promote_groups(T + 500) == 1
    assert "active" in q.start(T + 500)[1]
    assert "limitedUntil" not in q.hash("group:g")


def test_q15_limited_group_promotes_nothing_on_release(q: Queue) -> None:
    for _ in range(2):
        q.add(group="g", concurrency=1)
    entry, _ = q.start()
    q.start()
    q.call("rateLimitGroupExternal", q.keys("ratelimited", "events"), "g", 500, T, "max")
    q.complete("1", entry, T + 1)
    assert q.stream() == []
    assert q.promote_groups(T + 500) == 1


@pytest.mark.parametrize("cost", [{"parent": 9}, {"child": 9}])
def test_q17_flow_that_costs_too_much_leaves_nothing_behind(q: Queue, cost: dict[str, int]) -> None:
    opts = '{"cost":%d,"ordering":{"key":"g","tokenBucket":{"capacity":5,"refillRate":1}}}'
    parent = {"opts": opts % cost["parent"]} if "parent" in cost else {}
    child = {"opts": opts % cost.get("child", 1)}
    assert q.flow(parent, [child]) == "ERR:COST_EXCEEDS_CAPACITY"
    assert set(q.valkey.keys("*")) == set(q.keys("id", "stream"))


@pytest.mark.parametrize("given", [{}, {"lifo": 1}, {"priority": 1}])
def test_q18_removed_waiting_job_is_handed_to_no_worker(q: Queue, given: dict[str, int]) -> None:
    q.add(**given)
    q.promote(T)
    assert q.remove("1") == 1
    assert q.stream() == []
    assert not q.valkey.exists(*q.keys("lifo", "priority"))


@pytest.mark.every_server
def test_q19_next_due_looks_into_every_priority(q: Queue) -> None:
    q.add(delay=5000)
    q.add(delay=70, priority=3)
    assert q.next_due() == T + 70


def test_q20_bulk_retry_starts_a_new_life(q: Queue) -> None:
    q.add(ttl=10)
    q.valkey.hset(q.key("job:1"), mapping={"revoked": "1", "stalledCount": "1"})
    q.valkey.zadd(q.key("failed"), {"1": T})
    assert q.retry_jobs(0, T + 100) == 1
    job = q.job("1")
    assert {"revoked", "stalledCount"} & set(job) == set()
    assert job["expireAt"] == str(T + 110)
    q.promote(T + 100)
    assert q.job("1")["state"] == "waiting"


def test_q21_entry_of_a_deleted_job_is_deleted_and_the_next_one_tried(q: Queue) -> None:
    for _ in range(3):
        q.add()
    q.valkey.delete(q.key("job:2"))
    reply = q.complete_and_fetch("1", q.start()[0])
    assert reply[:3] == ["NEXT_HASH", "1", "3"]
    assert [entry["jobId"] for entry in q.stream()] == ["3"]


def test_queue_drains_while_memory_is_full(q: Queue) -> None:
    for _ in range(3):
        q.add()
    q.valkey.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            q.add()
        entry = q.valkey.xrange(q.key("stream"))[0][0]
        assert "active" in q.activate("1", entry)
        assert q.complete_and_fetch("1", entry)[0] == "NEXT_HASH"
        assert q.fail("2", q.pending()[0]) == "failed"
        assert q.revoke("3") == "revoked"
    finally:
        q.valkey.config_set("maxmemory", 0)
    assert [q.job(i)["state"] for i in "123"] == ["completed", "failed", "failed"]


def test_sweep_does_not_run_a_finished_job_again(q: Queue) -> None:
    q.add()
    late, _ = q.start()
    q.reclaim(T + 60_000)
    q.start(T + 60_001)
    q.complete("1", late, T + 60_002)
    assert q.reclaim(T + 120_000) == 1
    assert (q.job("1")["state"], q.stream(), q.pending()) == ("completed", [], [])


def test_q6d_retried_job_that_dies_does_not_free_the_slot_of_another(q: Queue) -> None:
    q.add(group="g", concurrency=1)
    q.fail("1", q.start()[0])
    q.add(group="g", concurrency=1)
    q.start()
    q.retry_jobs(0, T)
    assert q.revoke("1") == "revoked"
    assert q.hash("group:g")["active"] == "1"
