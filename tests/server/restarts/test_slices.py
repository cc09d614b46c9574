"""Work in slices goes on where it was when another server process takes over, and misses nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode
from glidemq_orchestrate._ops.flows import staged as flow_ops
from glidemq_orchestrate._protocol.flows import flow, nodes
from glidemq_orchestrate._protocol.worker.exchange import Kind
from glidemq_orchestrate.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from glidemq_orchestrate._protocol.call import Call
    from tests.server.restarts.conftest import Keeper

ETL = QueueKeys("glide", "etl")
WIDE = 2_000


def node(name: str, *after: str) -> FlowNode:
    return FlowNode(name, "etl", "work", after=after)


def fan_out() -> list[FlowNode]:
    return [node("a"), *(node(f"n{n}", "a") for n in range(WIDE))]


def advance(keeper: Keeper, *, kill: bool, every: int = 12) -> None:
    """Do all that the flow needs; every so many slices another server process begins."""
    slices = 0
    while keeper.call(flow.advance_flow(ETL, "f", keeper.now)):
        slices += 1
        if slices % every == 0:
            keeper.again(kill=kill)
    assert slices > every


def run_all(keeper: Keeper, result: str) -> int:
    ran = 0
    while begun := keeper.begin():
        assert set(keeper.hand_in(Kind.DONE, result, begun)) <= {"ok"}
        ran += len(begun)
        while keeper.call(flow.advance_flow(ETL, "f", keeper.now)):
            pass
    return ran


@pytest.mark.parametrize("kill", [False, True])
def test_every_dependent_of_a_wide_node_is_released(keeper: Keeper, *, kill: bool) -> None:
    keeper.submit(*fan_out())
    keeper.hand_in(Kind.DONE, "1", keeper.begin())
    advance(keeper, kill=kill)
    assert keeper.client.xlen("glide:{etl}:stream") == WIDE
    assert keeper.client.scard("glide:{etl}:parents:f~a") == WIDE
    assert not keeper.client.exists("glide:{etl}:gmo:notified:f~a")


def test_every_dependent_of_a_wide_failure_ends(keeper: Keeper) -> None:
    keeper.submit(*fan_out())
    keeper.hand_in(Kind.FAIL, "boom", keeper.begin())
    advance(keeper, kill=True)
    record = keeper.record()
    assert (record["state"], record["failed"]) == ("failed", str(WIDE + 1))


def test_a_restart_of_the_flow_runs_every_node_again(keeper: Keeper) -> None:
    keeper.submit(*fan_out())
    assert run_all(keeper, '"old"') == WIDE + 1
    assert keeper.record()["state"] == "completed"
    keeper.call(flow.restart_flow(ETL, "f", keeper.now))
    advance(keeper, kill=True)
    assert run_all(keeper, '"new"') == WIDE + 1
    record = keeper.record()
    assert (record["state"], record["completed"], record["generation"]) == ("completed", str(WIDE + 1), "1")
    results = {keeper.client.hget(f"glide:{{etl}}:job:f~n{n}", "returnvalue") for n in range(WIDE)}
    assert results == {'"new"'}


def wide_join() -> list[FlowNode]:
    names = [f"n{n}" for n in range(WIDE)]
    return [*(node(name) for name in names), node("end", *names)]


def every_page(keeper: Keeper, page: Callable[[str], Call[tuple[str, Any]]]) -> dict[str, Any]:
    """What is read in pages while another server process begins after each of the first ones."""
    found: dict[str, Any] = {}
    cursor, restarts = "0", 0
    while True:
        cursor, part = keeper.call(page(cursor))
        found.update(part)
        if cursor == "0":
            return found
        if restarts < 3:
            keeper.again(kill=True)
            restarts += 1


def test_reading_in_pages_misses_nothing(keeper: Keeper) -> None:
    keeper.submit(*wide_join())
    keeper.call(flow.advance_flow(ETL, "f", keeper.now))
    assert run_all(keeper, '"1"') == WIDE + 1
    assert len(every_page(keeper, lambda at: nodes.flow_results(ETL, "f", at))) == WIDE + 1
    assert len(every_page(keeper, lambda at: nodes.node_inputs(ETL, "f~end", at))) == WIDE


def test_results_of_the_generation_before_are_shown_at_no_moment(keeper: Keeper) -> None:
    keeper.submit(*fan_out())
    run_all(keeper, '"old"')
    keeper.call(flow.restart_flow(ETL, "f", keeper.now))
    ref = flow_ops.FlowRef(ETL, "f")
    for slices in itertools.count():
        if slices % 9 == 0:
            assert keeper.run(flow_ops.results(ref)) == {}
        if not keeper.call(flow.advance_flow(ETL, "f", keeper.now)):
            break
    states = {node.state for node in keeper.run(flow_ops.nodes(ref))}
    assert states == {"waiting", "waiting-children"}
