"""A flow as it is drawn: read from stored rows, folded, and with states that are inferred."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from glidemq_orchestrate.console.snapshot import Snapshot
from glidemq_orchestrate.console.snapshots import snapshot_of
from glidemq_orchestrate.flows.graph import FlowGraph, StoredNodes, graph_of

LAYERS = [f"n-{layer}-{at}" for layer in range(3) for at in range(6)]


def row(rank: object, *after: str, queue: str = "etl", job: str = "work") -> str:
    return json.dumps([rank, queue, f"id-{rank}", job, *after])


def stored(*pages: Sequence[tuple[str, str]]) -> StoredNodes:
    return StoredNodes([[text for pair in page for text in pair] for page in pages])


def layers() -> Snapshot:
    rows = []
    for rank, name in enumerate(LAYERS):
        layer, at = map(int, name.split("-")[1:])
        after = [f"n-{layer - 1}-{at}", f"n-{layer - 1}-{(at + 1) % 6}"] if layer else []
        rows.append((name, row(rank, *after)))
    return snapshot_of(stored(rows[::-2], rows[::2][::-1]))


def test_nodes_are_in_order_whatever_the_order_of_the_pages() -> None:
    found = layers()
    assert found.names == LAYERS
    assert found.graph.job_ids == [f"id-{rank}" for rank in range(18)]
    assert [(group.label, group.layer, group.after) for group in found.groups] == [
        ("n-0-0..5", 0, []),
        ("n-1-0..5", 1, [0]),
        ("n-2-0..5", 2, [1]),
    ]


def test_what_comes_twice_counts_once_and_what_is_broken_is_left_out() -> None:
    pages = [
        [("b", row(1, "a", "gone")), ("a", row(0))],
        [("b", row(1, "a", "gone")), ("short", "[5]"), ("odd", "{"), ("text", row("x")), ("c", row(2, "b"))],
    ]
    assert graph_of(stored(*pages)).names == ["a", "b", "c"]
    assert snapshot_of(stored(*pages)).after == [(), (0,), (1,)]
    assert graph_of(stored([])) == FlowGraph([], [], [], [], [])


def test_texts_of_other_types_and_names_with_line_breaks() -> None:
    found = snapshot_of(stored([("a\nb1", "[0,5,7,null]"), ("a\nb2", '[1,"q",8,"x","a\\nb1",9]')]))
    graph = found.graph
    assert (graph.names, graph.queues, graph.job_ids) == (["a\nb1", "a\nb2"], ["5", "q"], ["7", "8"])
    assert found.after == [(), (0,)]


@pytest.mark.parametrize(("queues", "jobs"), [(("a", "a"), ("x", "x")), (("a", "b"), ("x", "y"))])
def test_nodes_are_folded_by_name_handler_and_queue(queues: Sequence[str], jobs: Sequence[str]) -> None:
    rows = [(f"part[{at}]", row(at, queue=queues[at % 2], job=jobs[at % 2])) for at in range(10)]
    found = snapshot_of(stored(rows))
    assert len(found.groups) == len(set(queues))
    assert snapshot_of(stored([("part", row(0))])).groups[0].label == "part"


def test_states_are_inferred_from_the_jobs_that_are_open() -> None:
    found = layers()
    ids = found.graph.job_ids
    found.infer(None, set(), {ids[2]})
    assert "".join(found.letters) == "wwawww" + "b" * 12
    found.infer(set(ids), set(), {ids[2]})
    assert "".join(found.letters) == "wwawww" + "b" * 12
    found.infer(set(), set(), set())
    assert "".join(found.letters) == "c" * 18
    found.infer(set(ids[8:]), set(), set())
    assert "".join(found.letters) == "c" * 8 + "wwww" + "wbbbbb"
    found.infer(set(ids[14:]), {ids[7], ids[12], ids[13]}, set())
    assert "".join(found.letters) == "c" * 7 + "F" + "cccc" + "ff" + "wwww"
    assert found.groups[2].states == {"failed": 2, "waiting": 4}


def test_what_follows_a_node_is_found_across_layers() -> None:
    assert [layers().names[at] for at in layers().following(5)] == [
        "n-1-4", "n-1-5", "n-2-3", "n-2-4", "n-2-5",
    ]  # fmt: skip
