"""Elements that add elements to their own array."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    Handlers,
    JobState,
    Queue,
)

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

LINKS = {"a": ["b", "c"], "b": ["d"], "d": ["e", "f"]}
KEY = "glide:{etl}:gmo:array:x~crawl"


def crawl(pages: list[str], **options: Any) -> FlowSpec:
    array = ArrayNode("crawl", over=pages, **options)
    return FlowSpec("f", [array, FlowNode("after", after=["crawl"])], queue="etl")


def visit(ctx: Context) -> str:
    ctx.flow.append(LINKS.get(ctx.data, []))
    return f"page {ctx.data}"


async def visit_async(ctx: Context) -> str:
    return visit(ctx)


def after(ctx: Context) -> Any:
    return ctx.inputs["crawl"]


def summary(elements: int, completed: int, failed: int = 0) -> dict[str, int]:
    return {"elements": elements, "completed": completed, "failed": failed, "skipped": 0}


@pytest.mark.parametrize("handler", [visit, visit_async, "batch"])
def test_an_array_ends_after_all_that_its_elements_have_added(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any, handler: Any
) -> None:
    handlers = Handlers()
    if handler == "batch":
        handlers.batch_handler("crawl", size=4)(lambda contexts: [visit(ctx) for ctx in contexts])
    else:
        handlers.handler("crawl")(handler)
    handlers.handler("after")(after)
    flow = flows.submit(crawl(["a", "z"]), flow_id="x")
    run_worker(["etl"], handlers)
    outcome = flow.wait(timeout=30)
    assert outcome.results["after"] == outcome.results["crawl"] == summary(7, 7)
    found = flow.array("crawl").results()
    assert [found[0], found[1]] == ["page a", "page z"]
    assert sorted(found.values()) == [f"page {page}" for page in "abcdefz"]
    assert flow.array("crawl").counts().elements == 7
    assert {flow.array("crawl").item(index) for index in range(7)} == set("abcdefz")
    assert flow.node("crawl[6]").state is JobState.COMPLETED
    assert sorted(redis_client.hgetall(f"{KEY}:appended")) == ["2", "3", "4", "5", "6"]


def test_only_the_attempt_that_completes_adds(flows: FlowProducer, run_worker: RunWorker) -> None:
    seen = Counter[str]()

    def flaky(ctx: Context) -> None:
        seen[ctx.data] += 1
        visit(ctx)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    flow = flows.submit(crawl(["a"], attempts=3), flow_id="x")
    run_worker(["etl"], {"crawl": flaky, "after": after})
    assert flow.wait(timeout=30).results["crawl"] == summary(6, 6)
    assert seen == dict.fromkeys("abcdef", 3)


def test_a_retry_keeps_what_was_added_and_a_rerun_begins_anew(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker
) -> None:
    seen = Counter[str]()
    broken = {"f"}

    def act(ctx: Context) -> None:
        seen[ctx.data] += 1
        visit(ctx)
        if ctx.data in broken:
            raise ValueError("broken")

    flow = flows.submit(crawl(["a"]), flow_id="x")
    run_worker(["etl"], {"crawl": act, "after": after})
    assert "1 of 6 elements failed" in flow.wait(timeout=30).failed[0].reason
    broken.clear()
    flow.retry_failed()
    assert flow.wait(timeout=30).results["crawl"] == summary(6, 6)
    assert seen == {**dict.fromkeys("abcde", 1), "f": 2}
    for verb in ("rerun", "restart"):
        seen.clear()
        if verb == "rerun":
            flow.rerun("crawl")
        else:
            flow.restart()
        assert flow.wait(timeout=30).results["crawl"] == summary(6, 6)
        assert seen == dict.fromkeys("abcdef", 1)
    assert queue.counts().elements.waiting == 0


@pytest.mark.parametrize(
    ("over", "items", "reason"),
    [
        (["a"], range(1_001), "can append at most 1,000 items with 1,048,576 characters in all, not 1,002"),
        (
            ["a"],
            ["x" * 600_000, "y" * 600_000],
            "1,000 items with 1,048,576 characters in all, not 3 with 1,200,010",
        ),
        (["a"], [1, object()], "item 1 is not JSON"),
        (["a"], "page.html", "items must be a list, got 'page.html'. Fix: append([...])"),
        (["a"], {"page": 1}, "items must be a list, got {'page': 1}. Fix: append([...])"),
        (range(1), [1], "not an element of an array over a list"),
    ],
)
def test_what_cannot_be_appended_adds_nothing(
    flows: FlowProducer, run_worker: RunWorker, over: Any, items: Any, reason: str
) -> None:
    def act(ctx: Context) -> None:
        ctx.flow.append(["fine"] if over == ["a"] else [])
        ctx.flow.append(items)

    flow = flows.submit(crawl(over), flow_id="x")
    run_worker(["etl"], {"crawl": act, "after": after})
    outcome = flow.wait(timeout=30)
    assert outcome.state is FlowState.FAILED
    assert reason in outcome.failed[0].reason
    assert flow.array("crawl").counts().elements == 1


def test_a_job_that_is_no_element_can_append_nothing(flows: FlowProducer, run_worker: RunWorker) -> None:
    flow = flows.submit(FlowSpec("f", [FlowNode("a")], queue="etl"), flow_id="x")
    run_worker(["etl"], {"a": lambda ctx: ctx.flow.append([1])})
    assert "not an element of an array over a list" in flow.wait(timeout=30).failed[0].reason


def test_the_queue_counts_what_was_added(flows: FlowProducer, queue: Queue, run_worker: RunWorker) -> None:
    counted: list[tuple[int, int]] = []

    def act(ctx: Context) -> None:
        elements = queue.counts().elements
        counted.append((elements.waiting, elements.running))
        visit(ctx)

    flow = flows.submit(crawl(["a"]), flow_id="x")
    run_worker(["etl"], {"crawl": act, "after": after}, concurrency=1)
    flow.wait(timeout=30)
    assert counted[:2] == [(0, 1), (1, 1)]


# --- nodes that add to an array of their flow ---


def grown(**fields: Any) -> FlowSpec:
    """A node that adds, beside the array or before it, and a node after both."""
    before = fields.pop("before", False)
    array = ArrayNode("crawl", **{"over": ["a"]} | fields, after=["find"] if before else [])
    return FlowSpec("f", [FlowNode("find"), array, FlowNode("after", after=["crawl", "find"])], queue="etl")


@pytest.mark.parametrize("as_jobs", [False, True])
@pytest.mark.parametrize("before", [True, False])
def test_a_node_adds_to_an_array(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, *, before: bool, as_jobs: bool
) -> None:
    has_added = threading.Event()

    async def find(ctx: Context) -> str:
        ctx.flow.append(["b", {"c": 1}], to="crawl")
        ctx.flow.append(["d"], to="crawl")
        return "found"

    def crawl_page(ctx: Context) -> Any:
        if not before and ctx.index == 0:
            assert has_added.wait(30), "the array must not end before"
        return ctx.data

    flow = flows.submit(grown(before=before, as_jobs=as_jobs), flow_id="x")
    run_worker(["etl"], {"find": find, "crawl": crawl_page, "after": after}, concurrency=4)
    eventually(lambda: flow.node("find").state is JobState.COMPLETED)
    has_added.set()
    outcome = flow.wait(timeout=30)
    assert (outcome.results["find"], outcome.results["after"]) == ("found", summary(4, 4))
    assert flow.array("crawl").results() == {0: "a", 1: "b", 2: {"c": 1}, 3: "d"}


def test_an_attempt_that_fails_adds_nothing_to_an_array(flows: FlowProducer, run_worker: RunWorker) -> None:
    def find(ctx: Context) -> None:
        ctx.flow.append(["b"], to="crawl")
        if ctx.attempt == 1:
            raise ValueError("again")

    spec = FlowSpec(
        "f",
        [FlowNode("find", attempts=2), ArrayNode("crawl", over=["a"], after=["find"])],
        queue="etl",
    )
    flow = flows.submit(spec, flow_id="x")
    run_worker(["etl"], {"find": find, "crawl": lambda ctx: ctx.data})
    assert flow.result(timeout=30)["crawl"] == summary(2, 2)


@pytest.mark.parametrize(
    ("array", "to", "reason"),
    [
        (ArrayNode("crawl", over=range(3), after=["find"]), "crawl", "array crawl is over a range"),
        (FlowNode("crawl", after=["find"]), "crawl", "node crawl is no array"),
        (ArrayNode("crawl", over=["a"], after=["find"]), "other", "its flow has no node other"),
    ],
)
def test_a_node_that_adds_to_no_array_fails_for_good(
    flows: FlowProducer, run_worker: RunWorker, array: FlowNode, to: str, reason: str
) -> None:
    flow = flows.submit(FlowSpec("f", [FlowNode("find", attempts=3), array], queue="etl"), flow_id="x")
    run_worker(["etl"], {"find": lambda ctx: ctx.flow.append(["b"], to=to)})
    outcome = flow.wait(timeout=30)
    (failed,) = [one for one in outcome.failed if one.name == "find"]
    assert (failed.attempts, reason in failed.reason) == (1, True), failed


def test_an_array_that_has_ended_takes_nothing(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    flow = flows.submit(
        FlowSpec("f", [ArrayNode("crawl", over=["a"]), FlowNode("find", after=["crawl"])], queue="etl"),
        flow_id="x",
    )
    run_worker(
        ["etl"], {"crawl": lambda ctx: ctx.data, "find": lambda ctx: ctx.flow.append(["b"], to="crawl")}
    )
    outcome = flow.wait(timeout=30)
    assert "it cannot add elements: array crawl has ended" in outcome.failed[0].reason
    assert redis_client.exists(f"{KEY}:appended") == 0


def test_an_element_adds_to_its_own_array_only(flows: FlowProducer, run_worker: RunWorker) -> None:
    spec = FlowSpec("f", [ArrayNode("crawl", over=["a"]), ArrayNode("other", over=["a"])], queue="etl")
    flow = flows.submit(spec, flow_id="x")
    run_worker(
        ["etl"], {"crawl": lambda ctx: ctx.flow.append(["b"], to="other"), "other": lambda ctx: ctx.data}
    )
    assert "nothing can be appended here" in flow.wait(timeout=30).failed[0].reason
