"""Flows that become larger while they run, with real workers around."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, FlowState, JobOptions
from glidemq_orchestrate.errors import FlowEnded, NodeExists
from glidemq_orchestrate.flows import chain, map_over, nested
from tests.builders import node

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Clients, Record

LONG = timedelta(seconds=30)


class TestByANode:
    def test_items_found_while_running_are_worked_on_and_collected(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        def work(ctx: Any) -> Any:
            if ctx.node == "split":
                ctx.flow.map_over(node("item"), range(230), before=["total"])
                ctx.flow.map_over(node("none"), [])
                return 5
            return sorted(ctx.inputs.values()) if ctx.node == "total" else ctx.data * 10

        flow = flows.submit(FlowSpec("n", [node("split"), node("total", "split")]), flow_id="f")
        assert flow.status().total == 2
        assert flow.leaves() == ["total"]
        run_worker(["etl"], {"work": work})
        outcome = flow.wait(timeout=LONG)
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 232)
        assert outcome.results["total"] == sorted([5, *(n * 10 for n in range(230))])
        assert flow.leaves() == ["total"]

    def test_an_async_handler_awaits(self, flows: FlowProducer, run_worker: RunWorker) -> None:
        errors: list[str] = []

        async def work(ctx: Any) -> Any:
            if ctx.node == "split":
                try:
                    ctx.flow.add_nodes([node("a")])
                except RuntimeError as exc:
                    errors.append(str(exc))
                await ctx.flow.add_nodes_async([node("a")])
                await ctx.flow.map_over_async(node("n"), [1, 2], collect=node("sum"))
            return sorted(ctx.inputs)

        flow = flows.submit(FlowSpec("n", [node("split")]), flow_id="f")
        run_worker(["etl"], {"work": work})
        results = flow.result(timeout=LONG)
        assert set(results) == {"split", "a", "n[0]", "n[1]", "sum"}
        assert results["sum"] == ["n[0]", "n[1]"]
        assert "add_nodes_async" in errors[0]

    def test_an_async_handler_that_forgets_to_await_fails(
        self, flows: FlowProducer, run_worker: RunWorker, subtests: pytest.Subtests
    ) -> None:
        async def work(ctx: Any) -> None:
            if ctx.data == "map_over_async":
                ctx.flow.map_over_async(node("n"), [1, 2])
            else:
                ctx.flow.add_nodes_async([node("a")])

        run_worker(["etl"], {"work": work})
        for name in ("map_over_async", "add_nodes_async"):
            with subtests.test(name):
                split = FlowNode("split", queue="etl", job="work", data=name, options=JobOptions(attempts=2))
                outcome = flows.submit(FlowSpec("n", [split])).wait(timeout=LONG)
                (failed,) = outcome.failed
                assert failed.reason.endswith(
                    f"an await is missing before ctx.flow.{name}(...): it added nothing"
                )
                assert outcome.status.total == 1

    def test_what_a_failed_attempt_has_added_is_dropped_with_it(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        def work(ctx: Any) -> None:
            if ctx.node == "split":
                ctx.flow.add_nodes([node(f"by attempt {ctx.attempt}")])
                if ctx.attempt == 1:
                    raise ValueError

        split = FlowNode("split", queue="etl", job="work", options=JobOptions(attempts=2))
        flow = flows.submit(FlowSpec("n", [split]), flow_id="f")
        run_worker(["etl"], {"work": work})
        assert set(flow.result(timeout=LONG)) == {"split", "by attempt 2"}

    def test_a_node_that_cannot_be_added_is_an_error_in_the_handler(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        def work(ctx: Any) -> Any:
            if ctx.node == "end":
                return 1
            try:
                ctx.flow.add_nodes([node("end")])
            except NodeExists as exc:
                return type(exc).__name__

        spec = FlowSpec("n", [node("split"), node("end", "split")])
        flow = flows.submit(spec, flow_id="f")
        run_worker(["etl"], {"work": work})
        assert flow.result(timeout=LONG)["split"] == "NodeExists"

    def test_a_retry_repairs_what_was_added_too(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        record = recorder("b")

        def work(ctx: Any) -> Any:
            if ctx.node == "split":
                ctx.flow.add_nodes([node("a"), node("b", "a")], before=["end"])
            return record(ctx)

        flow = flows.submit(FlowSpec("n", [node("split"), node("end", "split")]), flow_id="f")
        run_worker(["etl"], {"work": work})
        outcome = flow.wait(timeout=LONG)
        assert sorted(failed.name for failed in outcome.failed) == ["b", "end"]
        record.broken.clear()
        flow.retry_failed()
        assert flow.wait(timeout=LONG).status.state is FlowState.COMPLETED
        assert record.calls == {"split": 1, "a": 1, "b": 2, "end": 1}


class TestFromOutside:
    def test_a_flow_is_extended_while_it_runs_and_after(
        self, clients: Clients, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        flows = clients.flows()
        flow = flows.submit(FlowSpec("n", [node("a"), node("b", "a")]), flow_id="f")
        assert flow.extend([node("c", "b"), node("d")]) is FlowState.RUNNING
        run_worker(["etl"], {"work": recorder()})
        assert flow.wait(timeout=LONG).status.completed == 4
        assert flow.extend([node("e", "c", "d")]) is FlowState.RUNNING
        outcome = flow.wait(timeout=LONG)
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 5)
        with pytest.raises(NodeExists, match="a"):
            flow.extend([node("a")])

    def test_a_flow_that_has_failed_is_not_extended(
        self, clients: Clients, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        run_worker(["etl"], {"work": recorder("a")})
        flow = clients.flows().submit(FlowSpec("n", [node("a")]), flow_id="f")
        flow.wait(timeout=LONG)
        with pytest.raises(FlowEnded, match="failed"):
            flow.extend([node("b")])

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
