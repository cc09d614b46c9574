"""Arrays whose elements are jobs of their own: for workers in Node, and for options that only jobs have."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    Backoff,
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    Handlers,
    JobState,
    Ordering,
    Queue,
    Skip,
    Suspend,
)
from glidemq_orchestrate.errors import FlowNotFound, InvalidFlow
from glidemq_orchestrate.jobs import Fallback
from tests.node import Node, PlainNode, Taken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Eventually, RunWorker

KEYS = "glide:{q}:gmo:array:x~part"


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("q", url) as made:
        yield made


@pytest.fixture
def node(redis_client: Any) -> Node:
    return Node(redis_client)


def flow_of(**fields: Any) -> FlowSpec:
    options: dict[str, Any] = {"over": range(5), "as_jobs": True} | fields
    array = ArrayNode("part", job="work", **options)
    return FlowSpec("f", [array, FlowNode("after", after=["part"])], queue="q")


def summary(elements: int, completed: int, failed: int = 0, skipped: int = 0) -> dict[str, int]:
    return {"elements": elements, "completed": completed, "failed": failed, "skipped": skipped}


def after(ctx: Context) -> Any:
    return ctx.inputs["part"]


def leftovers(client: Any) -> list[str]:
    """The keys of jobs of elements, and of what held them, but for marks for Node workers that expire."""
    keys = [
        key for key in client.keys("glide:{q}:*") if "{" in key.removeprefix("glide:{q}") or ":jobs" in key
    ]
    return [key for key in keys if not (client.hkeys(key) == ["revoked"] and client.ttl(key) > 0)]


def test_elements_run_as_jobs_and_leave_nothing(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    seen: list[tuple[Any, ...]] = []

    def work(ctx: Context) -> int:
        seen.append((ctx.index, ctx.data["item"], ctx.node, ctx.flow_id, ctx.inputs["first"], ctx.attempt))
        return int(2 * ctx.data["item"])

    array = ArrayNode("part", job="work", over=range(0, 500, 2), as_jobs=True, data={"k": 1}, after=["first"])
    spec = FlowSpec("f", [FlowNode("first"), array, FlowNode("after", after=["part"])], queue="q")
    handle = flows.submit(spec, flow_id="x")
    run_worker(["q"], {"work": work, "first": lambda ctx: 7, "after": after}, concurrency=8)
    assert handle.result(timeout=30)["after"] == summary(250, 250)
    assert sorted(seen) == [(i, 2 * i, "part", "x", 7, 1) for i in range(250)]
    assert handle.array("part").results() == {i: 4 * i for i in range(250)}
    assert leftovers(redis_client) == []
    assert redis_client.zrange("glide:{q}:completed", 0, -1) == ["x~first", "x~part", "x~after"]


def test_workers_in_node_run_elements(
    flows: FlowProducer, node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    handle = flows.submit(flow_of(over=["a", {"b": 1}, 3]), flow_id="x")
    data: list[str] = []

    def work(taken: Taken) -> str:
        data.append(taken.fields["data"])
        return f'"did {len(data)}"'

    node.run(work)
    assert data == ['"a"', '{"b":1}', "3"]
    run_worker(["q"], {"after": after})
    assert handle.result(timeout=30)["after"] == summary(3, 3)
    assert handle.array("part").results() == {0: "did 1", 1: "did 2", 2: "did 3"}
    eventually(lambda: leftovers(node.client) == [])


def test_a_late_end_in_node_of_an_element_that_was_taken_back_changes_nothing(
    flows: FlowProducer, node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    handle = flows.submit(flow_of(over=["a"]), flow_id="x")

    ran: list[str] = []

    def work(taken: Taken) -> str:
        ran.append(taken.id)
        if len(ran) > 1:
            return '"again"'
        handle.cancel("enough")
        assert node.client.hget(f"glide:{{q}}:job:{taken.id}", "revoked") == "1"
        handle.retry_failed()
        return '"late"'

    node.run(work)
    assert ran == ["x~part{0.1}", "x~part{0.2}"]
    run_worker(["q"], {"after": after})
    assert handle.result(timeout=30)["after"] == summary(1, 1)
    assert handle.array("part").results() == {0: "again"}
    eventually(lambda: leftovers(node.client) == [])
    assert node.client.zrange("glide:{q}:completed", 0, -1) == ["x~part", "x~after"]


def test_node_workers_see_the_data_of_the_array_with_the_item_added(flows: FlowProducer, node: Node) -> None:
    flows.submit(flow_of(over=[[1], None], data={"a": {"b": 2}}), flow_id="x")
    data: list[str] = []

    def work(taken: Taken) -> str:
        data.append(taken.fields["data"])
        return "null"

    node.run(work)
    assert data == ['{"a":{"b":2},"item":[1]}', '{"a":{"b":2},"item":null}']


def test_a_failure_in_node_counts_like_any_other(
    flows: FlowProducer, node: Node, run_worker: RunWorker
) -> None:
    handle = flows.submit(flow_of(over=range(3), max_failed=1), flow_id="x")
    for count in range(3):
        taken = node.take()
        assert taken is not None
        if count == 1:
            node.fail(taken, "no")
        else:
            PlainNode(node.client, "q").end(taken.id, taken.entry)
    run_worker(["q"], {"after": after})
    assert handle.result(timeout=30)["after"] == summary(3, 2, 1)
    assert [(one.index, one.reason) for one in handle.array("part").failed()] == [(1, "no")]


def test_elements_of_an_ordering_key_of_their_item_run_in_order(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    order: list[tuple[str, int]] = []
    running, most = Counter[str](), Counter[str]()
    lock = threading.Lock()

    def work(ctx: Context) -> None:
        customer = ctx.data["customer"]
        with lock:
            running[customer] += 1
            most[customer] = max(most[customer], running[customer])
            order.append((customer, ctx.index or 0))
        time.sleep(0.005)
        with lock:
            running[customer] -= 1

    items = [{"customer": "ab"[at % 2], "id": at} for at in range(40)]
    array = flow_of(over=items, ordering=Ordering("customer-{item.customer}"), as_jobs=False)
    handle = flows.submit(array, flow_id="x")
    run_worker(["q"], {"work": work, "after": after}, concurrency=8)
    assert handle.result(timeout=30)["after"] == summary(40, 40)
    assert most == {"a": 1, "b": 1}
    for customer in "ab":
        indexes = [index for name, index in order if name == customer]
        assert indexes == sorted(indexes)
    assert {name for name, _ in order[:4]} == {"a", "b"}


@pytest.mark.parametrize(
    ("over", "key", "named"),
    [
        ([{"a": 1}, {"b": 1}], "{item.a}", "item 1 has no text or number for {item.a}"),
        ([{"a": True}], "{item.a}", "item 0 has no text"),
        (["x", None], "k-{item}", "item 1 has no text"),
        (["x"], "{item", "can contain {item} or {item.field}"),
        (["x"], "{item.a b}", "can contain {item} or {item.field}"),
        (["x" * 300], "{item}", "ordering.key"),
    ],
)
def test_ordering_keys_that_cannot_be_made_are_refused(
    flows: FlowProducer, over: list[Any], key: str, named: str
) -> None:
    with pytest.raises(InvalidFlow, match=re.escape(named)):
        flows.submit(flow_of(over=over, ordering=Ordering(key)), flow_id="x")
    with pytest.raises(FlowNotFound):
        flows.get("x").status()


def test_an_added_element_without_its_ordering_key_fails_alone(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    def work(ctx: Context) -> None:
        if ctx.index == 0:
            ctx.flow.append([{"to": "b"}, {"other": 1}])

    array = flow_of(over=[{"to": "a"}], ordering=Ordering("{item.to}"), max_failed=1)
    handle = flows.submit(array, flow_id="x")
    run_worker(["q"], {"work": work, "after": after})
    assert handle.result(timeout=30)["after"] == summary(3, 2, 1)
    (failed,) = handle.array("part").failed()
    assert (failed.index, "no text or number for item.to" in failed.reason) == (2, True)


def test_retries_skips_and_fallbacks_are_those_of_jobs(flows: FlowProducer, run_worker: RunWorker) -> None:
    calls = Counter[int | None]()

    def work(ctx: Context) -> Any:
        calls[ctx.index] += 1
        if ctx.index == 1:
            raise Skip("not needed")
        if ctx.index == 2 and ctx.attempt < 3:
            raise ValueError("again")
        if ctx.index == 3 and ctx.fallback is None:
            raise ValueError("use the fallback")
        if ctx.index == 4:
            raise ValueError("never")
        return ctx.fallback.model if ctx.fallback else ctx.attempt

    array = flow_of(
        attempts=3, max_failed=1, fallbacks=[Fallback(model="small")], backoff=Backoff(delay=0.01)
    )
    handle = flows.submit(array, flow_id="x")
    run_worker(["q"], {"work": work, "after": after})
    assert handle.result(timeout=30)["after"] == summary(5, 3, 1, 1)
    assert (calls[0], calls[1], calls[4]) == (1, 1, 3)
    assert handle.array("part").results()[3] == "small"
    assert [(one.index, one.reason, one.attempts) for one in handle.array("part").failed()] == [
        (4, "ValueError: never", 3)
    ]
    assert handle.node("part[1]").state is JobState.SKIPPED


def test_a_time_to_live_ends_elements_that_nobody_runs(flows: FlowProducer, run_worker: RunWorker) -> None:
    handle = flows.submit(flow_of(ttl=0.05, over=range(3)), flow_id="x")
    time.sleep(0.1)
    run_worker(["q"], {"work": lambda ctx: ctx.index, "after": after})
    outcome = handle.wait(timeout=30)
    assert outcome.state is FlowState.FAILED
    assert [one.index for one in handle.array("part").failed()] == [0, 1, 2]
    assert "expired" in outcome.failed[0].reason


def test_an_element_waits_for_a_signal_and_for_child_jobs(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Context) -> Any:
        if ctx.index == 0:
            if not ctx.signals:
                raise Suspend("approval")
            return ctx.signals[0]["data"]
        return ctx.index

    handle = flows.submit(flow_of(over=range(2)), flow_id="x")
    run_worker(["q"], {"work": work, "after": after})
    eventually(lambda: handle.node("part[0]").state is JobState.SUSPENDED)
    assert handle.array("part").counts().completed == 1
    assert queue.signal(handle.node("part[0]").job_id, "go", "yes")
    assert handle.result(timeout=30)["after"] == summary(2, 2)
    assert handle.array("part").results() == {0: "yes", 1: 1}


def test_few_are_jobs_at_once(flows: FlowProducer, queue: Queue, redis_client: Any) -> None:
    handle = flows.submit(flow_of(over=range(100_000)), flow_id="x")
    assert redis_client.scard(f"{KEYS}:jobs") == 100
    assert handle.array("part").counts().waiting == 100_000
    assert queue.counts().elements.waiting == 99_900


def test_as_few_are_jobs_as_may_run(flows: FlowProducer, redis_client: Any, run_worker: RunWorker) -> None:
    calls = Counter[str]()
    lock = threading.Lock()

    def work(_ctx: Context) -> None:
        with lock:
            calls["now"] += 1
            calls["most"] = max(calls["most"], calls["now"])
        time.sleep(0.002)
        with lock:
            calls["now"] -= 1

    handle = flows.submit(flow_of(over=range(60), max_running=3), flow_id="x")
    assert redis_client.scard(f"{KEYS}:jobs") == 3
    run_worker(["q"], {"work": work, "after": after}, concurrency=16)
    assert handle.result(timeout=30)["after"] == summary(60, 60)
    assert calls["most"] <= 3


def test_a_cancelled_flow_takes_the_jobs_of_its_elements_back(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any, eventually: Eventually
) -> None:
    started, ended = threading.Event(), threading.Event()

    def work(ctx: Context) -> None:
        started.set()
        ctx.cancelled.wait(30)
        ended.set()

    handle = flows.submit(flow_of(over=range(1_000)), flow_id="x")
    run_worker(["q"], {"work": work, "after": after}, lease=1)
    assert started.wait(30)
    handle.cancel("enough")
    assert handle.wait(timeout=30).state is FlowState.CANCELLED
    assert ended.wait(30)
    eventually(lambda: leftovers(redis_client) == [])
    assert redis_client.xlen("glide:{q}:stream") == 0


def test_the_mark_of_an_earlier_flow_of_the_same_id_does_not_stop_an_element(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    """It was left for a Node worker that ran the job when that flow was cancelled, and expires."""
    earlier = "glide:{q}:job:x~part{0.1}"
    redis_client.hset(earlier, "revoked", "1")
    redis_client.pexpire(earlier, 600_000)
    handle = flows.submit(flow_of(), flow_id="x")
    assert redis_client.ttl(earlier) == -1
    run_worker(["q"], {"work": lambda ctx: ctx.index, "after": after})
    assert handle.result(timeout=30)["after"] == summary(5, 5)


def test_the_failed_elements_alone_run_again(flows: FlowProducer, run_worker: RunWorker) -> None:
    calls, is_broken = Counter[int | None](), threading.Event()
    is_broken.set()

    def work(ctx: Context) -> Any:
        calls[ctx.index] += 1
        if is_broken.is_set() and ctx.index in (1, 3):
            raise ValueError("broken")
        return ctx.index

    handle = flows.submit(flow_of(), flow_id="x")
    run_worker(["q"], {"work": work, "after": after})
    assert handle.wait(timeout=30).state is FlowState.FAILED
    is_broken.clear()
    handle.retry_failed()
    assert handle.result(timeout=30)["after"] == summary(5, 5)
    assert calls == {0: 1, 1: 2, 2: 1, 3: 2, 4: 1}


def test_a_removed_job_of_an_element_fails_it(
    flows: FlowProducer, queue: Queue, redis_client: Any, run_worker: RunWorker
) -> None:
    handle = flows.submit(flow_of(over=range(2), max_failed=1), flow_id="x")
    (job_id,) = [job_id for job_id in redis_client.smembers(f"{KEYS}:jobs") if "{0." in job_id]
    queue.remove(job_id)
    run_worker(["q"], {"work": lambda ctx: ctx.index, "after": after})
    assert handle.result(timeout=90)["after"] == summary(2, 1, 1)


def test_batch_handlers_get_jobs_of_elements_together(flows: FlowProducer, run_worker: RunWorker) -> None:
    handlers, sizes = Handlers(), list[int]()

    @handlers.batch_handler("work", size=16)
    def work(contexts: list[Context]) -> list[Any]:
        sizes.append(len(contexts))
        return [ctx.index for ctx in contexts]

    handlers.handler("after")(after)
    handle = flows.submit(flow_of(over=range(64)), flow_id="x")
    run_worker(["q"], handlers, concurrency=4)
    assert handle.result(timeout=30)["after"] == summary(64, 64)
    assert max(sizes) > 1


def test_a_queue_timeout_is_met_by_a_worker_in_node(
    flows: FlowProducer, node: Node, eventually: Eventually, run_worker: RunWorker
) -> None:
    array = flow_of(over=range(2), queue_timeout=0.2)
    handle = flows.submit(array, flow_id="x")
    first = node.take()
    assert first is not None
    time.sleep(0.3)
    run_worker(["q"], {"work": lambda ctx: ctx.index, "after": after})
    PlainNode(node.client, "q").end(first.id, first.entry)
    assert handle.result(timeout=30)["after"] == summary(2, 2)
