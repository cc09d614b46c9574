"""What holds for flows in queues with shards, on a cluster of several primaries."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from glidemq_orchestrate import (
    ArrayNode,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    Handlers,
    Queue,
    Worker,
)
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    FlowConflict,
    JobFailed,
    ShardsMismatch,
)
from glidemq_orchestrate.shards import SETTLE_MS, add_shards, shard_for, shard_name, split_shard
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.registered import Serving
from glidemq_orchestrate.worker.services import worker
from tests.conftest import RunWorker
from tests.server.connections.topologies import Primaries, running_primaries


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primaries]:
    with running_primaries(tmp_path_factory.mktemp("primaries")) as running:
        yield running


@pytest.fixture
def url(primaries: Primaries) -> str:
    for server in primaries.servers:
        server.client.flushall()
    return primaries.url


@pytest.fixture
def producer(url: str) -> Iterator[FlowProducer]:
    with FlowProducer(url) as producer:
        yield producer


def diamond(**more: Any) -> FlowSpec:
    nodes = [
        FlowNode("a"),
        FlowNode("m", after=["a"], queue="spark"),
        FlowNode("n", after=["a"], data=more.pop("data", None)),
        FlowNode("end", after=["m", "n"], queue="spark"),
    ]
    return FlowSpec("diamond", nodes, queue="etl", **more)


def flow_in(index: int, of: int = 8) -> str:
    """The id of a flow whose shard is this one."""
    return next(name for name in map("flow-{}".format, count()) if shard_for(name, of) == index)


JOBS = ("a", "m", "n", "end")


def shards_of(flow: Any) -> set[int | None]:
    return {split_shard(node.queue)[1] for node in flow.nodes()}


def test_flows_spread_over_all_primaries_each_in_one_shard(
    primaries: Primaries, url: str, producer: FlowProducer, run_worker: RunWorker
) -> None:
    served = {job: lambda ctx: f"{ctx.node}({','.join(sorted(ctx.inputs))})" for job in JOBS}
    run_worker(["etl", "spark"], served, url, shards=8)
    for index in range(8):
        flow = producer.submit(diamond(), flow_id=flow_in(index))
        assert flow.wait(timeout=30).state is FlowState.COMPLETED
        assert shards_of(flow) == {index}
        assert flow.results()["end"] == "end(m,n)"
        assert {split_shard(node.queue)[0] for node in flow.nodes()} == {"etl", "spark"}
    for server in primaries.servers:
        assert server.client.keys("glide:{etl~*}:gmo:flow:*")


def test_a_flow_has_all_that_a_flow_on_one_server_has(
    url: str, producer: FlowProducer, run_worker: RunWorker
) -> None:
    broken = {"n"}

    def work(ctx: Any) -> str:
        if ctx.node == "a":
            added = [FlowNode("more", queue="spark"), FlowNode("last", after=["more"], queue="etl")]
            ctx.flow.add_nodes(added, before=["m"])
        if ctx.node in broken:
            raise ValueError("boom")
        return str(ctx.node)

    names = (*JOBS, "more", "last")
    run_worker(["etl", "spark"], dict.fromkeys(names, work), url, shards=8)
    flow = producer.submit(diamond(), flow_id=flow_in(3))
    assert flow.wait(timeout=30).state is FlowState.FAILED
    assert shards_of(flow) == {3}
    assert producer.submit(diamond(), flow_id=flow.id).status().state is FlowState.FAILED
    with pytest.raises(FlowConflict, match="nodes that differ: n"):
        producer.submit(diamond(data=1), flow_id=flow.id)
    broken.clear()
    plan = producer.plan(diamond(), flow_id=flow.id)
    assert set(plan.runs) == {"n", "end"}
    flow.retry_failed()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    flow.extend([FlowNode("after", after=["end"], job="a", queue="spark")])
    flow.restart(idempotency_key="again")
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    changed = producer.submit(diamond(data=2), flow_id=flow.id, on_existing="retry_failed")
    assert changed.wait(timeout=30).state is FlowState.COMPLETED
    assert shards_of(changed) == {3}
    assert [one.id for one in producer.list()] == [flow.id]


def test_an_array_runs_in_the_shard_of_its_flow(
    url: str, producer: FlowProducer, run_worker: RunWorker
) -> None:
    run_worker(["etl"], {"a": lambda ctx: ctx.index}, url, shards=8)
    spec = FlowSpec("f", [ArrayNode("a", over=range(500))], queue="etl")
    flow = producer.submit(spec, flow_id=flow_in(5))
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert shards_of(flow) == {5}
    assert [result for _, result in flow.array("a").iter_results()] == list(range(500))


def test_a_flow_ends_where_it_began_when_its_queue_gets_more_shards(
    url: str, producer: FlowProducer, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SHARDS_SECONDS", 0.3)
    held = threading.Event()
    handlers: dict[str, Any] = dict.fromkeys(JOBS, lambda ctx: None)
    handlers["a"] = lambda ctx: held.wait(60)
    moved = next(
        name for name in map("flow-{}".format, count()) if shard_for(name, 2) < 2 <= shard_for(name, 8)
    )
    run_worker(["etl", "spark"], handlers, url, shards=2)
    flow = producer.submit(diamond(), flow_id=moved)
    began = shards_of(flow)
    for queue in ("etl", "spark"):
        now_ms = producer._now()
        grown = producer._run(add_shards(QueueKeys("glide", queue), 8, now_ms - SETTLE_MS + 500))
        assert (grown.count(now_ms), grown.count(now_ms + 500)) == (2, 8)
    time.sleep(0.6)
    with FlowProducer(url) as later:
        same = later.submit(diamond(), flow_id=moved)
        assert shards_of(same) == began == {shard_for(moved, 2)}
        new = later.submit(diamond(), flow_id=flow_in(7))
        assert shards_of(new) == {7}
        held.set()
        assert flow.wait(timeout=30).state is FlowState.COMPLETED
        assert new.wait(timeout=60).state is FlowState.COMPLETED  # the worker found the shards


def test_shards_that_could_not_be_reached_at_first_are_served_later(
    url: str, producer: FlowProducer, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SHARDS_SECONDS", 0.3)
    real, failed = workers.open_queues, list[str]()

    def failing(queues: list[QueueKeys]) -> Op[None]:
        (keys,) = queues
        if split_shard(keys.queue)[1] == 1 and not failed:
            failed.append(keys.queue)
            raise ConnectionFailed("its primary is down")
        return real(queues)

    run_worker(["etl"], {"a": lambda ctx: None}, url)
    monkeypatch.setattr(workers, "open_queues", failing)
    producer._run(add_shards(QueueKeys("glide", "etl"), 3, producer._now() - SETTLE_MS))
    spec = FlowSpec("f", [FlowNode("a")], queue="etl")
    for index in range(3):
        flow = producer.submit(spec, flow_id=flow_in(index, of=3))
        assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert failed == [shard_name("etl", 1)]


def test_flows_from_before_the_shards_stay_in_the_queue_itself(
    url: str, producer: FlowProducer, run_worker: RunWorker
) -> None:
    flow = producer.submit(diamond(), flow_id="old")
    for queue in ("etl", "spark"):
        producer._run(add_shards(QueueKeys("glide", queue), 8, producer._now() - SETTLE_MS))
    with FlowProducer(url) as later:
        assert shards_of(later.submit(diamond(), flow_id="old")) == {None}
        assert shards_of(later.submit(diamond(), flow_id=flow_in(6))) == {6}
    run_worker(["etl", "spark"], dict.fromkeys(JOBS, lambda ctx: None), url)
    assert flow.wait(timeout=30).state is FlowState.COMPLETED


def test_a_wrong_number_of_shards_is_named(url: str, producer: FlowProducer) -> None:
    producer.submit(FlowSpec("f", [FlowNode("a")], queue="plain"))
    with pytest.raises(ShardsMismatch, match=r"plain is in use without shards, not 4\. Fix: add shards with"):
        Worker(url, queues=["plain"], shards=4).run()
    producer._run(add_shards(QueueKeys("glide", "etl"), 8, 0))
    with pytest.raises(ShardsMismatch, match=r"etl has 8 shards, not 16\. Fix: add shards with"):
        Worker(url, queues=["etl"], shards=16).run()
    with pytest.raises(ShardsMismatch, match=r"etl has 8 shards, not 4\. Fix: leave the number out"):
        Worker(url, queues=["etl"], shards=4).run()
    with pytest.raises(ShardsMismatch, match="Shards cannot be removed"):
        producer._run(add_shards(QueueKeys("glide", "etl"), 4, 0))
    with pytest.raises(ConfigurationError, match="shards must be a number"):
        Worker(url, queues=["etl"], shards=0)


def test_a_failure_for_want_of_a_worker_names_the_queue_and_not_the_shard(
    url: str, producer: FlowProducer, run_worker: RunWorker
) -> None:
    with Queue("etl", url, shards=8) as queue:
        alone = FlowNode("a", queue_timeout=0.2)
        run_worker(["etl"], {"other": lambda ctx: None}, url, shards=8)
        flow = producer.submit(FlowSpec("f", [alone], queue="etl"), flow_id=flow_in(2))
        (failed,) = flow.wait(timeout=30).failed
        assert failed.reason.startswith("queue timeout: no worker of queue etl began it within 0.2 s")
        job = queue.get_job(queue.add("unknown"))
        assert split_shard(job.queue)[1] is not None
        with pytest.raises(JobFailed, match=r"nor in another live worker of queue etl\. Fix: correct"):
            queue.add_and_wait("unknown", timeout=30)


def test_a_worker_starts_with_the_names_of_its_queues(
    url: str, producer: FlowProducer, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    for queue in ("etl", "spark"):
        producer._run(add_shards(QueueKeys("glide", queue), 8, 0))
    told, handlers = list[Serving](), Handlers()
    handlers.on_start(told.append)
    handlers.handler("a")(lambda ctx: "this")
    run_worker(["etl", "spark"], {"a": lambda ctx: "that"}, url)
    run_worker(["etl", "spark"], handlers, url)
    assert [one.queues for one in told] == [("etl", "spark")]
    lines = [line.getMessage() for line in caplog.records if "has other code for" in line.getMessage()]
    assert [line.partition(":")[0] for line in lines] == ["queue etl", "queue spark"]


def test_a_wait_names_the_queue_and_not_the_shard(url: str, producer: FlowProducer) -> None:
    with Queue("etl", url, shards=8) as queue:
        queue.pause()
        flow = producer.submit(FlowSpec("f", [FlowNode("a")], queue="etl"), flow_id=flow_in(2))
        assert [str(wait) for wait in flow.waits().values()] == [
            "queue etl is paused; glidemq queue resume etl"
        ]
        queue.resume()
        assert [str(wait) for wait in flow.waits().values()] == ["no live worker serves queue etl"]


def test_a_flow_does_not_grow_into_a_queue_without_its_shard(url: str, producer: FlowProducer) -> None:
    for queue, number in (("etl", 8), ("few", 2)):
        producer._run(add_shards(QueueKeys("glide", queue), number, 0))
    flow = producer.submit(FlowSpec("f", [FlowNode("a")], queue="etl"), flow_id=flow_in(5))
    with pytest.raises(ConfigurationError, match=r"few has only 2 shards\. Fix: glidemq queue shards few 6"):
        flow.extend([FlowNode("b", queue="few")])
    assert len(flow.nodes()) == 1
