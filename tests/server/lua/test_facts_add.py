"""Facts about adding jobs and flows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000
SHIFT = 4398046511104


def test_version_is_93_with_any_keys_and_is_refused_read_only(q: Queue) -> None:
    assert q.call("version", []) == "93"
    assert q.call("version", ["{glidemq}:_"]) == "93"
    with pytest.raises(redis.ResponseError, match="Can not execute a script with write flag"):
        q.valkey.execute_command("FCALL_RO", "glidemq_version", 0)


def test_minimal_job_has_exactly_the_base_fields(q: Queue) -> None:
    assert q.add() == "1"
    assert q.job("1") == {
        "id": "1", "name": "n", "data": "{}", "opts": "{}", "timestamp": str(T), "attemptsMade": "0",
        "delay": "0", "priority": "0", "maxAttempts": "0", "state": "waiting",
    }  # fmt: skip
    assert q.stream() == [{"jobId": "1", "name": "n"}]
    assert q.events() == [("event", "added", "jobId", "1", "name", "n")]


def test_four_arguments_are_enough(q: Queue) -> None:
    keys = q.keys("id", "stream", "scheduled", "events")
    assert q.call("addJob", keys, "n", "{}", "{}", T) == "1"
    assert q.job("1")["state"] == "waiting"


def test_seventeen_arguments_of_older_clients_are_accepted(q: Queue) -> None:
    keys = q.keys("id", "stream", "scheduled", "events")
    args = ("n", "{}", "{}", T, 0, 0, "", 0, "", 0, 0, 0, 0, 0, 0, 0, "mine")
    assert q.call("addJob", keys, *args) == "mine"
    assert q.call("dedup", [q.key("dedup"), *keys], "d", 0, "simple", *args[:-1], "yours") == "yours"


def test_unexpected_id_key_is_refused(q: Queue) -> None:
    keys = [q.key("ids"), *q.keys("stream", "scheduled", "events")]
    with pytest.raises(redis.ResponseError, match="unexpected key format"):
        q.call("addJob", keys, "n", "{}", "{}", T)


@pytest.mark.parametrize(("flag", "count"), [("1", 0), ("true", 1), ("0", 1)])
def test_skip_events_is_on_for_1_only(q: Queue, flag: str, count: int) -> None:
    q.add(skip_events=flag)
    assert len(q.events()) == count


def test_taken_custom_id_is_a_duplicate_and_changes_nothing(q: Queue) -> None:
    q.add(job_id="abc")
    before = q.dump()
    assert q.add(job_id="abc") == "duplicate"
    assert q.dump() == before


def test_numeric_custom_id_moves_the_counter(q: Queue) -> None:
    assert q.add(job_id="50") == "50"
    assert q.add(job_id="abc") == "abc"
    assert q.add() == "51"


def test_scheduled_scores_hold_priority_and_time(q: Queue) -> None:
    q.add(delay=100, priority=3)
    q.add(priority=3)
    assert q.scores("scheduled") == {"1": 3 * SHIFT + T + 100, "2": 3 * SHIFT}
    assert (q.job("1")["state"], q.job("2")["state"]) == ("delayed", "prioritized")


def test_cost_above_the_bucket_is_refused_after_taking_its_numbers(q: Queue) -> None:
    assert q.add(group="g", capacity=5000, refill=1000, cost=6000) == "ERR:COST_EXCEEDS_CAPACITY"
    assert q.job("1") == {}
    assert q.valkey.get(q.key("id")) == "1"
    assert q.hash("ordering") == {"g": "1"}


def test_latest_job_without_a_rate_limit_removes_it_from_the_group(q: Queue) -> None:
    q.add(group="g", rate_max=2, rate_duration=1000)
    q.start()
    assert {"rateMax", "rateDuration", "rateWindowStart", "rateCount"} <= set(q.hash("group:g"))
    q.add(group="g")
    assert {field for field in q.hash("group:g") if field.startswith("rate")} == set()


def test_flow_of_three_children_waits_outside_every_queue(q: Queue) -> None:
    assert json.loads(q.flow({"name": "p"}, [{"name": "c"}] * 3)) == ["1", "2", "3", "4"]
    assert q.valkey.smembers(q.key("deps:1")) == {f"{q.base}:{i}" for i in (2, 3, 4)}
    assert [event[3] for event in q.events()] == ["2", "3", "4", "1"]
    assert [entry["jobId"] for entry in q.stream()] == ["2", "3", "4"]
    assert q.job("1")["state"] == "waiting-children"
    assert q.job("2") | {"parentId": "1", "parentQueue": "q"} == q.job("2")
    assert not q.valkey.exists(*q.keys("scheduled", "lifo", "priority"))


def test_parent_wakes_with_its_last_child_and_counts_each_child_once(q: Queue) -> None:
    q.flow({"name": "p"}, [{}, {}])
    member = f"{q.base}:2"
    q.complete("2", q.read()[0], parent="1", member=member)
    assert q.complete_child("1", member) == 1
    assert q.job("1")["state"] == "waiting-children"
    q.complete("3", q.read()[0], parent="1", member=f"{q.base}:3")
    assert q.job("1")["state"] == "waiting"
    assert q.stream()[-1] == {"jobId": "1", "name": "p"}
    assert q.events()[-1] == ("event", "active", "jobId", "1")


def test_duplicate_custom_id_among_children_creates_no_child(q: Queue) -> None:
    assert q.flow({}, [{"job_id": "a"}, {"job_id": "a"}]) == '["duplicate"]'
    assert q.job("a") == {}
    assert q.events() == []


def test_registering_a_parent_at_a_completed_child_wakes_it(q: Queue) -> None:
    q.add()
    q.flow({"job_id": "p"}, [], extra=[f"{q.base}:1"])
    assert q.register_parent("1", "p") == "ok"
    q.valkey.hset(q.key("job:1"), "state", "completed")
    assert q.register_parent("1", "p") == "already_completed"
    assert q.job("p")["state"] == "waiting"


def test_registering_a_parent_at_an_unknown_child_writes_nothing(q: Queue) -> None:
    before = q.dump()
    assert q.register_parent("9", "p") == "error:child_not_found"
    assert q.dump() == before


@pytest.mark.standalone
def test_parent_in_another_queue_is_left_alone(q: Queue) -> None:
    q.add()
    q.valkey.hset("glide:{other}:job:7", mapping={"id": "7", "state": "waiting-children"})
    q.valkey.sadd(q.key("parents:1"), "glide:{other}:7")
    q.complete("1", q.read()[0])
    assert q.valkey.hgetall("glide:{other}:job:7") == {"id": "7", "state": "waiting-children"}


@pytest.mark.parametrize(("mode", "state", "reply"), [
    ("simple", "waiting", "skipped"), ("simple", "completed", "2"), ("debounce", "active", "skipped"),
    ("debounce", "delayed", "2"), ("other", "waiting", "2"),
])  # fmt: skip
def test_deduplication_looks_at_the_state_of_the_last_job(
    q: Queue, mode: str, state: str, reply: str
) -> None:
    assert q.dedup("d", mode) == "1"
    q.valkey.hset(q.key("job:1"), "state", state)
    assert q.dedup("d", mode) == reply


def test_throttle_window_ends_exactly_at_its_length(q: Queue) -> None:
    assert q.dedup("d", "throttle", 1000) == "1"
    assert q.dedup("d", "throttle", 1000, now=T + 999) == "skipped"
    assert q.dedup("d", "throttle", 1000, now=T + 1000) == "2"
    assert q.hash("dedup") == {"d": f"2:{T + 1000}"}


def test_resp3_replies_are_flat_arrays(q: Queue) -> None:
    port = q.valkey.get_connection_kwargs()["port"]
    client: Any = redis.Redis(port=port, protocol=3, decode_responses=True)
    q.add()
    q.add()
    first, second = q.read()[0], q.key("job:1")
    reply = client.fcall("glidemq_moveToActive", 2, second, q.key("stream"), T, first, "workers", "1", "")
    assert isinstance(reply, list)
    assert reply[:2] == ["id", "1"]
    args = ("1", first, "r", T, "workers", "c", "0", 0, 0)
    keys = q.keys("stream", "completed", "events", "job:1", "metrics:completed")
    reply = client.fcall("glidemq_completeAndFetchNext", len(keys), *keys, *args)
    assert reply[:3] == ["NEXT_HASH", "1", "2"]
    client.close()
