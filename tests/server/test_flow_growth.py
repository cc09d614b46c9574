"""Flows that become larger while they run, with real workers around."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, FlowState, chain, map_over, nested
from glidemq_orchestrate._io.aio import AsyncDriver
from glidemq_orchestrate._ops import attempt as attempts
from glidemq_orchestrate._ops import flow_growth
from glidemq_orchestrate._worker_flow import RunningFlow
from glidemq_orchestrate.clock import SystemClock
from glidemq_orchestrate.errors import FlowEnded, NodeExists
from glidemq_orchestrate.keys import QueueKeys
from glidemq_orchestrate.settings import ConnectionSettings

if TYPE_CHECKING:
    from glidemq_orchestrate.job import Attempt
    from tests.conftest import RunWorker
    from tests.server.conftest import Clients, Hand, Record

CLOCK = SystemClock()
LONG = timedelta(seconds=30)
GROWING = QueueKeys("glide", "growing")


def node(name: str, *after: str, queue: str = "etl", data: Any = None) -> FlowNode:
    return FlowNode(name, queue, "work", data, after=after)


def begin(hand: Hand) -> Attempt:
    """Take the next job of the queue whose worker is the test."""
    hand.run(attempts.open_queues([GROWING]))
    while True:
        for queue, job_id, entry_id in hand.run(attempts.fetch([GROWING], "test", 1, 1000, again=False)):
            delivery = attempts.Delivery(queue, job_id, entry_id, "token")
            ((attempt, _),) = hand.run(attempts.activate([delivery], CLOCK.now_ms()))
            return attempt


class TestByANode:
    def test_items_found_while_running_are_worked_on_and_collected(
        self, hand: Hand, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        def work(ctx: Any) -> Any:
            return sorted(ctx.inputs.values()) if ctx.node == "total" else ctx.data * 10

        run_worker(["etl"], {"work": work})
        split, total = node("split", queue="growing"), node("total", "split")
        flow = flows.submit(FlowSpec("n", [split, total]), flow_id="f")
        attempt = begin(hand)
        items = map_over(node("item"), range(230))
        hand.run(flow_growth.add_nodes("glide", attempt, items, ["total"], CLOCK))
        assert flow.status().total == 2
        hand.run(attempts.complete(GROWING, attempt, "5", CLOCK))
        outcome = flow.wait(timeout=LONG)
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 232)
        assert outcome.results["total"] == sorted([5, *(n * 10 for n in range(230))])

    def test_a_retry_repairs_what_was_added_too(
        self, hand: Hand, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        record = recorder("b")
        record.ended.append("split")  # by the test itself
        run_worker(["etl"], {"work": record})
        flow = flows.submit(
            FlowSpec("n", [node("split", queue="growing"), node("end", "split")]), flow_id="f"
        )
        attempt = begin(hand)
        added = [node("a"), node("b", "a")]
        hand.run(flow_growth.add_nodes("glide", attempt, added, ["end"], CLOCK))
        hand.run(attempts.complete(GROWING, attempt, "1", CLOCK))
        outcome = flow.wait(timeout=LONG)
        assert sorted(failed.name for failed in outcome.failed) == ["b", "end"]
        record.broken.clear()
        flow.retry_failed()
        assert flow.wait(timeout=LONG).status.state is FlowState.COMPLETED
        assert record.calls == {"a": 1, "b": 2, "end": 1}


class TestFromAHandler:
    def handle(self, driver: AsyncDriver, attempt: Attempt) -> RunningFlow:
        return RunningFlow(driver.run, asyncio.get_running_loop(), "glide", attempt, CLOCK)

    async def test_a_plain_handler_adds_from_its_thread(
        self, url: str, hand: Hand, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        run_worker(["etl"], {"work": (record := recorder())})
        record.ended.append("split")
        spec = FlowSpec("n", [node("split", queue="growing"), node("end", "split")])
        flow = await asyncio.to_thread(flows.submit, spec, flow_id="f")
        attempt = await asyncio.to_thread(begin, hand)
        driver = AsyncDriver(ConnectionSettings.resolve(url))
        running = self.handle(driver, attempt)
        await asyncio.to_thread(running.map_over, node("n"), [1, 2], before=["end"])
        await asyncio.to_thread(running.map_over, node("m"), [])
        with pytest.raises(NodeExists):
            await asyncio.to_thread(running.add_nodes, [node("end")])
        await driver.run(attempts.complete(GROWING, attempt, "1", CLOCK))
        await driver.aclose()
        outcome = await asyncio.to_thread(flow.wait, timeout=LONG)
        assert set(outcome.results) == {"split", "n[0]", "n[1]", "end"}

    async def test_an_async_handler_awaits(
        self, url: str, hand: Hand, flows: FlowProducer, redis_client: Any
    ) -> None:
        spec = FlowSpec("n", [node("split", queue="growing")])
        await asyncio.to_thread(flows.submit, spec, flow_id="f")
        attempt = await asyncio.to_thread(begin, hand)
        driver = AsyncDriver(ConnectionSettings.resolve(url))
        running = self.handle(driver, attempt)
        with pytest.raises(RuntimeError, match="add_nodes_async"):
            running.add_nodes([node("a")])
        await running.add_nodes_async([node("a")])
        await running.map_over_async(node("n"), [1], collect=node("sum"))
        await driver.run(attempts.complete(GROWING, attempt, "1", CLOCK))
        await driver.aclose()
        assert redis_client.hget("glide:{growing}:gmo:flow:f", "total") == "4"


class TestFromOutside:
    def test_a_flow_is_extended_while_it_runs_and_after(
        self, clients: Clients, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        flows = clients.flows()
        flow = clients.do(flows.submit(FlowSpec("n", [node("a"), node("b", "a")]), flow_id="f"))
        assert clients.do(flow.extend([node("c", "b"), node("d")])) is FlowState.RUNNING
        run_worker(["etl"], {"work": recorder()})
        assert clients.do(flow.wait(timeout=LONG)).status.completed == 4
        assert clients.do(flow.extend([node("e", "c", "d")])) is FlowState.RUNNING
        outcome = clients.do(flow.wait(timeout=LONG))
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 5)
        with pytest.raises(NodeExists, match="a"):
            clients.do(flow.extend([node("a")]))

    def test_a_flow_that_has_failed_is_not_extended(
        self, clients: Clients, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        run_worker(["etl"], {"work": recorder("a")})
        flow = clients.do(clients.flows().submit(FlowSpec("n", [node("a")]), flow_id="f"))
        clients.do(flow.wait(timeout=LONG))
        with pytest.raises(FlowEnded, match="failed"):
            clients.do(flow.extend([node("b")]))

    def test_a_thousand_nodes_are_added_while_the_flow_works(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        flow = flows.submit(FlowSpec("n", [node(f"n{n}") for n in range(100)]), flow_id="f")
        run_worker(["etl"], {"work": recorder()})
        flow.extend([node(f"m{n}", f"n{n % 100}") for n in range(1000)])
        outcome = flow.wait(timeout=timedelta(seconds=60))
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 1100)


def test_nested_flows_run_as_one(flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]) -> None:
    run_worker(["etl"], {"work": recorder()})
    inner = FlowSpec("clean", map_over(node("month", data={}), range(3), collect=node("all")))
    spec = FlowSpec("year", chain(node("extract"), inner, nested(inner, name="again"), node("report")))
    flow = flows.submit(spec, flow_id="f")
    months = [*(f"month[{n}]" for n in range(3)), "all"]
    parts = [f"{part}/{name}" for part in ("clean", "again") for name in months]
    assert set(flow.result(timeout=LONG)) == {"extract", "report", *parts}
