"""Slices of arrays on the server: who gets them, whose outcome is accepted, and what a lost one leaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode, JobOptions
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.errors import DecodeError, FlowIncomplete
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.staged.submit import retry_failed
from glidemq_orchestrate.worker.slices import read_items

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench


def an_array(size: int = 10, **more: Any) -> ArrayNode:
    return ArrayNode("a", queue="etl", job="work", over=range(size), **more)


def lease(bench: Bench, size: int = 4, wanted: int = 1, *, again: bool = False) -> list[Attempt]:
    return bench.exchange(wanted=wanted, sizes=json.dumps({"": size}), again=again).fetched


def elements(attempts: list[Attempt]) -> list[list[int]]:
    return [list(attempt.slice.indexes) for attempt in attempts if attempt.slice is not None]


def end(bench: Bench, attempt: Attempt, *lines: str) -> str:
    return bench.exchange(Outcome(attempt, Kind.ELEMENTS, "\n".join(lines))).verdicts[0]


def counts(bench: Bench) -> dict[str, int]:
    found = bench.client.hgetall("glide:{etl}:gmo:array:f~a")
    return {name: int(found.get(name, 0)) for name in ("next", "completed", "failed", "running")}


@pytest.fixture
def array(bench: Bench) -> Bench:
    bench.submit(an_array())
    return bench


def test_slices_are_leased_in_order_and_end_the_node(array: Bench) -> None:
    first = lease(array, 4, wanted=2)
    assert elements(first) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert first[0].job_id == "f~a{1}"
    (last,) = lease(array, 4, wanted=5)
    assert elements([last]) == [[8, 9]]
    assert lease(array) == []
    assert end(array, first[1], "d1", "d", "d{}", "d") == "ok"
    assert end(array, last, "d", "d") == "ok"
    assert counts(array) == {"next": 10, "completed": 6, "failed": 0, "running": 1}
    assert end(array, first[0], "d", "d", "d", "d") == "ok"
    assert array.record()["state"] == "completed"
    assert json.loads(array.job("f~a")["returnvalue"]) == {
        "elements": 10, "completed": 10, "failed": 0, "skipped": 0,
    }  # fmt: skip
    results = array.client.hgetall("glide:{etl}:gmo:array:f~a:results")
    assert results == {"4": "1", "6": "{}"}, "no result is stored for null"


def test_arrays_take_turns(bench: Bench) -> None:
    bench.submit(an_array(1_000), ArrayNode("b", queue="etl", job="work", over=range(4)))
    found = []
    for _ in range(4):
        bench.now += 1
        (slice_,) = lease(bench, 2)
        found.append((slice_.node, elements([slice_])))
        end(bench, slice_, "d", "d")
    assert found == [("a", [[0, 1]]), ("b", [[0, 1]]), ("a", [[2, 3]]), ("b", [[2, 3]])]


def test_a_worker_that_knows_no_arrays_gets_none(array: Bench) -> None:
    assert array.exchange(wanted=5).fetched == []
    assert counts(array)["next"] == 0


def test_an_outcome_is_accepted_once(array: Bench) -> None:
    (slice_,) = lease(array)
    assert end(array, slice_, "d", "d", "d", "d") == "ok"
    assert array.stale(Outcome(slice_, Kind.ELEMENTS, "d\nd\nd\nd"))
    assert counts(array)["completed"] == 4


def test_elements_without_an_outcome_are_given_back(array: Bench) -> None:
    (slice_,) = lease(array, 4)
    assert end(array, slice_, "d", "s not today") == "ok"
    assert elements(lease(array, 10)) == [[2, 3]], "first what was given back"
    assert elements(lease(array, 10)) == [[4, 5, 6, 7, 8, 9]]


def test_a_slice_may_be_given_back_whole_or_fail_whole(array: Bench) -> None:
    (slice_,) = lease(array, 4)
    assert array.exchange(Outcome(slice_, Kind.BACK)).verdicts == ["ok"]
    (slice_,) = lease(array, 4)
    later = array.now + 500
    assert array.exchange(Outcome(slice_, Kind.LATER, first=later)).verdicts == ["ok"]
    assert elements(lease(array, 6)) == [[4, 5, 6, 7, 8, 9]]
    assert lease(array) == []
    assert array.exchange(wanted=1, sizes="{}").due_ms == later
    array.now = later
    (slice_,) = lease(array, 4)
    assert elements([slice_]) == [[0, 1, 2, 3]]
    refused = Outcome(slice_, Kind.FAIL, "no\nhandler", first=0)
    assert array.exchange(refused).verdicts == ["failed\nfailed\nfailed\nfailed"]
    assert counts(array)["failed"] == 4


def test_a_failed_attempt_waits_for_its_backoff(array: Bench) -> None:
    (slice_,) = lease(array, 10)
    lines = ["d"] * 10
    lines[3] = "f2 700 boom"
    assert end(array, slice_, *lines).split("\n") == ["ok"] * 3 + ["retrying"] + ["ok"] * 6
    assert lease(array) == []
    array.now += 700
    (slice_,) = lease(array, 10)
    assert slice_.slice is not None
    assert (slice_.slice.indexes, slice_.slice.tried) == ([3], [1])
    assert end(array, slice_, "f2 700 boom") == "failed"
    assert array.record()["state"] == "failed"
    assert array.job("f~a")["failedReason"] == "1 of 10 elements failed; element 3: boom"


def test_the_reply_of_a_lost_lease_can_be_read_again(array: Bench) -> None:
    first = lease(array, 4, wanted=2)
    again = lease(array, 4, wanted=2, again=True)
    assert elements(again) == elements(first)
    assert [one.job_id for one in again] == [one.job_id for one in first]
    assert end(array, again[0], "d", "d", "d", "d") == "ok"


def test_a_lost_slice_goes_back_and_its_worker_is_refused(array: Bench) -> None:
    (slice_,) = lease(array, 4)
    assert array.heartbeat(slice_) == 1
    array.now += 900
    array.reclaim(lock_ms=1_000)
    assert array.heartbeat(slice_) == 1
    array.now += 1_100
    array.reclaim(lock_ms=1_000)
    assert array.heartbeat(slice_) == -1
    assert array.stale(Outcome(slice_, Kind.ELEMENTS, "d\nd\nd\nd"))
    assert counts(array)["running"] == 0
    alone = [*lease(array, 4), *lease(array, 4)]
    assert elements(alone) == [[0], [1]], "any of them may have caused the loss, so each runs alone"
    assert [one.suspect for one in alone] == [1, 1]


def test_a_slice_that_was_only_prefetched_is_not_suspected(array: Bench) -> None:
    request_of = array.exchange(wanted=2, sizes='{"":4}')
    assert len(request_of.fetched) == 2
    array.now += 2_000
    array.client.hset("glide:{etl}:job:f~a{2}", "gmo:token", request_of.fetched[1].token + "+")
    array.reclaim(lock_ms=1_000)
    found = elements([*lease(array, 4, wanted=20)])
    assert [4, 5, 6, 7] not in found, "while others are suspects, what was given back runs one by one"
    assert sorted(index for one in found for index in one) == list(range(10))


def test_an_element_that_loses_its_worker_too_often_fails(array: Bench) -> None:
    for _ in range(3):
        (slice_,) = lease(array, 1)
        assert elements([slice_]) == [[0]]
        assert array.exchange(Outcome(slice_, Kind.BEGUN)).verdicts == ["ok"]
        array.now += 2_000
        array.reclaim(lock_ms=1_000, max_stalled=2)
    assert counts(array)["failed"] == 1
    assert elements(lease(array, 1)) == [[1]]


def test_max_running_counts_slices_and_the_elements_of_batches(bench: Bench) -> None:
    bench.submit(an_array(max_running=3))
    assert elements(lease(bench, 2, wanted=5)) == [[0, 1], [2, 3], [4, 5]]


def test_a_batch_has_no_more_elements_than_may_run(bench: Bench) -> None:
    bench.submit(an_array(max_running=3))
    (slice_,) = lease(bench, -64, wanted=5)
    assert elements([slice_]) == [[0, 1, 2]]
    assert end(bench, slice_, "d", "d", "d") == "ok"
    assert counts(bench)["running"] == 0


def test_the_limits_of_the_queue_hold_for_elements(array: Bench) -> None:
    array.client.hset("glide:{etl}:meta", mapping={"globalConcurrency": "2"})
    assert elements(lease(array, 4, wanted=5)) == [[0], [1]]
    assert lease(array, 4, wanted=5) == []
    array.client.hset("glide:{etl}:meta", mapping={"paused": "1"})
    array.client.hdel("glide:{etl}:meta", "globalConcurrency")
    assert lease(array, 4) == []
    array.client.hdel("glide:{etl}:meta", "paused")
    array.client.hset("glide:{etl}:meta", mapping={"rateLimitMax": "3", "rateLimitDuration": "1000"})
    assert elements(lease(array, 4, wanted=5)) == [[2], [3], [4]]


def test_a_removed_array_takes_its_slices_with_it(array: Bench) -> None:
    (slice_,) = lease(array, 4)
    array.raw("gmo_cancel_flow", ["glide:{etl}:gmo:flow:f"], array.now, "f", "enough")
    assert array.heartbeat(slice_) == -1
    assert array.stale(Outcome(slice_, Kind.ELEMENTS, "d\nd\nd\nd"))
    assert array.record()["state"] == "cancelled"
    assert lease(array, 4) == []
    assert array.client.zcard("glide:{etl}:gmo:list-held") == 0


@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"lifo": True}], ids=["stream", "priority", "lifo"])
def test_an_attempt_from_before_a_cancel_is_not_accepted_after_a_retry(
    bench: Bench, options: dict[str, Any]
) -> None:
    bench.submit(an_array(1, as_jobs=True, options=JobOptions(**options)))
    old = bench.begin()
    bench.raw("gmo_cancel_flow", ["glide:{etl}:gmo:flow:f"], bench.now, "f", "enough")
    assert bench.heartbeat(old) == -1
    assert int(bench.client.get("glide:{etl}:list-active") or 0) == 0
    assert bench.client.exists("glide:{etl}:gmo:list-held") == 0
    assert bench.client.xlen("glide:{etl}:stream") == 0
    bench.hand.run(retry_failed(FlowRef(bench.etl, "f"), bench))
    assert bench.stale(Outcome(old, Kind.DONE, "1"))
    assert bench.begin().job_id == "f~a{0.2}"
    assert bench.client.ttl(f"glide:{{etl}}:job:{old.job_id}") > 0
    assert bench.client.hgetall(f"glide:{{etl}}:job:{old.job_id}") == {"revoked": "1"}


def test_one_call_leases_a_limited_number_of_elements(bench: Bench) -> None:
    bench.submit(an_array(100_000))
    found = lease(bench, 100, wanted=100)
    assert elements(found) == [list(range(at, at + 100)) for at in range(0, 900, 100)]
    assert len(lease(bench, 1, wanted=100)) == 48


def test_one_call_accepts_a_limited_number_of_elements(bench: Bench) -> None:
    bench.submit(an_array(100_000))
    outcomes = [Outcome(one, Kind.ELEMENTS, "\n".join(["d"] * 100)) for one in lease(bench, 100, wanted=100)]
    assert bench.exchange(*outcomes).verdicts == ["ok"] * 4 + ["again"] * 5
    assert bench.exchange(*outcomes[4:]).verdicts == ["ok"] * 4 + ["again"]
    assert counts(bench)["completed"] == 800


def test_a_slice_has_few_large_items(bench: Bench) -> None:
    bench.submit(ArrayNode("a", queue="etl", job="work", over=["x" * 60_000] * 100))
    found = lease(bench, 100, wanted=100)
    assert elements(found) == [[at] for at in range(9)]


def test_who_cannot_lease_a_slice_is_not_told_to_ask_again_at_once(array: Bench) -> None:
    assert array.exchange(wanted=1).due_ms == -1, "a worker that knows no arrays"
    array.client.hset("glide:{etl}:meta", mapping={"paused": "1"})
    assert array.exchange(wanted=1, sizes="{}").due_ms == -1


def test_a_worker_asks_again_if_one_call_cannot_look_at_all_arrays(bench: Bench) -> None:
    bench.submit(*(ArrayNode(f"a{at}", queue="etl", over=range(2), max_running=1) for at in range(10)))
    first = bench.exchange(wanted=20, sizes="{}")
    assert (len(first.fetched), first.positions) == (8, None)
    then = bench.exchange(wanted=20, sizes="{}")
    assert len(then.fetched) == 2
    assert then.positions is not None


def test_items_of_a_node_that_another_client_has_carried_over_are_not_needed(bench: Bench) -> None:
    keys = ["glide:{etl}:job:g~a", "glide:{etl}:gmo:flow:g"]
    with pytest.raises(FlowIncomplete):
        bench.raw("gmo_stage_items", keys, 0, "digest", "a", 0, '"x"')
    bench.client.hset("glide:{etl}:gmo:flow:g:nodes", "a", "[]")
    assert bench.raw("gmo_stage_items", keys, 0, "digest", "a", 0, '"x"') == 0
    assert not bench.client.exists("glide:{etl}:gmo:array:g~a:items")


def test_a_missing_item_is_refused(bench: Bench) -> None:
    bench.submit(ArrayNode("a", queue="etl", job="work", over=["x", "y"]))
    bench.client.delete("glide:{etl}:gmo:array:f~a:items")
    for attempt in lease(bench, 1, wanted=2):
        assert attempt.slice is not None
        with pytest.raises(DecodeError):
            read_items(attempt.slice)


def woken(bench: Bench) -> int:
    return bench.events().count(("active", "f~a"))


def test_idle_workers_are_woken_when_elements_can_run_sooner_than_they_know(array: Bench) -> None:
    assert woken(array) == 1, "it was opened"
    held = [lease(array, 5)[0], lease(array, 5)[0]]
    assert end(array, held[0], "f2 700 boom", *["d"] * 4).startswith("retrying")
    assert woken(array) == 2, "others may have to run it, if this worker is lost"
    array.now += 2_000
    array.reclaim(lock_ms=1_000)
    assert elements(lease(array, 5)) == [[0]]
    assert elements([*lease(array, 5), *lease(array, 5)]) == [[5], [6]]


def test_a_slice_that_goes_back_wakes_idle_workers(array: Bench) -> None:
    (slice_,) = lease(array, 10)
    before = woken(array)
    assert array.exchange(Outcome(slice_, Kind.BACK)).verdicts == ["ok"]
    assert woken(array) == before + 1
    (slice_,) = lease(array, 10)
    array.now += 2_000
    array.reclaim(lock_ms=1_000)
    assert woken(array) == before + 2


def test_an_array_that_cannot_be_read_blocks_no_other(array: Bench) -> None:
    array.client.hset("glide:{etl}:job:f~a", "gmo:array", "{")
    array.client.zadd("glide:{etl}:gmo:arrays", {"removed": 1})
    answer = array.exchange(wanted=5, sizes='{"":4}')
    assert answer.fetched == []
    assert [trouble.partition(":")[0] for trouble in answer.troubles] == ["f~a"]
    assert array.exchange(wanted=5, sizes='{"":4}').troubles == [], "for a minute"
    assert array.client.zrange("glide:{etl}:gmo:arrays", 0, -1) == ["f~a"]


def test_an_array_whose_elements_were_removed_fails(array: Bench) -> None:
    def check() -> None:
        array.raw("gmo_check_open", ["glide:{etl}:gmo:flow:f"], array.now, "f", "0", 100, 1_000)

    (slice_,) = lease(array, 10)
    check()
    assert array.record()["state"] == "running"
    array.client.delete(f"glide:{{etl}}:job:{slice_.job_id}")
    check()
    assert array.record()["state"] == "failed"
    assert array.job("f~a")["failedReason"].startswith("elements that had not ended were removed")


def test_an_element_that_ends_is_no_suspect_any_more(array: Bench) -> None:
    (slice_,) = lease(array, 4)
    array.now += 2_000
    array.reclaim(lock_ms=1_000)
    for line in ("d", "f1 0 boom", "s", "f2 0 boom"):
        (slice_,) = lease(array, 4)
        assert slice_.suspect == 1
        end(array, slice_, line)
    assert array.client.exists("glide:{etl}:gmo:array:f~a:lost") == 0
    assert elements(lease(array, 4)) == [[3]]
    assert elements(lease(array, 4)) == [[4, 5, 6, 7]]


@pytest.mark.parametrize("how", ["reclaimed", "reported", "asked for again", "taken back"])
def test_a_slice_of_a_removed_array_goes_and_disturbs_no_other(array: Bench, how: str) -> None:
    (slice_,) = lease(array, 4)
    array.client.delete("glide:{etl}:job:f~a")
    if how == "reclaimed":
        array.now += 2_000
        array.reclaim(lock_ms=1_000)
    elif how == "reported":
        assert end(array, slice_, "d") == "stale the array f~a was removed"
    elif how == "asked for again":
        assert lease(array, 4, again=True) == []
    else:
        array.client.hset(f"glide:{{etl}}:job:{slice_.job_id}", "gmo:until", f"1 {slice_.token}")
        assert array.heartbeat(slice_) == -1
    assert array.client.exists(f"glide:{{etl}}:job:{slice_.job_id}") == 0
    assert array.client.zcard("glide:{etl}:gmo:list-held") == 0
