"""Facts about promotion, activation and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000
SHIFT = 4398046511104


def test_lifo_wins_over_priority_at_promotion(q: Queue) -> None:
    q.add(lifo=1, priority=2)
    assert q.promote(T) == 1
    assert q.valkey.lrange(q.key("lifo"), 0, -1) == ["1"]
    assert not q.valkey.exists(q.key("priority"))


def test_lower_priority_number_is_popped_first(q: Queue) -> None:
    q.add(priority=5)
    q.add(priority=2)
    assert q.promote(T) == 2
    assert q.valkey.lrange(q.key("priority"), 0, -1) == ["1", "2"]
    assert (q.job("1")["state"], q.job("2")["state"]) == ("waiting", "waiting")
    assert q.event_names()[2:] == ["promoted", "promoted"]


def test_future_job_does_not_hide_due_jobs_of_later_priorities(q: Queue) -> None:
    q.add(delay=10_000)
    q.add(delay=5, priority=1)
    assert q.promote(T + 5) == 1
    assert (q.job("1")["state"], q.job("2")["state"]) == ("delayed", "waiting")


def test_broadcast_retry_is_promoted_for_its_group(q: Queue) -> None:
    q.add()
    q.valkey.zadd(q.key("scheduled"), {"1||subA": T})
    assert q.promote(T) == 1
    assert q.stream()[-1] == {"jobId": "1", "name": "n", "retryGroup": "subA"}


def test_expired_job_is_counted_and_failed_by_promotion(q: Queue) -> None:
    q.add(delay=100, ttl=50)
    assert q.promote(T + 100) == 1
    assert q.job("1")["state"] == "failed"
    assert q.job("1")["failedReason"] == "expired"
    assert q.event_names() == ["added", "expired"]


def test_time_to_live_ends_strictly_after_its_last_millisecond(q: Queue) -> None:
    q.add(ttl=10)
    q.add(ttl=10)
    assert "active" in q.start(T + 10)[1]
    entry, reply = q.start(T + 11)
    assert reply == "EXPIRED"
    assert entry not in q.pending()
    assert len(q.stream()) == 1


def test_next_due_is_zero_for_prioritised_and_minus_one_for_nothing(q: Queue) -> None:
    assert q.next_due() == -1
    q.add(priority=4)
    assert q.next_due() == 0


def test_missing_job_activates_to_an_empty_string(q: Queue) -> None:
    assert q.activate("9") == ""


def test_activation_returns_the_flat_updated_hash_without_an_event(q: Queue) -> None:
    q.add()
    _, reply = q.start(T + 7)
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    assert fields == q.job("1")
    assert (fields["state"], fields["processedOn"], fields["lastActive"]) == (
        "active",
        str(T + 7),
        str(T + 7),
    )
    assert q.event_names() == ["added"]


def test_revoked_job_is_reported_and_stays_pending(q: Queue) -> None:
    q.add()
    q.valkey.hset(q.key("job:1"), "revoked", "1")
    entry, reply = q.start()
    assert reply == "REVOKED"
    assert q.pending() == [entry]


def test_second_job_of_a_full_group_is_parked(q: Queue) -> None:
    for _ in range(3):
        q.add(group="g", concurrency=1)
    q.start()
    assert q.start()[1] == "GROUP_FULL"
    assert q.hash("group:g") == {"maxConcurrency": "1", "active": "1", "nextSeq": "2"}
    assert q.scores("groupq:g") == {"2": 2}


def test_job_fetched_before_its_turn_is_ordered(q: Queue) -> None:
    q.add(group="g", concurrency=5)
    q.add(group="g", concurrency=5)
    q.read()
    assert q.start()[1] == "GROUP_ORDERED"
    assert q.job("2")["state"] == "group-waiting"


def test_completion_moves_the_parked_job_to_the_stream(q: Queue) -> None:
    q.add(group="g", concurrency=1)
    q.add(group="g", concurrency=1)
    entry, _ = q.start()
    q.start()
    q.complete("1", entry)
    assert q.stream() == [{"jobId": "2", "name": "n"}]
    assert q.job("2")["state"] == "waiting"
    assert q.hash("group:g") == {"maxConcurrency": "1", "active": "0", "nextSeq": "2"}
    assert q.event_names() == ["added", "added", "completed"]


def test_ordered_job_keeps_its_slot_through_a_retry(q: Queue) -> None:
    q.add(group="g", concurrency=1)
    entry, _ = q.start()
    assert q.fail("1", entry, attempts=3) == "retrying"
    assert q.hash("group:g")["active"] == "1"
    q.promote(T)
    assert "active" in q.start()[1]
    assert q.hash("group:g")["active"] == "1"


def test_debounced_job_leaves_a_skip_marker_that_its_successor_consumes(q: Queue) -> None:
    q.dedup("d", "debounce", group="g", delay=10)
    assert q.dedup("d", "debounce", group="g") == "2"
    assert q.hash("group:g")["skip:1"] == "1"
    assert "active" in q.start()[1]
    assert "skip:1" not in q.hash("group:g")
    assert ("event", "removed", "jobId", "1") in q.events()


def test_debouncing_again_and_again_writes_one_marker_each(q: Queue) -> None:
    for _ in range(4):
        q.dedup("d", "debounce", group="g", delay=10)
    group = q.hash("group:g")
    marks = {field: value for field, value in group.items() if field.startswith(("skip:", "nextSeq"))}
    assert marks == {"nextSeq": "1", "skip:1": "1", "skip:2": "1", "skip:3": "1"}
    q.promote(T + 10)
    assert "active" in q.start(T + 10)[1]
    assert not [field for field in q.hash("group:g") if field.startswith("skip:")]
    assert q.hash("group:g")["nextSeq"] == "5"


def test_a_job_that_is_parked_behind_a_replaced_one_goes_on_immediately(q: Queue) -> None:
    q.dedup("d", "debounce", group="g", delay=10)
    q.add(group="g")
    assert q.start()[1] == "GROUP_ORDERED"
    q.dedup("d", "debounce", group="g", delay=10)
    group = q.hash("group:g")
    assert (group["nextSeq"], group["skip:1"]) == ("1", "1")
    assert "active" in q.start()[1]


def test_missing_tokens_park_the_job_until_they_have_flowed_in(q: Queue) -> None:
    q.add(group="g", capacity=5000, refill=1000, cost=5000)
    q.valkey.hset(q.key("group:g"), mapping={"tbTokens": "0", "tbLastRefill": str(T)})
    assert q.start(T)[1] == "GROUP_TOKEN_LIMITED"
    assert q.scores("ratelimited") == {"g": T + 5000}


def test_full_window_parks_the_job_until_it_ends(q: Queue) -> None:
    for _ in range(3):
        q.add(group="g", concurrency=9, rate_max=2, rate_duration=1000)
    q.start(T + 1)
    q.start(T + 2)
    assert q.start(T + 3)[1] == "GROUP_RATE_LIMITED"
    assert q.scores("ratelimited") == {"g": T + 1001}
    assert q.promote_groups(T + 1001) == 1
    assert q.hash("group:g")["rateCount"] == "2"


def test_at_most_one_window_of_parked_jobs_is_promoted_per_tick(q: Queue) -> None:
    for _ in range(5):
        q.add(group="g", concurrency=9, rate_max=2, rate_duration=1000)
    replies = [q.start(T)[1] for _ in range(5)]
    assert replies[2:] == ["GROUP_RATE_LIMITED", "GROUP_ORDERED", "GROUP_ORDERED"]
    assert q.promote_groups(T + 1000) == 2
    assert list(q.scores("groupq:g")) == ["5"]


def test_returning_job_passes_a_full_window_because_it_holds_its_slot(q: Queue) -> None:
    q.add(group="g", rate_max=1, rate_duration=1000)
    q.fail("1", q.start(T)[0], T + 1, attempts=3)
    q.promote(T + 1)
    assert "active" in q.start(T + 1)[1]
    assert q.hash("group:g")["rateCount"] == "2"
