"""How nodes are cut for their way to the server: nothing is lost, and no call is large."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.flows.checked import CheckedFlow, check_flow
from glidemq_orchestrate.flows.staged.submit import CHUNK_EDGES, CHUNK_NODES, chunks, stage_flow
from glidemq_orchestrate.wire.keys import QueueKeys


def layers(count: int, width: int) -> CheckedFlow:
    """Every node waits for all nodes of the layer before."""
    nodes = [
        FlowNode(
            f"{layer}.{n}",
            queue="etl",
            job="work",
            after=[f"{layer - 1}.{m}" for m in range(width)] if layer else [],
        )
        for layer in range(count)
        for n in range(width)
    ]
    return check_flow(FlowSpec("n", nodes))


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 40))
def test_every_edge_travels_once_in_each_direction(count: int, width: int) -> None:
    flow = layers(count, width)
    edges, members, whole = Counter[tuple[str, str]](), Counter[tuple[str, str]](), []
    for chunk in chunks(flow.nodes):
        assert len(chunk) <= CHUNK_NODES
        assert sum(len(piece.after) + len(piece.dependents) for piece in chunk) <= CHUNK_EDGES
        for piece in chunk:
            edges.update((name, piece.node.name) for name in piece.after)
            members.update((piece.node.name, name) for name in piece.dependents)
            whole += [piece.node.name] * piece.is_last
    assert whole == [node.name for node in flow.nodes]
    expected = Counter((name, node.name) for node in flow.nodes for name in node.after)
    assert edges == members == expected


def test_a_node_with_more_edges_than_a_call_carries_is_cut() -> None:
    flow = check_flow(
        FlowSpec(
            "n",
            [
                *(FlowNode(f"n{n}", queue="etl", job="work") for n in range(3_000)),
                FlowNode("all", queue="etl", job="work", after=[f"n{n}" for n in range(3_000)]),
            ],
        )
    )
    parts = [piece for chunk in chunks(flow.nodes) for piece in chunk if piece.node.name == "all"]
    assert [piece.is_last for piece in parts] == [False, False, True]
    assert [len(piece.after) for piece in parts] == [1000, 1000, 1000]


def test_the_calls_of_a_large_flow_are_made_one_by_one() -> None:
    flow = layers(20, 50)
    calls = stage_flow(QueueKeys("glide", flow.home), "f", flow, chunks(flow.nodes), 0)
    first = next(calls)
    assert first.words[1] == "gmo_stage_flow"
    assert sum(1 for _ in calls) > 20
