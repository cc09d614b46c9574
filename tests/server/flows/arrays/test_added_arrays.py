"""Arrays that a running node adds to its flow, with a real worker around."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, FlowState, Handlers
from glidemq_orchestrate.flows import map_over

if TYPE_CHECKING:
    from tests.conftest import RunWorker


def flow_of(*nodes: FlowNode) -> FlowSpec:
    return FlowSpec("f", nodes, queue="etl")


SPLIT = flow_of(FlowNode("split"), FlowNode("total", after=["split"]))
ITEM = FlowNode("item", queue="etl", data={"k": 1}, attempts=2)


async def total(ctx: Context) -> Any:
    """What it is given of the array, and what it reads of it."""
    results = await ctx.flow.array_results_async("item") if "item" in ctx.inputs else {}
    return [{name: value for name, value in ctx.inputs.items() if name != "split"}, list(results.items())]


def all_of(count: int) -> dict[str, int]:
    return {"elements": count, "completed": count, "failed": 0, "skipped": 0}


def test_a_node_maps_over_what_it_found_as_an_array(flows: FlowProducer, run_worker: RunWorker) -> None:
    handlers = Handlers()
    handlers.handler("total")(total)

    @handlers.handler("split")
    async def split(ctx: Context) -> None:
        report = FlowNode("report", queue="etl", job="total")
        await ctx.flow.map_over_async(ITEM, iter("abc"), collect=report, array=True, before=["total"])

    @handlers.handler("item")
    def item(ctx: Context) -> Any:
        return [ctx.index, ctx.data]

    flow = flows.submit(SPLIT, flow_id="x")
    run_worker(["etl"], handlers)
    outcome = flow.wait(timeout=30)
    assert (outcome.state, outcome.status.total) == (FlowState.COMPLETED, 4)
    found = [[at, [at, {"k": 1, "item": letter}]] for at, letter in enumerate("abc")]
    assert outcome.results["report"] == [{"item": all_of(3)}, found]
    assert outcome.results["total"] == [{"report": outcome.results["report"]}, []]
    assert flow.node("item[2]").state == "completed"


def test_a_map_over_nothing_adds_only_its_collector(flows: FlowProducer, run_worker: RunWorker) -> None:
    def split(ctx: Context) -> None:
        ctx.flow.map_over(ITEM, [], array=True)
        ctx.flow.map_over(ITEM, [], collect=FlowNode("report", queue="etl", job="total"), array=True)

    flow = flows.submit(SPLIT, flow_id="x")
    run_worker(["etl"], {"split": split, "total": total})
    assert set(flow.wait(timeout=30).results) == {"split", "report", "total"}


def test_failed_elements_of_an_added_array_run_again_alone(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    counts, broken = Counter[int](), {7}

    def split(ctx: Context) -> None:
        ctx.flow.map_over(ITEM, range(20), before=["total"], array=True)

    def item(ctx: Context) -> int:
        counts[ctx.data["item"]] += 1
        if ctx.data["item"] in broken:
            raise ValueError("broken")
        return 1

    flow = flows.submit(SPLIT, flow_id="x")
    run_worker(["etl"], {"split": split, "item": item, "total": total})
    assert {failed.name for failed in flow.wait(timeout=30).failed} == {"item", "total"}
    broken.clear()
    flow.retry_failed()
    outcome = flow.wait(timeout=30)
    assert outcome.results["total"][0] == {"item": all_of(20)}
    assert counts == Counter({at: 3 if at == 7 else 1 for at in range(20)})
    flow.restart()
    assert flow.wait(timeout=30).status.total == 3, "the new generation has only what its own run adds"
    assert counts == Counter({at: 4 if at == 7 else 2 for at in range(20)})


def test_an_array_that_was_added_from_outside_stays(flows: FlowProducer, run_worker: RunWorker) -> None:
    ran = Counter[str]()

    def work(ctx: Context) -> Any:
        ran[str(ctx.node)] += 1
        return ctx.data

    flow = flows.submit(flow_of(FlowNode("a")), flow_id="x")
    run_worker(["etl"], {"a": work, "item": work})
    flow.extend(map_over(FlowNode("item", queue="etl", after=["a"]), [*"abcde"], array=True))
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    flow.restart()
    assert set(flow.wait(timeout=30).results) == {"a", "item"}
    assert flow.array("item").results() == dict(enumerate("abcde"))
    assert ran == {"a": 2, "item": 10}
