"""Flows with steps of Spark, decided by the seed alone: they publish tables and read those of others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.chaos.plan import FlowPlan, Step

QUEUE: Final = "jvm"
ACTIONS: Final = ("none", "none", "none", "retry", "cancel", "restart", "anew", "rerun", "skip")
SPARE: Final = 5
"""Attempts beyond those that fail by plan: a session that is lost again and again costs some."""


def spark_flows(seed: int, flows: int, queues: Sequence[str]) -> tuple[FlowPlan, ...]:
    """So many flows of a seed; the rest of the seed's plan does not depend on them."""
    chance = random.Random(f"spark {seed}")
    return tuple(_flow(chance, f"s{seed}-spark{number}", queues) for number in range(flows))


def _flow(chance: random.Random, flow_id: str, queues: Sequence[str]) -> FlowPlan:
    """A root, parts that publish a table each, a sum that reads these, and a report."""
    action = chance.choice(ACTIONS)
    parts = [_part(chance, f"part{number}") for number in range(chance.randint(2, 3))]
    names = tuple(part.name for part in parts)
    drivers = [_driver(chance)] if chance.random() < 0.5 else []
    if action == "retry":
        parts[0] = replace(parts[0], ends="cure")
    steps = (
        Step("root", chance.choice(queues)),
        *parts,
        *drivers,
        replace(_part(chance, "sum"), after=names, rule="all_done", ends="complete"),
        Step("report", chance.choice(queues), ("sum", *(driver.name for driver in drivers)), rule="all_done"),
    )
    return FlowPlan(flow_id, steps, action, chance.choice((0, 300, 1_000)))


def _part(chance: random.Random, name: str) -> Step:
    """A step in a warm session."""
    return Step(
        name, QUEUE, ("root",), handler="spark.python", ms=chance.choice((0, 5, 400)), spare=SPARE,
        ends=chance.choices(("complete", "fail", "skip", "refuse"), (85, 5, 5, 5))[0],
        fails=chance.choice((0, 0, 1)), says=chance.choice((0, 0, 3)),
    )  # fmt: skip


def _driver(chance: random.Random) -> Step:
    """A step with a driver of its own."""
    return Step(
        "driver", QUEUE, ("root",), handler="spark.submit", ms=chance.choice((5, 400)), spare=SPARE,
        fails=chance.choice((0, 1)),
    )  # fmt: skip
