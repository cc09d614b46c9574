"""Deadlines, queue timeouts and fail-fast; and what a node's options mean for its place in the queue."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    FlowProducer,
    FlowSpec,
    JobOptions,
    Ordering,
)
from tests.builders import node
from tests.server.policy_work import LONG, Work, reasons, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker


class TestLimits:
    def test_a_deadline_fails_the_flow(self, flows: FlowProducer, work: Work) -> None:
        work.held["slow"] = threading.Event()
        spec = FlowSpec("n", [node("slow"), node("d", "slow")], deadline=timedelta(seconds=1))
        status = flows.submit(spec).wait(timeout=LONG).status
        work.held["slow"].set()
        assert status.state == "failed"
        assert status.reason == "deadline: it has not ended within 1 s"

    def test_a_retry_has_the_whole_time_again(
        self, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        work.held["slow"] = threading.Event()
        spec = FlowSpec("n", [node("slow")], deadline=timedelta(seconds=1))
        flow = flows.submit(spec)
        assert flow.wait(timeout=LONG).status.state == "failed"
        work.held.pop("slow").set()
        flow.retry_failed()
        assert flow.wait(timeout=LONG).status.state == "completed"

    def test_a_queue_without_workers_fails_its_nodes_loudly(self, flows: FlowProducer, work: Work) -> None:
        nodes = [
            node("a", queue="nobody", queue_timeout=timedelta(milliseconds=300)),
            node("b", "a"),
            node("completed.c", "a", rule="one_failed"),
        ]
        flow = flows.submit(FlowSpec("n", [*nodes, *(node(f"x{n}") for n in range(3))]))
        flow.wait(timeout=LONG)
        assert reasons(flow)["a"] == "queue timeout: no worker of queue nobody began it within 0.3 s"
        assert states(flow)["b"] == "failed"
        assert states(flow)["completed.c"] == "completed"

    def test_a_waiting_client_ends_a_flow_without_a_supervisor(self, flows: FlowProducer) -> None:
        nodes = [node("a", queue="nobody"), node("b", "a", queue="nobody")]
        late = flows.submit(FlowSpec("n", nodes, queue_timeout=timedelta(milliseconds=200)))
        assert late.wait(timeout=LONG).status.failed == 2
        slow = flows.submit(FlowSpec("n", nodes, deadline=timedelta(milliseconds=200)))
        assert slow.wait(timeout=LONG).status.reason == "deadline: it has not ended within 0.2 s"

    @pytest.mark.usefixtures("frequent_chores")
    def test_the_flow_has_a_queue_timeout_for_all(
        self, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        """A node that is begun in time is not concerned, however long it runs."""
        work.held["slow"] = threading.Event()
        nodes = [node("slow"), node("a", queue="nobody"), *(node(f"x{n}") for n in range(3))]
        flow = flows.submit(FlowSpec("n", nodes, queue_timeout=timedelta(seconds=2)))
        eventually(lambda: states(flow)["a"] == "failed")
        assert states(flow)["slow"] == "active"
        work.held["slow"].set()
        assert flow.wait(timeout=LONG).status.failed == 1

    def test_fail_fast_ends_the_rest(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
        work.held["slow"] = threading.Event()
        nodes = [node("slow"), node("d", "slow"), node("failed.1", "completed.1"), node("completed.1")]
        flow = flows.submit(FlowSpec("n", nodes, fail_fast=True))
        status = flow.wait(timeout=LONG).status
        work.held["slow"].set()
        assert (status.state, status.reason) == ("failed", "failed.1: broken")
        assert reasons(flow)["d"] == "cancelled: failed.1: broken"

    def test_fail_fast_leaves_ignored_failures_alone(self, flows: FlowProducer, work: Work) -> None:
        nodes = [node("failed.1", on_failure="ignore"), node("completed.1", "failed.1")]
        assert (
            flows.submit(FlowSpec("n", nodes, fail_fast=True)).wait(timeout=LONG).status.state == "completed"
        )


class TestPlaces:
    """What a node's options set for its place in the queue holds when it is released."""

    def test_priority_and_lifo_hold_for_released_nodes(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        ran: list[str] = []
        released = threading.Event()

        def work(ctx: Any) -> None:
            if ctx.node == "root":
                assert released.wait(30)
            ran.append(ctx.node)

        def options(**kw: Any) -> JobOptions:
            return JobOptions(**kw)

        nodes = [
            node("root"),
            node("plain-1", "root"),
            node("plain-2", "root"),
            node("low", "root", options=options(priority=9)),
            node("high", "root", options=options(priority=1)),
            node("lifo", "root", options=options(lifo=True)),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        released.set()
        run_worker(["etl"], {"work": work}, concurrency=1, prefetch=0)
        assert flow.wait(timeout=LONG).status.completed == 6
        assert ran[0] == "root"
        assert ran.index("high") < ran.index("low") < min(ran.index("plain-1"), ran.index("plain-2"))
        assert ran.index("lifo") < min(ran.index("plain-1"), ran.index("plain-2"))

    def test_the_flow_has_a_priority_for_all(self, flows: FlowProducer, run_worker: RunWorker) -> None:
        ran: list[str] = []

        def work(ctx: Any) -> None:
            ran.append(ctx.node)

        flows.submit(FlowSpec("low", [node(f"low{n}") for n in range(3)], priority=9))
        last = flows.submit(FlowSpec("none", [node(f"none{n}") for n in range(3)]))
        flows.submit(FlowSpec("high", [node(f"high{n}") for n in range(3)], priority=2))
        run_worker(["etl"], {"work": work}, concurrency=1, prefetch=0)
        last.wait(timeout=LONG)
        assert [name.rstrip("012") for name in ran] == ["high"] * 3 + ["low"] * 3 + ["none"] * 3

    def test_a_time_to_live_counts_from_the_release(self, flows: FlowProducer, work: Work) -> None:
        late = JobOptions(ttl=timedelta(seconds=30), delay=timedelta(milliseconds=150))
        nodes = [
            node("a", options=late),
            node(
                "b",
                "a",
                options=JobOptions(ttl=timedelta(milliseconds=100), delay=timedelta(milliseconds=400)),
            ),
            node("c", "a", options=JobOptions(ttl=timedelta(seconds=30))),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow) == {"a": "completed", "b": "failed", "c": "completed"}
        assert reasons(flow)["b"] == "expired"

    def test_a_concurrency_key_limits_nodes_of_all_flows(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        running, most, lock = [0], [0], threading.Lock()

        def work(ctx: Any) -> None:
            if ctx.node == "root":
                return
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.02)
            with lock:
                running[0] -= 1

        run_worker(["etl"], {"work": work}, concurrency=8)
        two = JobOptions(ordering=Ordering("warehouse", concurrency=2))
        made = [
            flows.submit(
                FlowSpec("n", [node("root"), *(node(f"d{n}", "root", options=two) for n in range(10))])
            )
            for _ in range(3)
        ]
        assert [flow.wait(timeout=LONG).status.completed for flow in made] == [11] * 3
        assert most[0] == 2

    def test_a_slot_of_a_cancelled_node_is_free_again(
        self, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        one = JobOptions(ordering=Ordering("warehouse"))
        work.held["a"] = threading.Event()
        first = flows.submit(FlowSpec("n", [node("a", options=one)]))
        eventually(lambda: work.ran == ["a"])
        second = flows.submit(FlowSpec("n", [node("b", options=one)]))
        third = flows.submit(FlowSpec("n", [node("c", options=one), node("d", "c", options=one)]))
        second.cancel("not needed")
        first.cancel("not needed")
        assert third.wait(timeout=LONG).status.completed == 2
        work.held["a"].set()
        first.retry_failed()
        second.retry_failed()
        assert first.wait(timeout=LONG).status.completed == 1
        assert second.wait(timeout=LONG).status.completed == 1

    def test_cancelled_nodes_leave_the_lists(self, flows: FlowProducer, url: str, redis_client: Any) -> None:
        nodes = [
            node(f"{kind}{n}", options=options)
            for n in range(5)
            for kind, options in {
                "lifo": JobOptions(lifo=True),
                "priority": JobOptions(priority=3),
                "delay": JobOptions(delay=timedelta(hours=1)),
                "key": JobOptions(ordering=Ordering("k")),
                "plain": JobOptions(),
            }.items()
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.cancel("not needed")
        flow.wait(timeout=LONG)
        base = "glide:{etl}:"
        assert redis_client.exists(*(base + key for key in ("lifo", "priority", "scheduled"))) == 0
        assert redis_client.xlen(base + "stream") == 0
