"""Work in slices goes on where it was when another server process takes over, and misses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.attempts.exchange import Kind
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import find_flow
from glidemq_orchestrate.flows.node_table import flow_results, node_inputs
from glidemq_orchestrate.flows.outcome import results
from glidemq_orchestrate.flows.staged import reading
from glidemq_orchestrate.flows.staged.submit import advance_flow
from glidemq_orchestrate.flows.submission import begin_next, restart_flow
from glidemq_orchestrate.wire.call import Batch
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from glidemq_orchestrate.wire.call import Call, Op
    from tests.server.restarts.conftest import Keeper

ETL = QueueKeys("glide", "etl")
WIDE = 2_000


def fan_out() -> list[FlowNode]:
    return [node("a"), *(node(f"n{n}", "a") for n in range(WIDE))]


def advance(keeper: Keeper, *, kill: bool, every: int = 12) -> None:
    """Do all that the flow needs; every so many slices another server process begins."""
    slices = 0
    while keeper.call(advance_flow(ETL, "f", keeper.now)):
        slices += 1
        if slices % every == 0:
            keeper.again(kill=kill)
    assert slices > every


def run_all(keeper: Keeper, result: str, flow_id: str = "f", *, kill: bool = False) -> int:
    ran = slices = 0
    while begun := keeper.begin():
        assert set(keeper.hand_in(Kind.DONE, result, begun)) <= {"ok"}
        ran += len(begun)
        while keeper.call(advance_flow(ETL, flow_id, keeper.now)):
            slices += 1
            if kill and slices % 12 == 0:
                keeper.again(kill=True)
    return ran


@pytest.mark.parametrize("kill", [False, True])
def test_every_dependent_of_a_wide_node_is_released(keeper: Keeper, *, kill: bool) -> None:
    keeper.submit(*fan_out())
    keeper.hand_in(Kind.DONE, "1", keeper.begin())
    advance(keeper, kill=kill)
    assert keeper.client.xlen("glide:{etl}:stream") == WIDE
    assert keeper.client.scard("glide:{etl}:parents:f~a") == WIDE
    assert not keeper.client.exists("glide:{etl}:gmo:notified:f~a")


@pytest.mark.long
def test_every_dependent_of_a_wide_failure_ends(keeper: Keeper) -> None:
    keeper.submit(*fan_out())
    keeper.hand_in(Kind.FAIL, "boom", keeper.begin())
    advance(keeper, kill=True)
    record = keeper.record()
    assert (record["state"], record["failed"]) == ("failed", str(WIDE + 1))


def test_a_generation_begins_once_whatever_servers_die(keeper: Keeper) -> None:
    keeper.submit(*fan_out())
    assert run_all(keeper, '"old"') == WIDE + 1
    new = keeper.run(restart_flow(FlowRef(ETL, "f"), "again", keeper))
    keeper.again(kill=True)
    assert keeper.run(restart_flow(new, "again", keeper)) == new
    assert run_all(keeper, '"new"', new.flow_id, kill=True) == WIDE + 1
    status = keeper.run(reading.status(new))
    assert (status.state, status.completed, status.generation) == ("completed", WIDE + 1, 1)
    assert set(keeper.run(results(new)).values()) == {"new"}


@pytest.mark.long
def test_what_is_carried_over_is_adopted_whatever_servers_die(keeper: Keeper) -> None:
    first = [
        node("a"),
        *(node(f"n{n}", "a") for n in range(WIDE)),
        node("end", *(f"n{n}" for n in range(WIDE))),
    ]
    keeper.submit(*first)
    assert run_all(keeper, '"old"') == WIDE + 2
    spec = check_flow(FlowSpec("n", [*first[:-1], replace(first[-1], data="new")]))
    place = keeper.run(find_flow("glide", "f"))
    beginning = begin_next(place, spec, "retry_failed", keeper)
    slices = 0
    for call in in_turn(keeper, beginning):
        slices += call == "gmo_advance_flow"
        if call == "gmo_advance_flow" and slices % 10 == 1:
            keeper.again(kill=True)
    assert slices >= WIDE / 50
    (left,) = keeper.begin()
    assert (left.node, left.generation) == ("end", 1)
    keeper.hand_in(Kind.DONE, '"new"', [left])
    new = keeper.run(find_flow("glide", "f")).ref
    assert keeper.run(reading.status(new)).completed == WIDE + 2
    assert keeper.run(results(new)) == {one.name: "old" for one in first[:-1]} | {"end": "new"}


def sent(call: Call[Any]) -> Op[Any]:
    return (yield call)


def in_turn(keeper: Keeper, op: Op[Any]) -> Iterator[str]:
    """Run an operation; yields the name of each call after its reply, between two trips."""
    try:
        request = next(op)
        while True:
            calls = request.calls if isinstance(request, Batch) else (request,)
            answers = [keeper.run(sent(call)) for call in calls]
            yield from (str(call.words[1]) for call in calls)
            request = op.send(answers if isinstance(request, Batch) else answers[0])
    except StopIteration:
        return


def wide_join() -> list[FlowNode]:
    names = [f"n{n}" for n in range(WIDE)]
    return [*(node(name) for name in names), node("end", *names)]


def every_page(keeper: Keeper, page: Callable[[str], Call[Any]]) -> dict[str, Any]:
    """What is read in pages while another server process begins after each of the first ones."""
    found: dict[str, Any] = {}
    cursor, restarts = "0", 0
    while True:
        cursor, (part, _) = keeper.call(page(cursor))
        found.update(part)
        if cursor == "0":
            return found
        if restarts < 3:
            keeper.again(kill=True)
            restarts += 1


@pytest.mark.long
def test_reading_in_pages_misses_nothing(keeper: Keeper) -> None:
    keeper.submit(*wide_join())
    keeper.call(advance_flow(ETL, "f", keeper.now))
    assert run_all(keeper, '"1"') == WIDE + 1
    assert len(every_page(keeper, lambda at: flow_results(ETL, "f", at))) == WIDE + 1
    assert len(every_page(keeper, lambda at: node_inputs(ETL, "f~end", at))) == WIDE
