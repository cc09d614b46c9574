"""Arrays that a running node adds: the node may be lost, or its client die, at each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.flows import arrays
from glidemq_orchestrate.flows.index import sweep
from glidemq_orchestrate.flows.staged import submit
from glidemq_orchestrate.flows.staged.growth import add_nodes
from glidemq_orchestrate.wire.trips import Trips
from glidemq_orchestrate.worker.slices import read_items
from tests.profile import sampled
from tests.server.gmo.flow_runs import ETL, finish, leftovers, run_all, status

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from glidemq_orchestrate.wire.call import Op
    from tests.server.gmo.conftest import Bench

ITEMS = [f"item {at}" for at in range(24)]
CALLS = 14
"""Lookups, a chunk of the node, six of items, and one that seals the addition."""


@pytest.fixture(autouse=True)
def small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_PER_CHUNK", 4)
    monkeypatch.setattr(submit, "CHUNK_WORDS", 2)
    monkeypatch.setattr(Trips, "LONGEST", 2)


def adding(bench: Bench, attempt: Attempt, items: list[str]) -> Op[None]:
    node = ArrayNode("a", queue="etl", job="work", over=items)
    return add_nodes("glide", attempt, [node], ("join",), bench)


def run_elements(bench: Bench) -> list[Any]:
    """Run what can be leased; returns the items in their order."""
    found: list[Any] = []
    while bench.client.zcard("glide:{etl}:gmo:arrays"):
        (attempt,) = bench.exchange(wanted=1, sizes='{"":10}').fetched
        assert attempt.slice is not None
        found += read_items(attempt.slice)
        lines = "\n".join("d" for _ in attempt.slice.indexes)
        assert bench.exchange(Outcome(attempt, Kind.ELEMENTS, lines)).verdicts == ["ok"]
    return found


@pytest.mark.parametrize("died_after", sampled(range(CALLS + 1)))
def test_an_addition_that_died_is_repeated(bench: Bench, node: Any, died_after: int) -> None:
    bench.submit(node("split"), node("join", "split"))
    attempt = bench.begin()
    sent = bench.hand.run_until(adding(bench, attempt, ITEMS), died_after)
    assert sent == died_after
    bench.hand.run(adding(bench, attempt, ITEMS))
    assert bench.exchange(wanted=1, sizes='{"":1}').fetched == [], "it joins when the attempt completes"
    finish(bench, attempt)
    assert run_elements(bench) == ITEMS
    assert run_all(bench) == ["join"]
    assert status(bench) == ("completed", 3, 3, 0)
    assert leftovers(bench) == []


@pytest.mark.parametrize("died_after", sampled(range(CALLS + 1)))
def test_half_of_an_addition_adds_nothing(bench: Bench, node: Any, died_after: int) -> None:
    bench.submit(node("split"), node("join", "split"))
    attempt = bench.begin()
    bench.hand.run_until(adding(bench, attempt, ITEMS), died_after)
    finish(bench, attempt)
    is_complete = died_after >= CALLS
    assert run_elements(bench) == (ITEMS if is_complete else [])
    run_all(bench)
    total = 3 if is_complete else 2
    assert status(bench) == ("completed", total, total, 0)
    bench.hand.run(sweep([ETL], bench))
    assert leftovers(bench) == []
    assert bool(bench.client.keys("*gmo:array*")) == is_complete


@pytest.mark.parametrize("died_after", sampled(range(CALLS + 1)))
def test_the_next_attempt_adds_items_of_its_own(bench: Bench, node: Any, died_after: int) -> None:
    bench.submit(node("split", attempts=2), node("join", "split"))
    lost = bench.begin()
    bench.hand.run_until(adding(bench, lost, ITEMS), died_after)
    bench.fail(lost, attempts=2)
    attempt = bench.begin()
    others = ["x", "y"]
    bench.hand.run(adding(bench, attempt, others))
    finish(bench, attempt)
    assert run_elements(bench) == others
    run_all(bench)
    assert status(bench) == ("completed", 3, 3, 0)
    assert bench.client.hkeys("glide:{etl}:gmo:array:f~a:items") == ["0"]
