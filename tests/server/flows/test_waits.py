"""Why nodes wait, and until when; both paths."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Backoff,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Ordering,
    Queue,
    RateLimit,
    RetryLater,
    Suspend,
)
from tests.builders import node

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

pytestmark = pytest.mark.usefixtures("path")

MINUTE = timedelta(minutes=1)


def in_seconds(at: datetime | None) -> float:
    assert at is not None
    return (at - datetime.now(UTC)).total_seconds()


def test_each_says_what_it_waits_for_and_until_when(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    held = threading.Event()

    def fails(ctx: Any) -> None:
        raise ValueError("month 13 does not exist")

    def later(ctx: Any) -> None:
        raise RetryLater(MINUTE, "the warehouse is closed", counts=False)

    def asks(ctx: Any) -> None:
        raise Suspend("approve it", timeout=MINUTE)

    def holds(ctx: Any) -> None:
        assert held.wait(30)

    handlers = {"fails": fails, "later": later, "asks": asks, "holds": holds, "ends": lambda ctx: 1}
    run_worker(["etl"], handlers)
    retried: dict[str, Any] = {"options": JobOptions(attempts=3, backoff=Backoff("fixed", MINUTE * 5))}
    nodes = [
        node("fails", job="fails", **retried),
        node("later", job="later"),
        node("asks", job="asks"),
        node("delayed", job="holds", options=JobOptions(delay=MINUTE)),
        node("ends", job="ends"),
        node("delayed too", "ends", job="ends", options=JobOptions(delay=MINUTE)),
        node("after", "fails"),
        node("after too", "fails", options=JobOptions(delay=MINUTE)),
        node("unserved", queue="nobody"),
    ]
    flow = flows.submit(FlowSpec("n", nodes))
    expected = {
        "fails": "for its next attempt (attempt 1 of 3 failed: ValueError: month 13 does not exist)",
        "later": "its handler requested another attempt then",
        "asks": "for a signal: approve it",
        "unserved": "no live worker serves queue nobody",
        "delayed": "its delay",
        "delayed too": "its delay",
    }

    def told() -> dict[str, str]:
        return {name: one.reason for name, one in flow.waits().items()}

    eventually(lambda: told() == expected)
    found = flow.waits()
    assert 200 < in_seconds(found["fails"].until) <= 301
    assert 30 < in_seconds(found["later"].until) <= 61
    assert 30 < in_seconds(found["asks"].until) <= 61
    assert 30 < in_seconds(found["delayed"].until) <= 61
    assert 30 < in_seconds(found["delayed too"].until) <= 61
    assert found["unserved"].until is None
    assert str(found["fails"]).startswith("until ")
    held.set()


def test_of_those_that_only_lack_a_worker_all_are_told(flows: FlowProducer) -> None:
    nodes = [node(f"n{number}", options=JobOptions(priority=number % 3)) for number in range(120)]
    flow = flows.submit(FlowSpec("n", [*nodes, node("last", queue="nobody")]))
    found = flow.waits()
    reasons = {name: (one.reason, one.until, one.is_turn) for name, one in found.items()}
    assert len(reasons) == 121
    assert {reasons[one.name] for one in nodes} == {("no live worker serves queue etl", None, False)}
    assert reasons["last"][0] == "no live worker serves queue nobody"


def test_a_rate_limit_of_the_queue_says_until_when(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, queue: Queue
) -> None:
    queue.set_global_rate_limit(RateLimit(1, MINUTE))
    run_worker(["etl"], {"ends": lambda _ctx: 1})
    flow = flows.submit(FlowSpec("n", [node(name, job="ends") for name in ("a", "b")]))
    eventually(lambda: sorted(map(str, (one.state for one in flow.nodes()))) == ["completed", "waiting"], 20)
    (wait,) = flow.waits().values()
    assert wait.reason == "for the rate limit of queue etl (at most 1 start in 60 s)"
    assert 20 < in_seconds(wait.until) <= 61
    assert wait.is_turn
    flow.cancel()


def test_a_node_that_workers_give_back_waits_for_a_handler(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, queue: Queue
) -> None:
    run_worker(["etl"], {"other": lambda _ctx: 1})
    eventually(queue.workers, 10)
    spec = FlowSpec("n", [node("a", job="missing")], queue_timeout=MINUTE)
    flow = flows.submit(spec, require_workers=False)
    eventually(lambda: flow.node("a").state == "delayed", 20)
    (wait,) = flow.waits().values()
    assert str(wait) == "no live worker of queue etl has a handler for missing"
    flow.cancel()


def test_what_keeps_a_queue_or_an_ordering_key_from_going_on(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, queue: Queue, path: str
) -> None:
    held = threading.Event()

    def holds(ctx: Any) -> None:
        assert held.wait(30)

    run_worker(["etl"], {"holds": holds}, concurrency=2)
    if path == "staged":
        order: dict[str, Any] = {"options": JobOptions(ordering=Ordering("k"))}
        flow = flows.submit(FlowSpec("n", [node(name, job="holds", **order) for name in ("a", "b")]))
        wanted = "for a slot of its ordering key k: jobs before it run or wait"
        eventually(lambda: [one.reason for one in flow.waits().values()] == [wanted])
        held.set()
        flow.wait(timeout=MINUTE)
    queue.pause()
    flow = flows.submit(FlowSpec("n", [node("c", job="holds"), node("d", job="other")]))
    paused = "queue etl is paused; glidemq queue resume etl"
    assert {one.reason for one in flow.waits().values()} == {paused}
    flow.cancel()
    held.set()
