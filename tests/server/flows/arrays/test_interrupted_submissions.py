"""The items of an array are sent in several calls: a client may die at each of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode, FlowNode, FlowProducer, FlowSpec, FlowState
from glidemq_orchestrate.errors import FlowNotFound
from glidemq_orchestrate.flows import arrays
from glidemq_orchestrate.flows.staged import submit
from glidemq_orchestrate.wire.trips import Trips

if TYPE_CHECKING:
    from collections.abc import Callable

    from glidemq_orchestrate.wire.call import Op
    from tests.conftest import RunWorker
    from tests.server.conftest import Hand

ITEMS = [f"item {at}" for at in range(24)]
SPEC = FlowSpec("f", [FlowNode("first"), ArrayNode("a", over=ITEMS, after=["first"])], queue="etl")


@pytest.fixture(autouse=True)
def small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_PER_CHUNK", 4)
    monkeypatch.setattr(submit, "CHUNK_WORDS", 2)
    monkeypatch.setattr(Trips, "LONGEST", 2)


def submission(flows: FlowProducer, flow_id: str) -> Op[Any]:
    return flows._operations.submit(SPEC, flow_id=flow_id)


def extension(flows: FlowProducer, flow_id: str) -> Op[Any]:
    flow = flows.submit(FlowSpec("f", [FlowNode("first")], queue="etl"), flow_id=flow_id)
    return flow._operations.extend([ArrayNode("a", queue="etl", over=ITEMS, after=["first"])])


def restart(flows: FlowProducer, flow_id: str) -> Op[Any]:
    return flows.submit(SPEC, flow_id=flow_id)._operations.restart(idempotency_key="once")


@pytest.mark.parametrize("begun", [submission, extension, restart])
def test_a_client_dies_at_any_call(
    flows: FlowProducer,
    run_worker: RunWorker,
    hand: Hand,
    begun: Callable[[FlowProducer, str], Op[Any]],
) -> None:
    died = 0
    for calls in itertools.count(0):
        flow_id = f"x{calls}"
        if hand.run_until(begun(flows, flow_id), calls) < calls:
            break
        died += 1
        hand.run(begun(flows, flow_id))
    assert died > len(ITEMS) // 4
    run_worker(["etl"], {"first": lambda _: 1, "a": lambda ctx: ctx.data})
    for number in range(died):
        flow = flows.get(f"x{number}")
        assert flow.wait(timeout=60).state is FlowState.COMPLETED
        assert flow.array("a").results() == dict(enumerate(ITEMS))
        assert flow.generation == (begun is restart)


def test_a_flow_that_is_cancelled_before_all_of_it_is_there_does_not_run(
    flows: FlowProducer, run_worker: RunWorker, hand: Hand
) -> None:
    """Neither with the items that it has, by a retry, nor anew without them."""
    died = 0
    for calls in itertools.count(1):
        flow_id = f"x{calls}"
        if hand.run_until(submission(flows, flow_id), calls) < calls:
            break
        try:
            flow = flows.get(flow_id)
        except FlowNotFound:
            continue
        died += 1
        flow.cancel()
        flow.retry_failed()
        flows.submit(SPEC, flow_id=flow_id, on_existing="retry_failed")
    assert died > len(ITEMS) // 4
    run_worker(["etl"], {"first": lambda _: 1, "a": lambda ctx: ctx.data})
    for flow in [flows.get(one.id) for one in flows.list()]:
        assert flow.wait(timeout=60).state is FlowState.COMPLETED
        assert flow.array("a").results() == dict(enumerate(ITEMS))
