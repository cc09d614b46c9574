"""Nodes of random flows that run behind the bridge to ChasquiMQ, decided by the seed alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from tests.chaos.plan import LONG_MS, FlowPlan, Plan, Step

QUEUE: Final = "bridged"
"""Our queue, which the bridge serves."""
REMOTE_QUEUE: Final = "remote"
"""The queue of ChasquiMQ."""
SPARE: Final = 5
"""Attempts beyond those that fail by plan: two lost workers of the same job cost one."""
LONGS: Final = 0.05
"""The share of nodes that run for longer than a lease."""
HANDLERS: Final = frozenset({"async", "thread"})


def over_the_bridge(made: Plan, share: float, *, may_grow: bool) -> Plan:
    """The plan with this share of the nodes of its random flows in the queue of the bridge.

    Args:
        made: The plan; nothing else in it changes.
        share: 0 to 1.
        may_grow: Whether all flows are on one server; otherwise those over several queues have no ordering
            keys, which the portable path refuses, and those that grow stay in their queue.
    """
    if not share:
        return made
    prefix = f"s{made.seed}-f"
    flows = tuple(
        _bridged(flow, share, may_grow=may_grow) if flow.flow_id.startswith(prefix) else flow
        for flow in made.flows
    )
    return Plan(made.seed, made.queues, flows, made.plain)


def _bridged(flow: FlowPlan, share: float, *, may_grow: bool) -> FlowPlan:
    if not may_grow and (flow.added or any(step.grows for step in flow.steps)):
        return flow
    chance = random.Random(f"bridged {flow.flow_id}")
    refused = {step.name for step in _variants(flow) if not _may_move(step)}
    moved = {
        name: LONG_MS if chance.random() < LONGS else None
        for name in flow.all_steps
        if chance.random() < share and name not in refused
    }

    def changed(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(
            replace(_changed(step, moved, keeps_keys=may_grow or not moved), grows=changed(step.grows))
            for step in steps
        )

    return replace(flow, steps=changed(flow.steps), added=changed(flow.added), mended=changed(flow.mended))


def _variants(flow: FlowPlan) -> list[Step]:
    """Every step, also as it is when the flow was mended."""
    grown = [more for step in flow.steps for more in step.grows]
    return [*flow.steps, *grown, *flow.added, *flow.mended]


def _may_move(step: Step) -> bool:
    """Whether workers of ChasquiMQ can run a step: they add no nodes, and a skip there is a completion."""
    return step.handler in HANDLERS and step.ends != "skip" and not step.grows


def _changed(step: Step, moved: dict[str, int | None], *, keeps_keys: bool) -> Step:
    if not keeps_keys:
        step = replace(step, ordering=None)
    if step.name not in moved:
        return step
    long_ms = moved[step.name]
    return replace(  # ChasquiMQ has no place for messages
        step, queue=QUEUE, says=0, spare=step.spare + SPARE, ms=step.ms if long_ms is None else long_ms
    )
