"""Wide nodes that are cancelled and retried in the middle of notifying lose no dependent."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.flows.staged.changes import cancel_flow
from glidemq_orchestrate.flows.staged.submit import advance_flow, retry_flow
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.profile import sampled

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
WIDE = 120
NAMES = [f"n{n}" for n in range(WIDE)]


def work(bench: Bench, kind: Kind) -> None:
    """A worker begins some nodes, and reports how they ended until the server has accepted it."""
    left = [Outcome(attempt, kind, "1", "", 1, 0) for attempt in bench.exchange(wanted=40).fetched]
    while left:
        verdicts = bench.exchange(*left).verdicts
        left = [outcome for outcome, verdict in zip(left, verdicts, strict=True) if verdict == "again"]


def steer(bench: Bench, chance: random.Random) -> None:
    """One thing happens to the flow, perhaps in the middle of another."""
    step = chance.choice(["advance"] * 4 + ["work", "work", "fail", "cancel", "retry"])
    bench.now += 1
    if step == "advance":
        bench.call(advance_flow(ETL, "f", bench.now))
    elif step == "cancel":
        bench.call(cancel_flow(ETL, "f", "why", bench.now))
    elif step == "retry":
        bench.call(retry_flow(ETL, "f", bench.now))
    else:
        kind = Kind.DONE if step == "work" else Kind.FAIL
        work(bench, kind)


def finish(bench: Bench) -> None:
    """All that is left is done, without a failure."""
    for _ in range(200):
        while bench.call(advance_flow(ETL, "f", bench.now)):
            pass
        work(bench, Kind.DONE)
        state = bench.record()["state"]
        if state == "completed":
            return
        if state != "running":
            bench.call(retry_flow(ETL, "f", bench.now))
    raise AssertionError(bench.record())


@pytest.mark.parametrize("seed", sampled(range(12)))
def test_any_order_of_steering_ends_with_every_node_run(bench: Bench, node: Any, seed: int) -> None:
    chance = random.Random(seed)
    bench.submit(node("a"), node("b"), *(node(name, "a", "b") for name in NAMES), node("end", *NAMES))
    for _ in range(60):
        steer(bench, chance)
    finish(bench)
    record = bench.record()
    assert (record["completed"], record.get("failed", "0")) == (str(WIDE + 3), "0")
    for parent in ("a", "b"):
        refs = {f"glide:{{etl}}:f~{name}" for name in NAMES}
        assert bench.client.smembers(f"glide:{{etl}}:parents:f~{parent}") == refs
        assert not bench.client.exists(f"glide:{{etl}}:gmo:notified:f~{parent}")
    assert bench.client.llen("glide:{etl}:gmo:flow:f:order") == WIDE + 3
    assert {bench.job(f"f~{name}")["depsCompleted"] for name in NAMES} == {"2"}
