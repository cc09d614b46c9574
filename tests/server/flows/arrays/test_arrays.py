"""What holds for the elements of array nodes: they run, fail, are retried, stopped and read."""

from __future__ import annotations

import json
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
    RetryLater,
    Skip,
    Worker,
)
from glidemq_orchestrate.errors import ConfigurationError, FlowConflict, NodeNotFound
from glidemq_orchestrate.worker import JobEvent, Middleware
from tests.node import PlainNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Eventually, RunWorker


class Calls:
    """A handler that counts its calls by element, and does what ``act`` does."""

    def __init__(self, act: Callable[[Context], Any] = lambda ctx: ctx.data) -> None:
        self.act, self.counts, self.lock = act, Counter[int](), threading.Lock()
        self.running = self.most = 0

    def __call__(self, ctx: Context) -> Any:
        assert ctx.index is not None
        with self.lock:
            self.counts[ctx.index] += 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return self.act(ctx)
        finally:
            with self.lock:
                self.running -= 1


def flow_of(*nodes: FlowNode) -> FlowSpec:
    return FlowSpec("f", nodes, queue="etl")


def summary(elements: int, completed: int, failed: int = 0, skipped: int = 0) -> dict[str, int]:
    return {"elements": elements, "completed": completed, "failed": failed, "skipped": skipped}


@pytest.mark.parametrize("over", [range(5, 705, 7), [{"k": at, "text": "ä\n"} for at in range(250)]])
def test_every_element_runs_once(flows: FlowProducer, run_worker: RunWorker, over: Any) -> None:
    work = Calls()
    spec = flow_of(ArrayNode("a", over=over, job="work"), FlowNode("report", after=["a"]))
    flow = flows.submit(spec, flow_id="x")
    run_worker(["etl"], {"work": work, "report": lambda ctx: ctx.inputs["a"]})
    outcome = flow.wait(timeout=30)
    assert outcome.state is FlowState.COMPLETED
    assert outcome.results["report"] == summary(len(over), len(over))
    assert work.counts == Counter(range(len(over)))
    assert flow.array("a").results() == dict(enumerate(over))


def test_elements_have_an_index_and_add_their_item_to_the_data(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    seen: list[Any] = []
    node = ArrayNode("a", over=["x", "y"], data={"table": "t"}, after=["first"])
    flow = flows.submit(flow_of(FlowNode("first"), node), flow_id="x")
    run_worker(
        ["etl"],
        {
            "first": lambda _: 7,
            "a": lambda ctx: seen.append((ctx.index, ctx.data, ctx.inputs, ctx.node, ctx.attempt)),
        },
    )
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert sorted(seen) == [
        (0, {"table": "t", "item": "x"}, {"first": 7}, "a", 1),
        (1, {"table": "t", "item": "y"}, {"first": 7}, "a", 1),
    ]


def test_an_async_handler_and_a_batch_handler_run_elements(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    handlers, sizes = Handlers(), Counter[int]()

    @handlers.handler("one")
    async def one(ctx: Context) -> int:
        return int(ctx.data) * 2

    @handlers.batch_handler("many", size=8)
    async def many(contexts: list[Context]) -> list[int]:
        sizes[len(contexts)] += 1
        return [int(ctx.data) * 3 for ctx in contexts]

    spec = flow_of(
        ArrayNode("a", over=range(1_000), job="one"), ArrayNode("b", over=range(1_001), job="many")
    )
    flow = flows.submit(spec, flow_id="x")
    run_worker(["etl"], handlers, concurrency=4)
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert flow.array("a").results() == {at: at * 2 for at in range(1_000)}
    assert flow.array("b").results(500, 503) == {500: 1500, 501: 1503, 502: 1506}
    assert dict(flow.array("b").iter_results(990)) == {at: at * 3 for at in range(990, 1_001)}
    assert sizes == {8: 125, 1: 1}


def test_a_failed_attempt_is_tried_again(flows: FlowProducer, run_worker: RunWorker) -> None:
    def act(ctx: Context) -> int:
        if ctx.index == 3 and ctx.attempt < 3:
            raise ValueError("not yet")
        if ctx.index == 4 and work.counts[4] == 1:
            raise RetryLater(0, counts=False)
        return ctx.attempt

    work = Calls(act)
    flow = flows.submit(flow_of(ArrayNode("a", over=range(10), attempts=3)), flow_id="x")
    run_worker(["etl"], {"a": work})
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert work.counts == Counter(dict.fromkeys(range(10), 1) | {3: 3, 4: 2})
    assert flow.array("a").results(3, 5) == {3: 3, 4: 1}


def test_all_elements_run_before_failures_fail_the_node(flows: FlowProducer, run_worker: RunWorker) -> None:
    def act(ctx: Context) -> int:
        if ctx.index in broken:
            raise ValueError(f"element {ctx.index}\nis broken")
        return 1

    broken = {2, 77}
    work = Calls(act)
    spec = flow_of(ArrayNode("a", over=range(100), attempts=2), FlowNode("b", after=["a"]))
    flow = flows.submit(spec, flow_id="x")
    run_worker(["etl"], {"a": work, "b": lambda ctx: ctx.inputs["a"]})
    outcome = flow.wait(timeout=30)
    assert outcome.state is FlowState.FAILED
    assert outcome.failed[0].name == "a"
    assert "2 of 100 elements failed; element" in outcome.failed[0].reason
    assert flow.array("a").counts().failed == 2
    failed = flow.array("a").failed()
    assert [(one.index, one.reason, one.attempts) for one in failed] == [
        (2, "ValueError: element 2 is broken", 2),
        (77, "ValueError: element 77 is broken", 2),
    ]
    assert flow.node("a[77]").state is JobState.FAILED
    assert flow.node("a[77]").reason == "ValueError: element 77 is broken"
    assert flow.node("a[78]").state is JobState.COMPLETED

    work.counts.clear()
    broken.discard(2)
    flow.retry_failed()
    assert flow.wait(timeout=30).state is FlowState.FAILED
    assert work.counts == Counter({2: 1, 77: 2}), "only the failed elements run, with all their attempts"
    assert [one.index for one in flow.array("a").failed()] == [77]

    broken.clear()
    flow.retry_failed()
    outcome = flow.wait(timeout=30)
    assert outcome.results["b"] == summary(100, 100)
    assert flow.array("a").failed() == []


@pytest.mark.parametrize(("limit", "allowed"), [(3, 3), ("2%", 4), (0, 0), ("0.9%", 1)])
def test_more_failures_than_allowed_stop_the_array(
    flows: FlowProducer, run_worker: RunWorker, limit: Any, allowed: int
) -> None:
    def act(ctx: Context) -> None:
        if allow_failures and (ctx.index or 0) % 2:
            raise ValueError("odd")

    allow_failures = True
    work = Calls(act)
    flow = flows.submit(flow_of(ArrayNode("a", over=range(200), max_failed=limit)), flow_id="x")
    run_worker(["etl"], {"a": work}, concurrency=1)
    outcome = flow.wait(timeout=30)
    assert outcome.state is FlowState.FAILED
    assert f"more than the {allowed} that may" in outcome.failed[0].reason
    assert len(work.counts) < 200
    allow_failures = False
    flow.retry_failed()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert set(work.counts) == set(range(200))


def test_as_many_failures_as_allowed_do_not_fail_the_node(flows: FlowProducer, run_worker: RunWorker) -> None:
    def act(ctx: Context) -> None:
        if ctx.index in (1, 2):
            raise ValueError("broken")
        if ctx.index == 5:
            raise Skip("nothing to do")

    flow = flows.submit(flow_of(ArrayNode("a", over=range(10), max_failed=2)), flow_id="x")
    run_worker(["etl"], {"a": Calls(act)})
    outcome = flow.wait(timeout=30)
    assert outcome.results["a"] == summary(10, 7, failed=2, skipped=1)
    assert flow.node("a[5]").state is JobState.SKIPPED
    assert 5 not in flow.array("a").results()


def test_an_array_whose_elements_were_all_skipped_is_a_skipped_node(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    def act(ctx: Context) -> int:
        if is_skipped:
            raise Skip("nothing to do")
        return 1

    is_skipped = True
    nodes = [
        ArrayNode("a", over=range(10)),
        FlowNode("b", after=["a"]),
        FlowNode("c", after=["a"], rule="none_failed"),
    ]
    flow = flows.submit(flow_of(*nodes), flow_id="x")
    run_worker(["etl"], {"a": Calls(act), "b": lambda _: 1, "c": lambda ctx: sorted(ctx.inputs)})
    assert flow.wait(timeout=30).results == {"c": []}
    assert {node.name: str(node.state) for node in flow.nodes()} == {
        "a": "skipped", "b": "skipped", "c": "completed",
    }  # fmt: skip
    assert flow.node("a").reason == "all 10 elements were skipped"
    assert flow.node("a[3]").state is JobState.SKIPPED
    is_skipped = False
    flow.rerun("a")
    assert flow.wait(timeout=30).results["c"] == ["a"]
    assert flow.array("a").counts().skipped == 0


def test_max_running_limits_the_elements_on_all_workers(flows: FlowProducer, run_worker: RunWorker) -> None:
    work = Calls(lambda _: threading.Event().wait(0.02))
    flow = flows.submit(flow_of(ArrayNode("a", over=range(40), max_running=3)), flow_id="x")
    run_worker(["etl"], {"a": work}, concurrency=8)
    run_worker(["etl"], {"a": work}, concurrency=8)
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert work.most == 3


def test_a_cancel_stops_the_elements_and_a_retry_runs_the_rest(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    def act(ctx: Context) -> None:
        if ctx.index == 50 and not go.is_set():
            started.set()
            ctx.cancelled.wait(20)

    go, started = threading.Event(), threading.Event()
    work = Calls(act)
    flow = flows.submit(flow_of(ArrayNode("a", over=range(100))), flow_id="x")
    run_worker(["etl"], {"a": work}, concurrency=1, lease=2)
    assert started.wait(20)
    flow.cancel("enough")
    assert flow.wait(timeout=30).state is FlowState.CANCELLED
    eventually(lambda: work.running == 0, 20)
    before = flow.array("a").counts()
    assert before.running == 0
    assert before.completed < 100
    go.set()
    flow.retry_failed()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert flow.array("a").counts().completed == 100
    assert sum(work.counts.values()) <= 100 + 51, "those that completed do not run again"


def test_a_rerun_and_a_restart_run_every_element_again(flows: FlowProducer, run_worker: RunWorker) -> None:
    work = Calls(lambda ctx: len(runs))
    runs = [1]
    flow = flows.submit(flow_of(ArrayNode("a", over=list("abc")), FlowNode("b", after=["a"])), flow_id="x")
    run_worker(["etl"], {"a": work, "b": lambda ctx: ctx.inputs})
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    runs.append(2)
    flow.rerun("a", dependents=True)
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert flow.array("a").results() == {0: 2, 1: 2, 2: 2}
    runs.append(3)
    flow.restart()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert flow.array("a").results() == {0: 3, 1: 3, 2: 3}
    assert work.counts == Counter({0: 3, 1: 3, 2: 3})
    assert flow.node("a").attempts == 1


def test_another_array_under_the_same_id_is_refused(flows: FlowProducer) -> None:
    flows.submit(flow_of(ArrayNode("a", over=[1, 2])), flow_id="x")
    flows.submit(flow_of(ArrayNode("a", over=[1, 2])), flow_id="x")
    for other in ([1, 3], range(2), [1, 2, 3]):
        with pytest.raises(FlowConflict):
            flows.submit(flow_of(ArrayNode("a", over=other)), flow_id="x")


def test_a_changed_limit_keeps_what_has_completed_and_changed_elements_do_not(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    def spec(over: Any, limit: int | None = None) -> FlowSpec:
        return flow_of(ArrayNode("a", over=over, max_running=limit), FlowNode("b", after=["a"]))

    flows.submit(spec([1, 2]), flow_id="x")
    with pytest.raises(FlowConflict) as raised:
        flows.submit(spec([1, 3]), flow_id="x")
    assert raised.value.differences == {"a": ("elements",)}
    work = Calls()
    run_worker(["etl"], {"a": work, "b": lambda _: 1})
    assert flows.get("x").wait(timeout=30).state is FlowState.COMPLETED
    assert flows.plan(spec([1, 2], limit=1), flow_id="x").keeps == ["a", "b"]
    plan = flows.plan(spec([1, 3]), flow_id="x")
    assert plan.runs == {"a": "changed: elements", "b": "follows a"}
    flow = flows.submit(spec([1, 3]), flow_id="x", on_existing="retry_failed")
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert flow.array("a").results() == {0: 1, 1: 3}
    assert work.counts == Counter({0: 2, 1: 2})


def test_states_of_elements_while_the_array_runs(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    go = threading.Event()
    node = ArrayNode("a", over=range(3), after=["first"])
    flow = flows.submit(flow_of(FlowNode("first"), node), flow_id="x")
    assert flow.node("a[0]").state is JobState.WAITING_CHILDREN
    worker = run_worker(["etl"], {"first": lambda _: 1, "a": lambda _: go.wait(20)}, concurrency=1)
    del worker
    eventually(lambda: flow.node("a[0]").state is JobState.ACTIVE, 20)
    assert flow.node("a").state is JobState.ACTIVE
    assert flow.node("a[0]").worker is not None
    assert flow.node("a[2]").state is JobState.WAITING
    counts = flow.array("a").counts()
    assert (counts.elements, counts.running, counts.waiting) == (3, 1, 2)
    go.set()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    for wrong in ("a[3]", "b[0]", "a[-1]"):
        with pytest.raises(NodeNotFound):
            flow.node(wrong)
    with pytest.raises(ConfigurationError, match="is not an array"):
        flow.array("first").counts()


def test_a_dependent_reads_the_results_in_parts(flows: FlowProducer, run_worker: RunWorker) -> None:
    handlers = Handlers()

    @handlers.handler("total")
    def total(ctx: Context) -> int:
        size = ctx.inputs["a"]["elements"]
        parts = (ctx.flow.array_results("a", at, at + 1_000) for at in range(0, size, 1_000))
        return sum(sum(part.values()) for part in parts)

    @handlers.handler("some")
    async def some(ctx: Context) -> Any:
        return list((await ctx.flow.array_results_async("a", 5, 8)).items())

    @handlers.handler("a")
    async def element(ctx: Context) -> int:
        return int(ctx.data)

    nodes = (ArrayNode("a", over=range(2_500)), *(FlowNode(name, after=["a"]) for name in ("total", "some")))
    flow = flows.submit(flow_of(*nodes), flow_id="x")
    run_worker(["etl"], handlers)
    results = flow.wait(timeout=30).results
    assert results["total"] == sum(range(2_500))
    assert results["some"] == [[5, 5], [6, 6], [7, 7]]


def test_nothing_of_an_array_outlives_the_retention_of_its_flow(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any, eventually: Eventually
) -> None:
    def act(ctx: Context) -> None:
        if ctx.index in (1, 2):
            raise ValueError("broken")
        if ctx.index == 3:
            raise Skip("nothing to do")

    spec = FlowSpec("f", [ArrayNode("a", over=list(range(50)), attempts=2)], queue="etl", retention=0.2)
    flow = flows.submit(spec, flow_id="x")
    run_worker(["etl"], {"a": Calls(act)})
    ended = flow.wait(timeout=30).state
    eventually(lambda: not [key for key in redis_client.keys("*") if "~a" in key], 30)
    assert redis_client.exists("glide:{etl}:gmo:arrays") == 0
    assert flows.submit(spec, flow_id="x").status().state is ended, "it attaches, as to any expired flow"
    assert not [key for key in redis_client.keys("*") if "~a" in key]


def test_an_array_runs_after_a_node_that_a_node_worker_completes(
    flows: FlowProducer, queue: Queue, redis_client: Any, run_worker: RunWorker
) -> None:
    """glide-mq's own functions would put the job of the array into the queue, as for any node."""
    flow = flows.submit(
        flow_of(FlowNode("first", job="node"), ArrayNode("a", over=range(5), after=["first"])), flow_id="x"
    )
    node = PlainNode(redis_client)
    assert node.run_all() == [flow.node("first").job_id], "the array is nothing that it could run"
    assert flow.node("a").state is JobState.WAITING_CHILDREN, "it waits for the supervisor"
    work = Calls()
    run_worker(["etl"], {"a": work})
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert work.counts == Counter(range(5))
    assert queue.counts()[JobState.WAITING] == 0


def test_a_cancel_reaches_every_element_of_a_batch(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers, started, told = Handlers(), threading.Event(), list[bool]()

    @handlers.batch_handler("a", size=4)
    def many(contexts: list[Context]) -> list[int]:
        started.set()
        told.extend(ctx.cancelled.wait(20) for ctx in reversed(contexts))
        return [1] * len(contexts)

    flow = flows.submit(flow_of(ArrayNode("a", over=range(4))), flow_id="x")
    run_worker(["etl"], handlers, lease=2)
    assert started.wait(20)
    flow.cancel("enough")
    eventually(lambda: told == [True] * 4, 15)


def test_each_element_of_a_slice_that_cannot_run_is_told_to_listeners(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any, eventually: Eventually
) -> None:
    class Listener(Middleware):
        def on_event(self, event: JobEvent) -> None:
            if event.kind != "active":
                ended.append((event.kind, event.job_id, event.index))

    ended: list[Any] = []
    flow = flows.submit(flow_of(ArrayNode("a", over=["x", "y", "z"])), flow_id="x")
    redis_client.delete("glide:{etl}:gmo:array:x~a:items")
    run_worker(["etl"], {"a": Calls()}, middleware=[Listener()])
    outcome = flow.wait(timeout=30)
    assert "3 of 3 elements failed" in outcome.failed[0].reason
    assert "DecodeError" in outcome.failed[0].reason
    eventually(lambda: sorted(ended) == [("failed", "x~a", index) for index in range(3)], 15)


@pytest.mark.parametrize("over", [range(2**53 - 4, 2**53), range(3 - 2**53, -(2**53), -1)])
def test_the_largest_values_of_a_range_are_exact(
    flows: FlowProducer, run_worker: RunWorker, over: range
) -> None:
    arrays = ArrayNode("a", over=over), ArrayNode("b", job="a", over=over, as_jobs=True)
    flow = flows.submit(flow_of(*arrays), flow_id="x")
    run_worker(["etl"], {"a": lambda ctx: str(ctx.data)})
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    for name in "ab":
        assert flow.array(name).results() == {index: str(value) for index, value in enumerate(over)}


def test_a_range_that_cannot_be_read_fails_alone(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    bad = flows.submit(flow_of(ArrayNode("a", over=range(5))), flow_id="bad")
    good = flows.submit(flow_of(ArrayNode("a", over=range(5)), FlowNode("b", job="a")), flow_id="good")
    definition = {"size": 5, "per": 0, "running": 0, "failed": -1, "start": 1e20, "step": 1}
    redis_client.hset("glide:{etl}:job:bad~a", "gmo:array", json.dumps(definition))
    run_worker(["etl"], {"a": lambda ctx: ctx.index})
    assert good.wait(timeout=30).state is FlowState.COMPLETED
    outcome = bad.wait(timeout=30)
    assert "5 of 5 elements failed" in outcome.failed[0].reason
    assert "DecodeError" in outcome.failed[0].reason


def test_a_worker_counts_the_elements_that_it_has_taken(flows: FlowProducer, url: str) -> None:
    """``--max-jobs`` limits what a process may run, and a slice can have a hundred elements."""
    worker = Worker(url, queues=["etl"])
    worker.handler("a")(lambda ctx: ctx.index)
    with worker.running():
        flow = flows.submit(flow_of(ArrayNode("a", over=range(2_000))), flow_id="x")
        assert flow.wait(timeout=30).state is FlowState.COMPLETED
        assert worker.jobs_taken >= 2_000


def test_an_element_cannot_add_nodes(flows: FlowProducer, run_worker: RunWorker) -> None:
    """Of which element they were is not known once its slice has ended."""
    flow = flows.submit(flow_of(ArrayNode("a", over=range(2))), flow_id="x")
    run_worker(["etl"], {"a": lambda ctx: ctx.flow.add_nodes([FlowNode(f"b{ctx.index}", queue="etl")])})
    outcome = flow.wait(timeout=30)
    assert "an element of array a cannot add nodes" in outcome.failed[0].reason
    assert outcome.status.total == 1


def test_a_slice_ends_early_with_large_results(flows: FlowProducer, run_worker: RunWorker) -> None:
    flow = flows.submit(flow_of(ArrayNode("a", over=range(60))), flow_id="x")
    run_worker(["etl"], {"a": lambda _: "x" * 300_000})
    outcome = flow.wait(timeout=60)
    assert outcome.results["a"] == summary(60, 60)
    assert [len(result) for result in flow.array("a").results(0, 60).values()] == [300_000] * 60


@pytest.mark.parametrize("as_jobs", [False, True], ids=["slices", "jobs"])
@pytest.mark.parametrize("is_over", [True, False], ids=["failed", "running"])
def test_all_elements_run_again_after_a_node_that_does(
    flows: FlowProducer, run_worker: RunWorker, *, as_jobs: bool, is_over: bool
) -> None:
    """Those that had completed in a failed or running array, too: their inputs have changed."""
    runs, started = list[int](), threading.Event()

    def first(_: Context) -> int:
        runs.append(len(runs) + 1)
        return runs[-1]

    def work(ctx: Context) -> Any:
        if ctx.index == 3 and ctx.inputs["first"] == 1:
            if is_over:
                raise ValueError("broken")
            started.set()
            ctx.cancelled.wait(30)
        return ctx.inputs["first"]

    array = ArrayNode("a", over=range(6), as_jobs=as_jobs, after=["first"], max_running=1)
    flow = flows.submit(flow_of(FlowNode("first"), array), flow_id="x")
    run_worker(["etl"], {"first": first, "a": work}, lease=1)
    if is_over:
        assert flow.wait(timeout=30).state is FlowState.FAILED
    else:
        assert started.wait(30)
        assert flow.array("a").counts().completed
    flow.rerun("first")
    assert flow.result(timeout=30)["a"] == summary(6, 6)
    assert flow.array("a").results() == dict.fromkeys(range(6), 2)
