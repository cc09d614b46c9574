"""Nodes and flows as most tests need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from glidemq_orchestrate import FlowNode, FlowSpec

NEAR: Final = "prod-warehouse"
"""A queue in the slot of ``etl``: also in a cluster, what needs one slot holds for both."""


def node(name: str, *after: str, queue: str = "etl", job: str = "work", **more: Any) -> FlowNode:
    return FlowNode(name, queue=queue, job=job, after=list(after), **more)


def slot_node(name: str, *after: str, queue: str = "b", **more: Any) -> FlowNode:
    """A node for clusters, where each queue has a slot of its own."""
    return node(name, *after, queue=queue, data={"n": name}, **more)


def flow(*nodes: FlowNode) -> FlowSpec:
    return FlowSpec("nightly", nodes)


def diamond(**changed: Any) -> FlowSpec:
    """a -> b, c -> d; and e alone. Changes by node name."""
    nodes = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"), node("e")]
    return FlowSpec("n", [replace(one, **changed.get(one.name, {})) for one in nodes])
