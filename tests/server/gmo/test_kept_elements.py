"""Early reports of slices on the server: one element goes on, and no repeat changes anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import ArrayNode
from glidemq_orchestrate.attempts.exchange import Kind, Outcome

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench


def lease(bench: Bench, size: int = 6, wanted: int = 1) -> list[Attempt]:
    return bench.exchange(wanted=wanted, sizes=json.dumps({"": size})).fetched


def elements(attempts: list[Attempt]) -> list[list[int]]:
    return [list(attempt.slice.indexes) for attempt in attempts if attempt.slice is not None]


def report(bench: Bench, attempt: Attempt, *lines: str, first: int = 0, again: bool = False) -> str:
    """Report lines from this position on; returns the verdict."""
    outcome = Outcome(attempt, Kind.ELEMENTS, "\n".join(lines), first=first + 1)
    return bench.exchange(outcome, again=again).verdicts[0]


def counts(bench: Bench) -> dict[str, int]:
    found = bench.client.hgetall("glide:{etl}:gmo:array:f~a")
    return {name: int(found.get(name, 0)) for name in ("completed", "failed", "running")}


@pytest.fixture
def array(bench: Bench) -> Bench:
    bench.submit(ArrayNode("a", queue="etl", job="work", over=range(10)))
    return bench


@pytest.fixture
def slice_(array: Bench) -> Attempt:
    (found,) = lease(array)
    assert elements([found]) == [[0, 1, 2, 3, 4, 5]]
    return found


def test_one_element_goes_on_under_the_lease(array: Bench, slice_: Attempt) -> None:
    assert report(array, slice_, "d1", "d2", "k") == "ok"
    assert counts(array) == {"completed": 2, "failed": 0, "running": 1}
    assert array.heartbeat(slice_) == 1
    assert elements(lease(array, 10, wanted=2)) == [[3, 4, 5], [6, 7, 8, 9]], "the others run elsewhere"
    assert report(array, slice_, "d3", first=2) == "ok"
    assert counts(array) == {"completed": 3, "failed": 0, "running": 2}
    results = array.client.hgetall("glide:{etl}:gmo:array:f~a:results")
    assert results == {"0": "1", "1": "2", "2": "3"}
    assert array.stale(Outcome(slice_, Kind.ELEMENTS, "d3", first=3))


def test_a_slice_that_begins_with_a_long_element_gives_the_rest_back(array: Bench, slice_: Attempt) -> None:
    assert report(array, slice_, "k") == "ok"
    before = array.dump()
    assert report(array, slice_, "k", again=True) == "ok"
    assert array.dump() == before
    assert elements(lease(array, 10)) == [[1, 2, 3, 4, 5]]
    assert report(array, slice_, "d") == "ok"
    assert counts(array) == {"completed": 1, "failed": 0, "running": 1}


def test_the_last_element_can_be_kept(array: Bench, slice_: Attempt) -> None:
    assert report(array, slice_, *"ddddd", "k") == "ok"
    assert elements(lease(array, 10)) == [[6, 7, 8, 9]]
    assert report(array, slice_, "d", first=5) == "ok"
    assert counts(array) == {"completed": 6, "failed": 0, "running": 1}


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [(("d1", "d2", "s no"), "ok"), (("f2 0 boom", "d1", "f1 0 boom"), "retrying\nok\nfailed")],
)
def test_a_repeat_changes_nothing_and_is_answered_alike(
    array: Bench, slice_: Attempt, lines: tuple[str, ...], verdict: str
) -> None:
    assert report(array, slice_, *lines, "k") == verdict
    before = array.dump()
    assert report(array, slice_, *lines, "k", again=True) == verdict
    assert array.dump() == before
    assert array.exchange(Outcome(slice_, Kind.BACK)).verdicts == ["ok"]
    assert 3 in elements(lease(array, 10))[0]


def test_items_that_elements_add_are_added_once(bench: Bench) -> None:
    bench.submit(ArrayNode("a", queue="etl", job="work", over=["x", "y", "z"]))
    (slice_,) = lease(bench)
    for again in (False, True):
        assert report(bench, slice_, "d", 'a"v"', 'a"w"', "k", again=again) == "ok"
    (rest,) = lease(bench)
    assert elements([rest]) == [[2]]
    assert elements(lease(bench)) == [[3, 4]]
    assert report(bench, slice_, "d", 'a"u"', first=1) == "ok"
    assert elements(lease(bench)) == [[5]]


def test_an_end_that_arrives_without_the_early_report_is_not_that_of_another_element(
    array: Bench, slice_: Attempt
) -> None:
    """As at a server that has taken over and has lost the early report."""
    assert report(array, slice_, "d7", first=3) == "ok"
    assert counts(array) == {"completed": 1, "failed": 0, "running": 0}
    assert array.client.hgetall("glide:{etl}:gmo:array:f~a:results") == {"3": "7"}
    assert array.stale(Outcome(slice_, Kind.ELEMENTS, "d\nd\nd\nk", first=1))
    assert elements(lease(array, 10)) == [[0, 1, 2, 4, 5]]


@pytest.mark.parametrize("lines", [("d", "k"), ("d",)])
def test_a_position_that_the_slice_does_not_have_is_refused(
    array: Bench, slice_: Attempt, lines: tuple[str, ...]
) -> None:
    assert report(array, slice_, *lines, first=8).startswith("stale element 8 is not where its worker says")
    assert counts(array)["completed"] == 0
    array.exchange(Outcome(slice_, Kind.BACK))
    assert elements(lease(array)) == [[0, 1, 2, 3, 4, 5]]


def test_what_is_left_counts_as_one_that_runs(bench: Bench) -> None:
    bench.submit(ArrayNode("a", queue="etl", job="work", over=range(10), max_running=6))
    (slice_,) = lease(bench, -6)
    assert counts(bench)["running"] == 6
    assert report(bench, slice_, "d", "k") == "ok"
    assert counts(bench)["running"] == 1
    assert elements(lease(bench, -6)) == [[2, 3, 4, 5]], "as many as were given back at once"
    assert report(bench, slice_, "d", first=1) == "ok"
    assert counts(bench)["running"] == 4


@pytest.mark.parametrize("allowed", [0, 1])
def test_only_the_kept_element_is_charged_with_the_loss_of_its_worker(
    array: Bench, slice_: Attempt, allowed: int
) -> None:
    assert report(array, slice_, "d", "d", "k") == "ok"
    array.now += 2_000
    array.reclaim(lock_ms=1_000, max_stalled=allowed)
    assert array.heartbeat(slice_) == -1
    assert array.stale(Outcome(slice_, Kind.ELEMENTS, "d", first=3))
    assert counts(array) == {"completed": 2, "failed": 1 - allowed, "running": 0}
    leased = [one for _ in range(4) for one in lease(array)]
    suspects = [(one.slice.indexes, one.suspect) for one in leased if one.slice and one.suspect]
    assert suspects == ([([2], 2)] if allowed else [])


def test_idle_workers_hear_of_what_is_given_back(array: Bench, slice_: Attempt) -> None:
    def woken() -> int:
        events = array.client.xrange("glide:{etl}:events")
        return [fields["event"] for _, fields in events].count("active")

    lease(array, 10)
    before = woken()
    report(array, slice_, "d", "k")
    assert woken() == before + 1


def test_an_early_report_may_end_the_array(bench: Bench) -> None:
    bench.submit(ArrayNode("a", queue="etl", job="work", over=range(10), max_failed=0))
    (slice_,) = lease(bench)
    assert report(bench, slice_, "d", "f0 0 boom", "k") == "ok\nfailed"
    assert bench.heartbeat(slice_) == -1
    assert bench.record()["state"] == "failed"
    assert bench.stale(Outcome(slice_, Kind.ELEMENTS, "d", first=3))
