"""Which nodes of a plan run behind the bridge."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.bridged_flows import QUEUE, over_the_bridge
from tests.chaos.plan import FlowPlan, Step, plan

QUEUES = ("etl", "spark")


def variants(flow: FlowPlan) -> list[Step]:
    """Every step, also as it is when the flow was mended."""
    steps = [*flow.steps, *flow.added, *flow.mended]
    return [*steps, *(more for step in steps for more in step.grows)]


def test_a_node_is_behind_the_bridge_in_every_variant_of_its_flow_or_in_none() -> None:
    moved, whole = 0, 0
    for seed in range(20):
        made = plan(seed, 25, QUEUES)
        changed = over_the_bridge(made, 0.5, may_grow=True)
        assert changed.plain == made.plain
        assert over_the_bridge(made, 0, may_grow=True) is made
        for flow in changed.flows:
            queues = {step.name: step.queue for step in variants(flow)}
            assert all(queues[step.name] == step.queue for step in variants(flow))
            behind = [step for step in variants(flow) if step.queue == QUEUE]
            assert not any(step.says or step.grows or step.ends == "skip" for step in behind)
            moved, whole = moved + len(behind), whole + len(variants(flow))
    assert 0.3 < moved / whole < 0.5


def test_a_flow_over_several_slots_keeps_no_ordering_key() -> None:
    flow = FlowPlan("s1-f0", tuple(Step(f"n{n}", "etl", ordering="red") for n in range(20)))
    made = replace(plan(1, 0, QUEUES), flows=(flow,), by_id={})
    (changed,) = over_the_bridge(made, 0.5, may_grow=False).flows
    assert {step.ordering for step in changed.steps} == {None}
    (changed,) = over_the_bridge(made, 0.5, may_grow=True).flows
    assert {step.ordering for step in changed.steps} == {"red"}
