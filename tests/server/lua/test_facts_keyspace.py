"""Facts about effects, as everything that a call changed in the whole keyspace and nothing else.

A hash or sorted set is shown by the fields that changed (None = gone), an event log by its new entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.lua.conftest import Queue

T = 1700000000000
SHIFT = 4398046511104
COUNT, DURATION = "m:1699999980000:c", "m:1699999980000:d"


def effects(q: Queue, call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """The reply and what changed, but for the index of priorities, which is ours (``priorities.lua``)."""
    before = q.dump()
    reply = call()
    changed = q.changes(before)
    changed.pop("gmo:priorities", None)
    return reply, changed


def entries(*jobs: str, pending: tuple[str, ...] = ()) -> dict[str, Any]:
    """The stream with these jobs in order."""
    return {"entries": [("jobId", job, "name", "n") for job in jobs], "pending": {"workers": list(pending)}}


def event(name: str, job_id: str, *more: str) -> tuple[str, ...]:
    return ("event", name, "jobId", job_id, *more)


def test_adding_writes_counter_hash_entry_and_event(q: Queue) -> None:
    reply, changed = effects(q, q.add)
    base = {
        "id": "1", "name": "n", "data": "{}", "opts": "{}", "timestamp": str(T), "attemptsMade": "0",
        "delay": "0", "priority": "0", "maxAttempts": "0", "state": "waiting",
    }  # fmt: skip
    assert reply == "1"
    assert changed == {
        "id": "1", "job:1": base, "stream": entries("1"), "events": [event("added", "1", "name", "n")],
    }  # fmt: skip


def test_cost_above_the_bucket_leaves_only_its_numbers_and_the_group(q: Queue) -> None:
    reply, changed = effects(q, lambda: q.add(group="g", capacity=5000, refill=1000, cost=6000))
    bucket = {"tbCapacity": "5000", "tbRefillRate": "1000", "tbTokens": "5000", "tbLastRefill": str(T)}
    group = {"maxConcurrency": "1", "nextSeq": "2", "tbRefillRemainder": "0"} | bucket
    assert reply == "ERR:COST_EXCEEDS_CAPACITY"
    assert changed == {"id": "1", "ordering": {"g": "1"}, "group:g": group}


def test_replaced_job_disappears_and_marks_its_number(q: Queue) -> None:
    q.dedup("d", "debounce", group="g", delay=10)
    q.add(group="g", delay=5000)
    _, changed = effects(q, lambda: q.dedup("d", "debounce", now=T + 1))
    assert changed.pop("job:3")["state"] == "waiting"
    assert changed == {
        "id": "3", "dedup": {"d": f"3:{T + 1}"}, "gmo:dedup": {"d": T + 1}, "job:1": None,
        "scheduled": {"1": None},
        "group:g": {"skip:1": "1"}, "stream": entries("3"),
        "events": [event("removed", "1"), event("added", "3", "name", "n")],
    }  # fmt: skip


def test_promotion_moves_the_member_and_nothing_else(q: Queue) -> None:
    q.add(delay=5)
    q.add(delay=9000)
    reply, changed = effects(q, lambda: q.promote(T + 5))
    assert reply == 1
    assert changed == {
        "scheduled": {"1": None}, "job:1": {"state": "waiting"}, "stream": entries("1"),
        "events": [event("promoted", "1")],
    }  # fmt: skip


def test_expiry_at_promotion_fails_the_job_without_its_parents(q: Queue) -> None:
    q.add(delay=100, ttl=50)
    q.valkey.sadd(q.key("parents:1"), f"{q.base}:p")
    _, changed = effects(q, lambda: q.promote(T + 100))
    job = {"state": "failed", "failedReason": "expired", "finishedOn": str(T + 100)}
    assert changed == {
        "scheduled": None, "failed": {"1": T + 100}, "job:1": job, "events": [event("expired", "1")],
        "metrics:failed": {COUNT: "1"},
    }  # fmt: skip


def test_activation_changes_three_fields_and_logs_nothing(q: Queue) -> None:
    q.add()
    entry, _ = q.read()
    reply, changed = effects(q, lambda: q.activate("1", entry, T + 7))
    assert changed == {"job:1": {"state": "active", "processedOn": str(T + 7), "lastActive": str(T + 7)}}
    assert reply[-6:] == ["state", "active", "processedOn", str(T + 7), "lastActive", str(T + 7)]


def test_activation_of_a_missing_or_revoked_job_changes_nothing(q: Queue) -> None:
    q.add()
    entry, _ = q.read()
    q.valkey.hset(q.key("job:1"), "revoked", "1")
    assert effects(q, lambda: q.activate("1", entry)) == ("REVOKED", {})
    assert effects(q, lambda: q.activate("9", entry)) == ("", {})


def test_full_group_parks_the_job_by_its_number(q: Queue) -> None:
    for _ in range(3):
        q.add(group="g", concurrency=1)
    q.start()
    entry, _ = q.read()
    reply, changed = effects(q, lambda: q.activate("2", entry))
    assert reply == "GROUP_FULL"
    assert changed == {
        "stream": entries("1", "3", pending=("1",)),
        "groupq:g": {"2": 2},
        "job:2": {"state": "group-waiting"},
    }


def test_missing_tokens_register_the_group(q: Queue) -> None:
    q.add(group="g", capacity=5000, refill=1000, cost=5000)
    q.valkey.hset(q.key("group:g"), mapping={"tbTokens": "0", "tbLastRefill": str(T)})
    entry, _ = q.read()
    reply, changed = effects(q, lambda: q.activate("1", entry, T))
    assert reply == "GROUP_TOKEN_LIMITED"
    assert changed == {
        "stream": entries(), "groupq:g": {"1": 1}, "job:1": {"state": "group-waiting"},
        "ratelimited": {"g": T + 5000},
    }  # fmt: skip


def test_completion_hands_the_slot_to_the_parked_job(q: Queue) -> None:
    for _ in range(2):
        q.add(group="g", concurrency=1)
    entry, _ = q.start()
    q.start()
    reply, changed = effects(q, lambda: q.complete("1", entry, T + 50))
    assert reply == 1
    assert changed == {
        "stream": entries("2"), "groupq:g": None, "job:2": {"state": "waiting"}, "group:g": {"active": "0"},
        "completed": {"1": T + 50},
        "job:1": {"state": "completed", "returnvalue": "r", "finishedOn": str(T + 50)},
        "events": [event("completed", "1", "returnvalue", "r")],
        "metrics:completed": {COUNT: "1", DURATION: "50"},
    }  # fmt: skip


def test_completion_and_fetch_from_a_list_counts_the_next_job(q: Queue) -> None:
    q.add()
    q.add(lifo=1)
    entry, _ = q.start()
    reply, changed = effects(q, lambda: q.complete_and_fetch("1", entry, T, skip_metrics="1"))
    assert reply[:4] == ["NEXT_HASH", "1", "2", ""]
    assert changed == {
        "stream": entries(), "completed": {"1": T}, "lifo": None, "list-active": "1",
        "job:1": {"state": "completed", "returnvalue": "r", "finishedOn": str(T)},
        "job:2": {"state": "active", "processedOn": str(T), "lastActive": str(T)},
        "events": [event("completed", "1", "returnvalue", "r"), event("active", "2")],
    }  # fmt: skip


def test_last_child_wakes_its_parent(q: Queue) -> None:
    q.flow({}, [{}])
    entry, _ = q.start()
    member = f"{q.base}:2"
    _, changed = effects(q, lambda: q.complete("2", entry, T, parent="1", member=member, mode="true"))
    assert changed == {
        "stream": entries("1"), "job:2": None,
        "job:1": {f"depdone:{member}": "1", "depsCompleted": "1", "state": "waiting"},
        "events": [event("completed", "2", "returnvalue", "r"), event("active", "1")],
        "metrics:completed": {COUNT: "1"},
    }  # fmt: skip
    assert effects(q, lambda: q.complete_child("1", member)) == (0, {})


def test_parent_in_another_queue_is_untouched(q: Queue) -> None:
    q.add()
    q.valkey.sadd(q.key("parents:1"), "glide:{other}:7")
    entry, _ = q.start()
    _, changed = effects(q, lambda: q.complete("1", entry, T))
    assert set(changed) == {"stream", "completed", "job:1", "events", "metrics:completed"}


def test_retry_keeps_delay_and_metrics(q: Queue) -> None:
    q.add(group="g")
    entry, _ = q.start()
    reply, changed = effects(q, lambda: q.fail("1", entry, T + 5, attempts=3, backoff=100))
    fields = ("failedReason", "boom", "attemptsMade", "1", "delay", "100")
    job = {"attemptsMade": "1", "state": "delayed", "failedReason": "boom", "processedOn": str(T + 5)}
    assert reply == "retrying"
    assert changed == {
        "stream": entries(),
        "job:1": job,
        "scheduled": {"1": T + 105},
        "events": [event("retrying", "1", *fields)],
    }


def test_broadcast_failure_counts_beside_the_job(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    _, changed = effects(q, lambda: q.fail("1", entry, T, attempts=3, broadcast="1"))
    assert changed.pop("events")[0][1] == "retrying"
    assert changed == {
        "stream": entries("1"), "job:1:sub:workers": {"a": "1"}, "scheduled": {"1||workers": T},
        "job:1": {"state": "delayed", "failedReason": "boom"},
    }  # fmt: skip


def test_stall_puts_the_job_back_and_the_next_one_fails_it(q: Queue) -> None:
    q.add()
    q.start()
    _, changed = effects(q, lambda: q.reclaim(T + 60_000))
    again = {"state": "waiting", "processedOn": None, "lastActive": None, "stalledCount": "1"}
    assert changed == {"stream": entries("1"), "job:1": again, "events": [event("stalled", "1")]}
    q.start(T + 60_000)
    _, changed = effects(q, lambda: q.reclaim(T + 120_000))
    reason = "job stalled more than maxStalledCount"
    assert changed == {
        "stream": entries(),
        "failed": {"1": T + 120_000},
        "metrics:failed": {"m:1700000100000:c": "1", "m:1700000100000:d": "60000"},
        "job:1": {
            "state": "failed",
            "failedReason": reason,
            "finishedOn": str(T + 120_000),
            "stalledCount": "2",
        },
        "events": [event("failed", "1", "failedReason", reason)],
    }


def test_list_sweep_and_repair_without_active_list_jobs_change_nothing(q: Queue) -> None:
    q.add(lifo=1)
    q.activate("1")
    for value in (None, "0"):
        if value is not None:
            q.valkey.set(q.key("list-active"), value)
        assert effects(q, lambda: q.reclaim_lists(T + 60_000)) == (0, {})
        assert effects(q, lambda: q.call("healListActive", q.keys("id"))) == (0, {})


def test_suspension_and_signal_move_the_job_there_and_back(q: Queue) -> None:
    q.add()
    entry, _ = q.start()
    _, changed = effects(q, lambda: q.suspend("1", entry, T + 1))
    assert changed == {
        "stream": entries(), "suspended": {"1": 9999999999999}, "events": [event("suspended", "1")],
        "job:1": {"state": "suspended", "suspendedAt": str(T + 1), "suspendReason": "why"},
    }  # fmt: skip
    _, changed = effects(q, lambda: q.signal("1", "go", '{"a":1}'))
    stored = changed.pop("signals:1")
    assert changed == {
        "stream": entries("1"), "suspended": None, "events": [event("resumed", "1", "signal", "go")],
        "job:1": {"state": "waiting", "signals": f"[{stored[0]}]"},
    }  # fmt: skip
    assert effects(q, lambda: q.signal("1")) == ("not_suspended", {})


def test_deadline_fails_the_suspended_job(q: Queue) -> None:
    q.add()
    entry, _ = q.start(T)
    q.suspend("1", entry, T + 10, timeout=20)
    assert effects(q, lambda: q.sweep_suspended(T + 29)) == (0, {})
    reply, changed = effects(q, lambda: q.sweep_suspended(T + 30))
    reason, now = "Suspend timeout exceeded", str(T + 30)
    assert reply == 1
    assert changed == {
        "suspended": None, "failed": {"1": T + 30}, "metrics:failed": {COUNT: "1", DURATION: "30"},
        "job:1": {"state": "failed", "failedReason": reason, "finishedOn": now, "processedOn": now},
        "events": [event("failed", "1", "failedReason", reason)],
    }  # fmt: skip


def test_revoking_takes_out_what_waits_and_flags_what_runs(q: Queue) -> None:
    q.add()
    q.start()
    q.add()
    reply, changed = effects(q, lambda: q.revoke("2"))
    gone = {"revoked": "1", "state": "failed", "failedReason": "revoked", "finishedOn": str(T)}
    assert reply == "revoked"
    assert changed == {
        "stream": entries("1", pending=("1",)),
        "job:2": gone,
        "failed": {"2": T},
        "events": [event("revoked", "2")],
    }
    reply, changed = effects(q, lambda: q.revoke("1"))
    assert (reply, changed) == ("flagged", {"job:1": {"revoked": "1"}, "events": [event("revoked", "1")]})
    assert effects(q, lambda: q.revoke("9")) == ("not_found", {})


def test_refused_changes_change_nothing(q: Queue) -> None:
    q.add()
    q.add(lifo=1)
    q.add(priority=2)
    assert effects(q, lambda: q.change_priority("1", 0)) == ("no_op", {})
    assert effects(q, lambda: q.change_priority("2", 4)) == ("error:not_in_stream", {})
    assert effects(q, lambda: q.change_priority("9", -1)) == ("error:invalid_priority", {})
    assert effects(q, lambda: q.change_delay("3", 0)) == ("no_op", {})
    assert effects(q, lambda: q.promote_job("3")) == ("error:not_delayed", {})
    assert effects(q, lambda: q.clean("completed", T, 0)) == ([], {})


def test_changed_delay_moves_the_job_between_states(q: Queue) -> None:
    q.add(delay=10, priority=7)
    _, changed = effects(q, lambda: q.change_delay("1", 0))
    assert changed == {
        "scheduled": {"1": 7 * SHIFT}, "job:1": {"state": "prioritized", "delay": "0"},
        "events": [event("delay-changed", "1", "delay", "0")],
    }  # fmt: skip


def test_bulk_retry_empties_the_failed_set(q: Queue) -> None:
    q.add()
    q.fail("1", q.start()[0])
    q.valkey.zadd(q.key("failed"), {"gone": 1})
    reply, changed = effects(q, lambda: q.retry_jobs(0, T + 9))
    assert reply == 1
    assert changed == {
        "failed": None, "scheduled": {"1": T + 9}, "events": [event("retried", "1")],
        "job:1": {"state": "delayed", "attemptsMade": "0", "failedReason": "", "finishedOn": ""},
    }  # fmt: skip


def test_drain_and_clean_delete_exactly_what_they_count(q: Queue) -> None:
    q.add()
    q.complete("1", q.start()[0], T)
    q.add()
    q.start()
    q.add()
    q.add(lifo=1)
    q.add(delay=10)
    reply, changed = effects(q, q.drain)
    assert reply == 2
    assert changed == {
        "stream": entries("2", pending=("2",)), "job:3": None, "job:4": None, "lifo": None,
        "events": [event("drained", "2")],
    }  # fmt: skip
    assert effects(q, q.drain) == (0, {})
    reply, changed = effects(q, lambda: q.clean("completed", T, 10))
    assert (reply, changed) == (["1"], {"completed": None, "job:1": None, "events": [event("cleaned", "1")]})


def test_limiting_a_group_parks_the_job_in_front(q: Queue) -> None:
    q.add(group="g")
    entry, _ = q.start()
    reply, changed = effects(q, lambda: q.limit_group("1", entry, T, 500))
    until = str(T + 500)
    assert reply == until
    assert changed == {
        "stream": entries(), "groupq:g": {"1": 1}, "ratelimited": {"g": T + 500},
        "job:1": {"state": "group-waiting", "groupSlot": "0"},
        "group:g": {"active": "0", "limitedUntil": until},
        "events": [event("group-rate-limited", "1", "groupKey", "g", "duration", "500", "resumeAt", until)],
    }  # fmt: skip
