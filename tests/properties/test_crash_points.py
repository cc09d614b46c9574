"""A process that dies at any single call of what it does: everything still ends right."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions
from tests.profile import IS_ALL
from tests.properties.simulation.choices import Choices
from tests.properties.simulation.history import History
from tests.properties.simulation.plan import JOB, Plan, node_data
from tests.properties.simulation.scheduler import Doom

if TYPE_CHECKING:
    from tests.properties.simulation.plan import Path
    from tests.properties.simulation.store import Store

# a(b) -> m(c), which fails at first;  a, m -> end(b);  side(c) is skipped, which after(b) does not mind
NODES = [
    FlowNode("m", queue="c", job=JOB, data=node_data(first=1), after=["a"], options=JobOptions(attempts=2)),
    FlowNode(
        "end", queue="b", job=JOB, data=node_data("failed"), after=["a", "m"], options=JobOptions(lifo=True)
    ),
    FlowNode(
        "side",
        queue="c",
        job=JOB,
        data=node_data("skipped"),
        options=JobOptions(delay=timedelta(milliseconds=50)),
    ),
    FlowNode("after", queue="b", job=JOB, data=node_data(ms=900), after=["side"], rule="none_failed"),
]
# The tasks of processes that die, and what users do.
VICTIMS: dict[str, tuple[str, ...]] = {
    "submitter-0": (),
    "worker-t1/feed": (),
    "worker-t1/upkeep": (),
    "worker-t1/supervision": (),
    "user-0-cancel": ("cancel",),
    "user-0-retry_failed": ("retry_failed",),
    "user-0-restart": ("restart",),
    "user-1-retry_failed": ("cancel", "retry_failed"),
    "user-0-extend": ("extend",),
}
MAX = 60


def plan(path: Path, *steps: str) -> Plan:
    """The flow, and what a user does with it: while it runs, or after it has ended."""
    moments = {"cancel": 400, "extend": 450}
    doing = tuple((moments.get(step, 4_000), step) for step in steps)
    nodes = [
        FlowNode("a", queue="b", job=JOB, data=node_data(grows=path == "staged")),
        *NODES,
    ]  # added nodes need one slot
    return Plan(path, FlowSpec("crash", nodes), workers=1, steps=doing, heals=True)


def history(store: Store, what: Plan, doom: Doom | None, seed: int) -> tuple[list[str], int]:
    """What the history breaks, and how many calls of the doomed task there were."""
    made = History(store, Choices(f"crash-{seed}"), what)
    made.scheduler.doom = doom
    problems = made.run()
    for process in made.scheduler.processes:
        process.die()
    return problems, doom.seen if doom else 0


@pytest.mark.parametrize(
    ("path", "victim", "steps"),
    [
        pytest.param(path, victim, steps, id=f"{path} {victim}")
        for path in ("staged", "portable")
        for victim, steps in VICTIMS.items()
        if path == "staged" or "extend" not in steps
    ],
)
@pytest.mark.timeout(3_600)
def test_a_process_dies_at_any_call(
    store: Store, path: Path, victim: str, steps: tuple[str, ...], *, is_long: bool
) -> None:
    what = plan(path, *steps)
    died = 0
    apart = 1 if is_long else 23 if path == "portable" else 5 if IS_ALL else 11
    for at in itertools.count(1, apart):
        doom = Doom(victim, at, arrives=False)
        problems, calls = history(store, what, doom, at)
        assert problems == [], (at, "before")
        if calls < at or at > MAX * (10 if is_long else 1):
            break
        died += 1
        doom = Doom(victim, at, arrives=True)
        assert history(store, what, doom, at)[0] == [], (at, "after")
    assert died
