"""Submitting flows with many nodes and many edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowSpec, JobOptions, Queue
from glidemq_orchestrate.errors import FlowConflict, FlowIncomplete
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.staged.submit import start_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import node

if TYPE_CHECKING:
    from tests.server.conftest import Dump, Hand


def submission(spec: FlowSpec) -> Any:
    return submit_flow("glide", check_flow(spec), "f", "attach", SystemClock())


def waiting(redis_client: Any) -> list[str]:
    return [fields["jobId"] for _, fields in redis_client.xrange("glide:{etl}:stream")]


def test_a_thousand_nodes_in_layers_are_submitted_in_four_round_trips(hand: Hand, redis_client: Any) -> None:
    nodes = [
        node(f"{layer}.{n}", *(f"{layer - 1}.{(n + k) % 100}" for k in range(3) if layer))
        for layer in range(10)
        for n in range(100)
    ]
    trips = sum(1 for _ in hand.steps(submission(FlowSpec("n", nodes))))
    assert trips <= 4
    assert len(waiting(redis_client)) == 100
    assert redis_client.scard("glide:{etl}:gmo:flow:f:open") == 1000


WIDE = FlowSpec("n", [*(node(f"n{n}") for n in range(2_500)), node("all", *(f"n{n}" for n in range(2_500)))])


@pytest.mark.parametrize("calls", [50, 51, 52, 53])
def test_a_wide_node_that_was_half_submitted_waits_for_all(hand: Hand, redis_client: Any, calls: int) -> None:
    hand.run_until(submission(WIDE), calls)
    assert waiting(redis_client) == []
    if calls < 53:  # it becomes a node with its last edge
        refused = hand.answer(start_flow(QueueKeys("glide", "etl"), "f", check_flow(WIDE).digest, 1))
        assert isinstance(refused, FlowIncomplete)
    hand.run(submission(WIDE))
    assert redis_client.scard("glide:{etl}:deps:f~all") == 2_500
    assert redis_client.hget("glide:{etl}:job:f~all", "state") == "waiting-children"
    assert redis_client.scard("glide:{etl}:gmo:flow:f:open") == 2_501
    assert "f~all" not in waiting(redis_client)
    assert len(waiting(redis_client)) == 2_500


def test_pieces_of_a_wide_node_are_discarded_with_the_rest(hand: Hand, queue: Queue, dump: Dump) -> None:
    queue.add("work", options=JobOptions(job_id="f~all"))
    before = dump(events=False)
    with pytest.raises(FlowConflict, match="all"):
        hand.run(submission(WIDE))
    assert dump(events=False) == before
