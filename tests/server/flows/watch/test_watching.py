"""Every change of a flow is reported once, in order, and then its end."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, FlowState, JobOptions
from glidemq_orchestrate.errors import FlowNotFound, WaitTimeout
from glidemq_orchestrate.flows import FlowChange, NodeChange
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.flows.watch import begin_watch, next_changes
from glidemq_orchestrate.foundation.clock import SystemClock
from tests.builders import NEAR, flow, node
from tests.server.flows.watch.changes import DIAMOND, LONG, Change, check, last_states, layers, steps, watched

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Clients, Hand, Record


def test_every_node_is_reported_in_order_and_then_the_end(
    twins: Clients, run_worker: RunWorker, recorder: type[Record]
) -> None:
    found = twins.do(twins.flows().submit(DIAMOND))
    run_worker(["etl"], {"work": recorder()})
    changes = watched(twins, found)
    check(DIAMOND, changes)
    assert last_states(changes) == dict.fromkeys("abcd", "completed")
    end = changes[-1]
    assert isinstance(end, FlowChange)
    assert (end.flow, end.state, end.reason) == (found.id, "completed", "")
    assert [one.node for one in changes[:-1] if one.state == "completed"][::3] == ["a", "d"]


def test_a_flow_that_has_ended_is_reported_and_nothing_more(
    twins: Clients, run_worker: RunWorker, recorder: type[Record]
) -> None:
    found = twins.do(twins.flows().submit(DIAMOND))
    run_worker(["etl"], {"work": recorder("b")})
    twins.do(found.wait(timeout=LONG))
    changes = watched(twins, found)
    assert steps(changes[:-1]) == [
        ("a", "completed"), ("b", "failed"), ("c", "completed"), ("d", "failed")
    ]  # fmt: skip
    assert [one.reason for one in changes[:-1]] == [
        "",
        "ValueError: b is broken",
        "",
        "upstream failed: b",
    ]
    assert (changes[-1].state, changes[-1].reason) == ("failed", "b: ValueError: b is broken")
    assert all(one.at.tzinfo for one in changes)
    assert watched(twins, found, after=changes[-1].position) == []


def test_progress_and_attempts_are_reported(flows: FlowProducer, run_worker: RunWorker) -> None:
    go, attempts = threading.Semaphore(0), iter([1, 2])

    def work(ctx: Any) -> str:
        attempt = next(attempts)
        ctx.progress(50 + attempt)
        assert go.acquire(timeout=30)
        if attempt == 1:
            raise ValueError("not yet")
        return "done"

    found = flows.submit(flow(node("a", options=JobOptions(attempts=2))))
    run_worker(["etl"], {"work": work})
    changes = list[NodeChange]()
    for change in found.watch(timeout=LONG):
        if not isinstance(change, NodeChange):
            break
        changes.append(change)
        if (change.attempts, change.progress) in ((1, 51), (2, 52)):
            go.release()
    active = [(one.attempts, one.progress) for one in changes if one.state == "active"]
    assert (1, 51) in active
    assert (2, 52) in active
    assert (changes[-1].state, changes[-1].attempts) == ("completed", 2)


def test_nodes_in_several_queues_are_reported_in_order(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    queues = ("etl", "spark", "bi")
    spec = layers(6, 12, queues)
    found = flows.submit(spec)
    record = recorder()
    for queue in queues:
        run_worker([queue], {"work": record}, concurrency=4)
    changes = list(found.watch(timeout=LONG))
    check(spec, changes)
    assert set(last_states(changes).values()) == {"completed"}
    assert len(last_states(changes)) == 72


def test_a_cancelled_flow_is_reported_to_its_end(flows: FlowProducer) -> None:
    found = flows.submit(DIAMOND)
    watching = found.watch(timeout=LONG)
    assert steps([next(watching)]) == [("a", "waiting")]
    found.cancel("enough")
    changes = list(watching)
    assert last_states(changes) == dict.fromkeys("abcd", "failed")
    assert (changes[-1].state, changes[-1].reason) == ("cancelled", "enough")


def test_nodes_that_are_added_while_the_flow_runs_are_reported(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    def work(ctx: Any) -> None:
        if ctx.node == "a":
            ctx.flow.add_nodes([node("more-1", queue=NEAR), node("more-2", "more-1", queue=NEAR)])

    run_worker(["etl", NEAR], {"work": work})
    found = flows.submit(flow(node("a"), node("z", "a")))
    changes = list(found.watch(timeout=LONG))
    assert last_states(changes) == dict.fromkeys(["a", "z", "more-1", "more-2"], "completed")
    again = list(found.watch(after=changes[-3].position))
    assert [replace(one, position="") for one in again] == [
        replace(one, position="") for one in changes[-2:]
    ]  # a position has several texts


def test_skipped_nodes_and_those_of_the_rule_one_success_are_reported(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    held = threading.Event()

    def work(ctx: Any) -> None:
        if ctx.node == "slow":
            assert held.wait(30)
        if ctx.node == "broken":
            raise ValueError("broken")

    run_worker(["etl"], {"work": work}, concurrency=4)
    found = flows.submit(
        flow(
            node("broken", on_failure="skip"),
            node("skipped", "broken"),
            node("quick"),
            node("slow"),
            node("eager", "quick", "slow", rule="one_success"),
        )
    )
    changes: list[Change] = []
    for change in found.watch(timeout=LONG):
        changes.append(change)
        if last_states(changes).get("eager") == "completed":
            held.set()
    assert last_states(changes) == {
        "broken": "failed", "skipped": "skipped", "quick": "completed", "slow": "completed",
        "eager": "completed",
    }  # fmt: skip
    order = [name for name, state in steps(changes) if state in ("completed", "failed", "skipped")]
    assert order.index("quick") < order.index("eager") < order.index("slow")
    assert order.index("broken") < order.index("skipped")
    assert list(found.watch(after=changes[-1].position)) == []
    assert [one.position for one in found.watch(after=changes[-2].position)] == [changes[-1].position]


def test_a_timeout_of_the_reader_leaves_the_flow_running(twins: Clients) -> None:
    found = twins.do(twins.flows().submit(DIAMOND))
    with pytest.raises(WaitTimeout, match="continue after the last position"):
        watched(twins, found, timeout=timedelta(milliseconds=50))
    assert twins.do(found.status()).state is FlowState.RUNNING


def test_a_missing_flow_is_refused(flows: FlowProducer, redis_client: Any) -> None:
    found = flows.submit(DIAMOND)
    redis_client.flushall()
    with pytest.raises(FlowNotFound):
        next(found.watch())


def test_a_portable_flow_is_watched_and_advanced(
    hand: Hand, run_worker: RunWorker, recorder: type[Record]
) -> None:
    spec = flow(node("a"), node("b", "a", queue="bi"), node("c", "b"))
    ref = hand.run(
        submit_flow(
            "glide", check_flow(spec), "p1", "attach", SystemClock(), reach=Reach(has_functions=False)
        )
    )
    assert ref.path == "portable"
    run_worker(["etl", "bi"], {"work": lambda ctx: ctx.node})
    watch = begin_watch(ref, None, 60_000, SystemClock())
    changes: list[Change] = []
    while not watch.is_over:
        changes += hand.run(next_changes(watch))
    check(spec, changes)
    assert last_states(changes) == dict.fromkeys("abc", "completed")
    assert changes[-1].state == "completed"
