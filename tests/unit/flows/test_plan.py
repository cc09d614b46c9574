"""Why nodes run again, and which edges of those that do not can stay."""

from __future__ import annotations

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.plan import Done, reasons, with_kept_edges

NODES = check_flow(
    FlowSpec(
        "n",
        [FlowNode(one[0], queue="etl", job="work", after=list(one[1:])) for one in ("a", "ba", "cb", "d")],
    )
).nodes
COMPLETED = dict.fromkeys("abcd", Done("completed"))

REASONS: list[tuple[dict[str, Done], dict[str, tuple[str, ...]], dict[str, str]]] = [
    (COMPLETED, {}, {}),
    ({}, {}, dict.fromkeys("abcd", "new")),
    (COMPLETED, {"b": ("data", "job")}, {"b": "changed: data, job", "c": "follows b"}),
    (COMPLETED | {"a": Done("skipped")}, {}, {"a": "was skipped", "b": "follows a", "c": "follows b"}),
    (COMPLETED | {"c": Done("active"), "d": Done("failed")}, {}, {"c": "was active", "d": "was failed"}),
    (COMPLETED | {"d": Done("completed", has_grown=True)}, {}, {"d": "adds nodes"}),
    (COMPLETED | {"c": Done("failed")}, {"c": ("data",)}, {"c": "changed: data"}),
]


def test_reasons(subtests: pytest.Subtests) -> None:
    for done, changed, expected in REASONS:
        with subtests.test(done=done):
            assert reasons(NODES, done, changed) == expected


SAME = {node.name: node.after for node in NODES}

KEEPING_EDGES: list[tuple[str, dict[str, tuple[str, ...]], str]] = [
    ("abcd", SAME, "abcd"),
    ("abd", SAME, "ad"),  # c runs again, so b has to tell it
    ("ad", SAME, "d"),
    ("abcd", SAME | {"c": ()}, "acd"),  # c follows b since
    ("abcd", SAME | {"d": ("a",)}, "bcd"),  # and d no longer a
    ("abcd", SAME | {"grown": ("a", "d")}, "bc"),  # a node that is gone did
    ("", {}, ""),
]


def test_which_nodes_keep_their_edges(subtests: pytest.Subtests) -> None:
    for kept, before, expected in KEEPING_EDGES:
        with subtests.test(kept=kept):
            assert with_kept_edges(NODES, kept, before) == set(expected)
