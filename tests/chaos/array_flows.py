"""Flows with arrays, decided by the seed alone: what their elements do, and the nodes around them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.chaos.plan import Elements, FlowPlan, Step

ACTIONS: Final = ("none", "none", "retry", "retry", "cancel", "restart", "mend", "anew", "rerun", "skip")
HANDLERS: Final = ("array", "array", "array-thread", "array-batch", "array-process")
SPARE: Final = 4
"""Attempts beyond those that fail by plan: a killed process costs one."""


def array_flows(seed: int, flows: int, queues: Sequence[str]) -> tuple[FlowPlan, ...]:
    """So many flows of a seed; the rest of the seed's plan does not depend on them."""
    chance = random.Random(f"arrays {seed}")
    return tuple(_flow(chance, f"s{seed}-array{number}", tuple(queues)) for number in range(flows))


def _flow(chance: random.Random, flow_id: str, queues: tuple[str, ...]) -> FlowPlan:
    """An array or two, with a node before or none, which may add one more, and a node that follows."""
    action, queues = chance.choice(ACTIONS), (chance.choice(queues),)  # on every path in one slot
    before = [Step("before", queues[0], ms=chance.choice((0, 20)))] if chance.random() < 0.5 else []
    if before and chance.random() < 0.5:
        grown = _array(chance, queues[0], "grown", ("before",), action)
        before = [replace(before[0], grows=(grown,))]
    names = tuple(step.name for step in before)
    arrays = [
        _array(chance, queues[0], f"array{number}", names, action) for number in range(chance.randint(1, 2))
    ]
    ends = tuple(step.name for step in arrays)
    steps = (*before, *arrays, Step("after", queues[0], ends, chance.choice(("all_success", "all_done"))))
    mended = tuple(_mended(step) for step in steps) if action == "mend" else ()
    if mended:
        mended += (Step("mended", queues[0], ("after",)),)
    return FlowPlan(flow_id, steps, action, chance.choice((0, 50, 300, 1_000)), mended=mended)


def _array(chance: random.Random, queue: str, name: str, after: tuple[str, ...], action: str) -> Step:
    handler = chance.choice(HANDLERS)
    size = chance.choice((50, 300, 1_000, 2_000)) if handler != "array-process" else chance.randint(20, 60)
    fails = chance.choice((0, 0, 0, 2, 20))
    bad = "cure" if action == "retry" else "fail"
    shares = {"once": chance.choice((0, 10, 100)), "skip": chance.choice((0, 10)), bad: fails}
    if chance.random() < 0.1:
        shares = {"skip": 1_000}
    elements = Elements(
        size, chance.random() < 0.5, chance.randrange(10**6), shares,
        max_running=chance.choice((None, None, 1, 3)) if size <= 300 else chance.choice((None, 5)),
        max_failed=chance.choice((None, None, 0, 5, size)),
    )  # fmt: skip
    return _with_end(Step(
        name, queue, after, handler=handler, ms=chance.choice((0, 0, 1, 5)), fails=1,
        spare=SPARE if handler == "array-process" else 0, array=elements, priority=elements.salt % 3,
    ))  # fmt: skip


def _with_end(step: Step) -> Step:
    """The array with the end that those of its elements decide."""
    assert step.array is not None
    if step.array.shares == {"skip": 1_000}:
        return replace(step, ends="skip")
    bad = sum(step.array.fate(index) in ("fail", "cure") for index in range(step.array.size))
    allowed = step.array.max_failed or 0
    ends = "complete" if bad <= allowed else "cure" if "cure" in step.array.shares else "fail"
    return replace(step, ends=ends)


def _mended(step: Step) -> Step:
    """The step when somebody has looked at its failures."""
    if step.array is None or step.ends != "fail":
        return step
    shares = {fate: share for fate, share in step.array.shares.items() if fate != "fail"}
    return _with_end(replace(step, array=replace(step.array, shares=shares), edition=1))
