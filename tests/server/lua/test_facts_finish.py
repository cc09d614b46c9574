"""Facts about completing and failing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000
SHIFT = 4398046511104
COUNT, DURATION = "m:1699999980000:c", "m:1699999980000:d"


def test_metrics_count_and_sum_the_duration_of_a_minute(q: Queue) -> None:
    q.add()
    q.complete("1", q.start()[0], T + 50)
    assert q.hash("metrics:completed") == {COUNT: "1", DURATION: "50"}


def test_zero_duration_creates_no_sum(q: Queue) -> None:
    q.add()
    q.complete("1", q.start()[0])
    assert q.hash("metrics:completed") == {COUNT: "1"}


@pytest.mark.parametrize(("count", "kept"), [(2, ["3", "4"]), (0, ["1", "2", "3", "4"])])
def test_retention_by_count_keeps_the_newest(q: Queue, count: int, kept: list[str]) -> None:
    for i in range(4):
        q.add()
        q.complete(str(i + 1), q.start()[0], T + i, mode="count", count=count)
    assert list(q.scores("completed")) == kept
    assert [i for i in "1234" if q.job(i)] == kept


def test_retention_by_age_removes_the_exact_limit(q: Queue) -> None:
    for now in (T, T + 1, T + 1000):
        q.add()
        entry, _ = q.start(now)
        q.complete(str(q.valkey.get(q.key("id"))), entry, now, mode="age_count", age=1)
    assert list(q.scores("completed")) == ["2", "3"]


def test_retention_of_nothing_still_writes_events_metrics_and_parents(q: Queue) -> None:
    q.flow({}, [{}])
    q.complete("2", q.read()[0], parent="1", member=f"{q.base}:2", mode="true")
    assert q.job("2") == {}
    assert q.scores("completed") == {}
    assert "completed" in q.event_names()
    assert q.hash("metrics:completed") == {COUNT: "1"}
    assert q.job("1")["state"] == "waiting"


def test_broadcast_completion_keeps_hash_and_entry(q: Queue) -> None:
    q.add()
    q.complete("1", q.start()[0], mode="true", broadcast="1")
    assert q.job("1")["state"] == "completed"
    assert q.stream() == [{"jobId": "1", "name": "n"}]
    assert q.pending() == []


def test_next_stream_job_is_handed_out_active(q: Queue) -> None:
    q.add()
    q.add()
    reply = q.complete_and_fetch("1", q.start()[0], T + 1)
    assert reply[:4] == ["NEXT_HASH", "1", "2", q.pending()[0]]
    assert dict(zip(reply[4::2], reply[5::2], strict=True)) == q.job("2")
    assert q.job("2")["state"] == "active"
    assert q.event_names() == ["added", "added", "completed"]


def test_lists_come_before_the_stream_and_priority_before_lifo(q: Queue) -> None:
    for given in ({}, {}, {"lifo": 1}, {"priority": 1}):
        q.add(**given)
    q.promote(T)
    entry, _ = q.start()
    assert q.complete_and_fetch("1", entry)[2:4] == ["4", ""]
    assert q.events()[-1] == ("event", "active", "jobId", "4")
    assert q.valkey.get(q.key("list-active")) == "1"
    assert q.complete_and_fetch("4")[2:4] == ["3", ""]
    assert q.valkey.get(q.key("list-active")) == "1"
    assert q.complete_and_fetch("3")[2] == "2"


def test_list_active_never_becomes_negative(q: Queue) -> None:
    q.add(lifo=1)
    q.complete("1")
    assert q.valkey.get(q.key("list-active")) is None


def test_events_and_metrics_can_be_skipped(q: Queue) -> None:
    q.add()
    q.complete_and_fetch("1", q.start()[0], T + 5, skip_events="1", skip_metrics="1")
    assert q.event_names() == ["added"]
    assert q.hash("metrics:completed") == {}


@pytest.mark.parametrize(("hint", "active"), [("__", "1"), ("", "0"), ("g", "0")])
def test_group_hint_decides_whether_a_slot_is_released(q: Queue, hint: str, active: str) -> None:
    q.add(group="g")
    q.complete_and_fetch("1", q.start()[0], group_key=hint)
    assert q.hash("group:g")["active"] == active


def test_revoked_next_job_is_reported_and_stays_pending(q: Queue) -> None:
    q.add()
    q.add()
    q.valkey.hset(q.key("job:2"), "revoked", "1")
    reply = q.complete_and_fetch("1", q.start()[0])
    assert reply == ["NEXT_REVOKED", "1", "2", q.pending()[0]]


@pytest.mark.parametrize(("expired", "head"), [(2, "NEXT_HASH"), (3, "NEXT_NONE")])
def test_up_to_three_entries_are_tried(q: Queue, expired: int, head: str) -> None:
    q.add()
    for _ in range(expired):
        q.add(ttl=1)
    q.add()
    assert q.complete_and_fetch("1", q.start()[0], T + 10)[0] == head


def test_failure_with_attempts_left_is_retried_after_the_backoff(q: Queue) -> None:
    q.add(priority=2)
    entry = q.valkey.xadd(q.key("stream"), {"jobId": "1", "name": "n"})
    q.read()
    q.activate("1", entry)
    assert q.fail("1", entry, T + 5, attempts=3, backoff=100) == "retrying"
    job = q.job("1")
    assert (job["attemptsMade"], job["state"], job["processedOn"]) == ("1", "delayed", str(T + 5))
    assert (job["delay"], job["failedReason"]) == ("0", "boom")
    assert q.events()[-1] == (
        "event", "retrying", "jobId", "1", "failedReason", "boom", "attemptsMade", "1", "delay", "100",
    )  # fmt: skip
    assert q.hash("metrics:failed") == {}
    assert q.scores("scheduled") == {"1": 2 * SHIFT + T + 105}


@pytest.mark.parametrize("attempts", [0, 1])
def test_failure_without_attempts_left_is_final(q: Queue, attempts: int) -> None:
    q.add()
    assert q.fail("1", q.start()[0], T + 50, attempts=attempts) == "failed"
    job = q.job("1")
    assert (job["state"], job["finishedOn"], job["processedOn"]) == ("failed", str(T + 50), str(T + 50))
    assert q.hash("metrics:failed") == {COUNT: "1", DURATION: "50"}
    assert q.scores("failed") == {"1": T + 50}


def test_broadcast_failure_counts_attempts_of_the_subscription(q: Queue) -> None:
    q.add()
    q.fail("1", q.start()[0], attempts=3, group="subA", broadcast="1")
    assert q.hash("job:1:sub:subA") == {"a": "1"}
    assert 86390 < q.valkey.ttl(q.key("job:1:sub:subA")) <= 86400
    assert q.job("1")["attemptsMade"] == "0"
    assert list(q.scores("scheduled")) == ["1||subA"]


def test_fallback_index_rises_with_each_retry_but_not_at_the_end(q: Queue) -> None:
    q.add(opts='{"fallbacks":[1]}')
    entry, _ = q.start()
    for expected in ("1", "2"):
        q.fail("1", entry, attempts=3)
        assert q.job("1")["fallbackIndex"] == expected
    q.fail("1", entry, attempts=3)
    assert q.job("1")["fallbackIndex"] == "2"


def test_legacy_ordering_keys_record_the_finished_numbers(q: Queue) -> None:
    for seq in (1, 2, 3):
        q.add()
        q.valkey.hset(q.key(f"job:{seq}"), mapping={"orderingKey": "k", "orderingSeq": seq})
    entries = [q.read()[0] for _ in range(3)]
    q.complete("2", entries[1])
    assert q.hash("orderdone:pending:k") == {"2": "1"}
    q.fail("1", entries[0])
    assert (q.hash("meta"), q.hash("orderdone:pending:k")) == ({"orderdone:k": "2"}, {})
    q.complete_and_fetch("3", entries[2])
    assert q.hash("meta") == {"orderdone:k": "3"}


def test_further_parents_in_the_same_queue_are_notified(q: Queue) -> None:
    q.add()
    q.flow({"job_id": "p"}, [], extra=[])
    assert q.call(
        "registerParent",
        q.keys("job:1", "parents:1", "deps:p", "job:p", "stream", "events"),
        "1", "p", q.base, f"{q.base}:1",
    ) == "ok"  # fmt: skip
    q.complete("1", q.read()[0])
    assert q.job("p")["state"] == "waiting"
    assert q.job("p")["depsCompleted"] == "1"
