"""Facts about stalled jobs, parked jobs and suspension."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000


def _start_lifo(q: Queue, now: int = T) -> None:
    """Job 1 active from the LIFO list."""
    q.add(lifo=1)
    q.valkey.rpop(q.key("lifo"))
    q.valkey.incr(q.key("list-active"))
    q.activate("1", now=now)


def test_first_stall_is_forgiven_and_the_second_fails_the_job(q: Queue) -> None:
    q.add()
    q.start()
    assert q.reclaim(T + 60_000) == 1
    assert q.stream() == [{"jobId": "1", "name": "n"}]
    assert {"processedOn", "lastActive"} & set(q.job("1")) == set()
    assert q.job("1")["state"] == "waiting"
    assert q.events()[-1] == ("event", "stalled", "jobId", "1")
    q.start(T + 60_001)
    assert q.reclaim(T + 120_000) == 1
    assert q.job("1")["failedReason"] == "job stalled more than maxStalledCount"
    assert q.stream() == []
    assert q.event_names()[-1] == "failed"


def test_a_job_that_expired_before_its_dead_worker_began_it_fails(q: Queue) -> None:
    q.add(ttl=100)
    q.read()
    assert q.reclaim(T + 60_000) == 1
    assert (q.job("1")["state"], q.job("1")["failedReason"]) == ("failed", "expired")
    assert q.event_names() == ["added", "expired"]
    assert q.stream() == []


def test_own_lock_duration_protects_a_job_that_is_still_counted(q: Queue) -> None:
    q.add(opts='{"lockDuration":5000}')
    q.start()
    assert q.reclaim(T + 3000) == 1
    assert q.job("1")["state"] == "active"
    assert "stalledCount" not in q.job("1")


def test_lock_duration_out_of_range_gives_way_to_that_of_the_worker(q: Queue) -> None:
    q.add(opts='{"lockDuration":500}')
    q.start()
    q.reclaim(T + 3000, lock=4000)
    assert q.job("1")["state"] == "active"
    q.reclaim(T + 3000, lock=2000)
    assert q.job("1")["state"] == "waiting"


def test_stalled_lifo_job_returns_to_its_list(q: Queue) -> None:
    _start_lifo(q)
    q.valkey.rpush(q.key("lifo"), "older")
    assert q.reclaim_lists(T + 60_000, 1000) == 1
    assert q.valkey.lrange(q.key("lifo"), 0, -1) == ["older", "1"]
    assert q.valkey.get(q.key("list-active")) == "0"


def test_without_active_list_jobs_sweep_and_repair_do_nothing(q: Queue) -> None:
    q.add(lifo=1)
    q.activate("1")
    before = q.dump()
    assert q.reclaim_lists(T + 60_000) == 0
    assert q.call("healListActive", q.keys("id")) == 0
    assert q.dump() == before


@pytest.mark.every_server
def test_repair_lowers_the_counter_to_the_jobs_that_are_active(q: Queue) -> None:
    _start_lifo(q)
    q.valkey.set(q.key("list-active"), 3)
    assert q.call("getActiveListJobIds", q.keys("id"), 0, -1) == ["1"]
    assert q.call("healListActive", q.keys("id")) == 2
    assert q.valkey.get(q.key("list-active")) == "1"


def test_parent_whose_children_are_done_is_ready_immediately(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    q.valkey.sadd(q.key("deps:1"), "glide:{q}:9")
    q.complete_child("1", "glide:{q}:9")
    assert q.wait_for_children("1", entry) == "completed"
    assert q.job("1")["state"] == "waiting"
    assert q.stream() == [{"jobId": "1", "name": "n"}]
    assert q.event_names() == ["added", "active"]


def test_job_without_children_waits_for_them_all_the_same(q: Queue) -> None:
    q.add()
    assert q.wait_for_children("1", q.start()[0]) == "ok"
    assert q.job("1")["state"] == "waiting-children"
    assert q.event_names() == ["added", "waiting-children"]
    assert q.wait_for_children("1", "") == "error:not_active"


def test_suspension_without_timeout_has_no_deadline(q: Queue) -> None:
    q.add()
    assert q.suspend("1", q.start()[0]) == "ok"
    assert q.scores("suspended") == {"1": 9999999999999}
    assert q.sweep_suspended(T + 10**9) == 0
    assert q.job("1")["state"] == "suspended"


def test_signal_is_stored_as_text_and_accepted_once(q: Queue) -> None:
    q.add()
    q.suspend("1", q.start()[0])
    assert q.signal("1", "go", '{"a":1}') == "ok"
    expected = {"name": "go", "data": '{"a":1}', "receivedAt": T}
    assert [json.loads(x) for x in q.valkey.lrange(q.key("signals:1"), 0, -1)] == [expected]
    assert json.loads(q.job("1")["signals"]) == [expected]
    assert q.events()[-1] == ("event", "resumed", "jobId", "1", "signal", "go")
    assert q.scores("suspended") == {}
    assert q.signal("1") == "not_suspended"


def test_suspended_job_fails_exactly_at_its_deadline(q: Queue) -> None:
    q.add()
    q.suspend("1", q.start(T)[0], T + 10, timeout=20)
    assert q.sweep_suspended(T + 29) == 0
    assert q.sweep_suspended(T + 30) == 1
    assert q.job("1")["failedReason"] == "Suspend timeout exceeded"
    assert q.hash("metrics:failed")["m:1699999980000:d"] == "30"


def test_postponed_job_is_scheduled_with_new_data(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    assert q.postpone("1", entry, T, T + 70, "new") == "ok"
    job = q.job("1")
    assert (job["state"], job["delay"], job["data"], job["attemptsMade"]) == ("delayed", "70", "new", "0")
    assert q.scores("scheduled") == {"1": T + 70}
    assert q.events()[-1] == ("event", "delay-changed", "jobId", "1", "delay", "70")
    assert q.postpone("1", "", T, T) == "error:not_active"


def test_deferred_job_goes_to_the_end_of_the_stream(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    assert q.defer("1", entry) == 1
    assert (q.job("1")["state"], q.stream(), q.pending()) == ("waiting", [{"jobId": "1", "name": "n"}], [])
    assert q.defer("9", "") == 0
    assert q.job("9") == {}


def test_limiting_the_group_from_a_job_requeues_it_in_front(q: Queue) -> None:
    q.add(group="g")
    entry, _ = q.start()
    assert q.limit_group("1", entry, T, 500) == str(T + 500)
    assert q.scores("groupq:g") == {"1": 1}
    assert q.hash("group:g")["active"] == "0"
    assert q.events()[-1] == (
        "event", "group-rate-limited", "jobId", "1",
        "groupKey", "g", "duration", "500", "resumeAt", str(T + 500),
    )  # fmt: skip


def test_limiting_a_group_from_outside_extends_or_replaces(q: Queue) -> None:
    keys = q.keys("ratelimited", "events")
    assert q.call("rateLimitGroupExternal", keys, "g", 500, T, "max") == T + 500
    assert q.call("rateLimitGroupExternal", keys, "g", 100, T, "max") == T + 500
    assert q.call("rateLimitGroupExternal", keys, "g", 100, T, "replace") == T + 100
    assert q.scores("ratelimited") == {"g": T + 100}
    assert q.events()[0][:4] == ("event", "group-rate-limited", "jobId", "")


def test_limiting_the_group_can_fail_the_job_or_park_it_behind_others(q: Queue) -> None:
    for _ in range(3):
        q.add(group="g", concurrency=2)
    first, second = q.start()[0], q.start()[0]
    assert q.start()[1] == "GROUP_FULL"
    q.limit_group("1", first, T, 500, position="back")
    assert q.scores("groupq:g") == {"3": 3, "1": 4}
    q.limit_group("2", second, T + 5, 100, current="fail")
    assert (q.job("2")["state"], q.job("2")["failedReason"]) == ("failed", "group rate limited")
    assert q.scores("ratelimited") == {"g": T + 500}
    assert q.job("2")["processedOn"] == str(T)


def test_broadcast_sweep_leaves_the_entry_pending(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    args = ("workers", "c2", 0, 1, T + 60_000, q.key("failed"), "1", 0)
    assert q.call("reclaimStalled", q.keys("stream", "events"), *args) == 1
    assert (q.job("1")["state"], q.pending(), len(q.stream())) == ("active", [entry], 1)
