"""Drawings of flows as Graphviz itself reads them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from tests.server.lua.servers import installed

ODD = [
    "plain",
    'a "quoted" name',
    "back\\slash\\n\\",
    "{record|<port>}",
    "[bracket](paren)",
    "naïve 日本 🦊",
    "&amp; &lt;b&gt; <i>",
    "`tick` #35; ;",
    "graph",
]


def drawn(dot: str) -> dict[str, Any]:
    program = installed("dot", package="graphviz")
    done = subprocess.run([program, "-Tjson"], input=dot, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def texts(found: dict[str, Any]) -> list[str]:
    """What is written in the boxes, as a reader sees it."""
    return ["".join(part["text"] for part in one["_ldraw_"] if part["op"] == "T") for one in found["objects"]]


def test_odd_names_are_drawn_as_they_are() -> None:
    nodes = [
        FlowNode(name, queue="etl", job="work", after=ODD[max(0, at - 1) : at]) for at, name in enumerate(ODD)
    ]
    found = drawn(FlowSpec('my "flow" \\', nodes).to_dot())
    assert texts(found) == ODD
    assert [(edge["tail"], edge["head"]) for edge in found["edges"]] == [
        (at, at + 1) for at in range(len(ODD) - 1)
    ]


@pytest.mark.parametrize(("fold", "boxes", "edges"), [(10, 3, 2), (None, 22, 40)])
def test_a_fan_out_is_drawn_folded_or_not(fold: int | None, boxes: int, edges: int) -> None:
    items = [FlowNode(f"item[{n}]", queue="etl", job="work", after=["split"]) for n in range(20)]
    end = FlowNode("end", queue="etl", job="work", after=[one.name for one in items])
    found = drawn(
        FlowSpec("fan", [FlowNode("split", queue="etl", job="work"), *items, end]).to_dot(fold=fold)
    )
    assert (len(found["objects"]), len(found["edges"])) == (boxes, edges)
