"""Flows on a cluster whose queues are in one slot go the full path; no call leaves the slot."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from glidemq_orchestrate import FlowProducer, FlowSpec, FlowState, JobOptions, Queue
from glidemq_orchestrate.errors import ConfigurationError, FlowConflict, FlowNotFound, Superseded
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.index import sweep
from glidemq_orchestrate.wire.keys import QueueKeys, slot_of
from tests.builders import slot_node
from tests.conftest import Eventually, RunWorker
from tests.server.connections.topologies import Primaries, running_primaries

LONG = timedelta(seconds=30)
NEAR = next(name for name in map("near-{}".format, count()) if key_slot(name.encode()) == key_slot(b"b"))


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primaries]:
    with running_primaries(tmp_path_factory.mktemp("primaries")) as running:
        yield running


@pytest.fixture
def url(primaries: Primaries) -> str:
    for server in primaries.servers:
        server.client.flushall()
    return primaries.url


DIAMOND = [
    slot_node("a"),
    slot_node("m", "a", queue=NEAR),
    slot_node("n", "a"),
    slot_node("end", "m", "n", queue=NEAR),
]


def keys(primaries: Primaries) -> set[str]:
    return {str(key) for server in primaries.servers for key in server.client.keys("*")}


def test_slots_are_those_of_the_server() -> None:
    for key in ("b", "{b}", "glide:{b}:id", "{}x", "a{}{b}", "{", "x}{y}", "é", "glide:{é}:id"):
        assert slot_of(key) == key_slot(key.encode()), key


def test_the_path_follows_from_the_slots_of_the_queues() -> None:
    cluster = Reach(is_cluster=True)
    assert cluster.path("glide", ["b"]) == cluster.path("glide", ["b", NEAR]) == "staged"
    assert cluster.path("glide", ["b", "c"]) == "portable"
    assert Reach().path("glide", ["b", "c"]) == "staged"
    assert Reach(has_functions=False).path("glide", ["b"]) == "portable"


def test_a_flow_in_one_slot_has_all_that_a_flow_on_one_server_has(
    primaries: Primaries, url: str, run_worker: RunWorker
) -> None:
    ran = Counter[str]()
    broken = {"n"}

    def work(ctx: Any) -> str:
        ran[ctx.node] += 1
        if ctx.node == "a":
            added = [slot_node("more", queue=NEAR), slot_node("last", "more")]
            ctx.flow.add_nodes(added, before=["m"])
        if ctx.node in broken:
            raise ValueError("boom")
        return f"{ctx.node}({','.join(sorted(ctx.inputs))})"

    run_worker(["b", NEAR], {"work": work}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", DIAMOND, labels={"dag": "d"}), flow_id="f")
        assert "glide:{b}:gmo:flow:f" in keys(primaries) or f"glide:{{{NEAR}}}:gmo:flow:f" in keys(primaries)
        assert flow.wait(timeout=LONG).status.state is FlowState.FAILED
        broken.clear()
        flow.retry_failed()
        results = flow.result(timeout=LONG)
        assert results["end"] == "end(m,n)"
        assert results["m"] == "m(a,last)"
        assert ran == {"a": 1, "m": 1, "n": 2, "end": 2 - 1, "more": 1, "last": 1}
        assert flow.extend([slot_node("late", "end")]) is FlowState.RUNNING
        assert flow.result(timeout=LONG)["late"] == "late(end)"
        flow.restart()
        assert len(flow.result(timeout=LONG)) == 7
        assert flow.status().generation == 1
        assert [one.id for one in flows.list(label=("dag", "d"))] == ["f"]
        assert flows.get("f").id == "f"
        flows.submit(FlowSpec("n", DIAMOND, labels={"dag": "d"}), flow_id="f")
        with pytest.raises(FlowConflict):
            flows.submit(FlowSpec("n", [slot_node("a"), slot_node("b", queue="c")]), flow_id="f")
        with pytest.raises(FlowConflict):
            flows.submit(FlowSpec("n", [slot_node("a", queue="c")]), flow_id="f")


def test_a_large_flow_in_one_slot_runs_in_order(url: str, run_worker: RunWorker) -> None:
    nodes = [slot_node("first"), *(slot_node(f"n{n}", "first", queue=("b", NEAR)[n % 2]) for n in range(700))]
    nodes.append(slot_node("last", *(f"n{n}" for n in range(700)), queue=NEAR))
    run_worker(["b", NEAR], {"work": lambda ctx: len(ctx.inputs)}, url=url, concurrency=32)
    with FlowProducer(url) as flows:
        results = flows.submit(FlowSpec("n", nodes), flow_id="f").result(timeout=LONG)
    assert (results["last"], results["n7"], len(results)) == (700, 1, 702)


def test_a_cancel_and_a_deadline_end_it(url: str, run_worker: RunWorker) -> None:
    started = threading.Event()

    def work(ctx: Any) -> None:
        started.set()
        ctx.cancelled.wait(20)

    run_worker(["b", NEAR], {"work": work}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", DIAMOND), flow_id="f")
        assert started.wait(10)
        flow.cancel("enough")
        assert flow.wait(timeout=LONG).status.state is FlowState.CANCELLED
        late = flows.submit(FlowSpec("n", DIAMOND, deadline=timedelta(milliseconds=300)), flow_id="g")
        assert late.wait(timeout=LONG).status.state is FlowState.FAILED


def test_after_its_retention_a_tombstone_is_left_and_then_nothing(
    primaries: Primaries, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["b", NEAR], {"work": lambda ctx: 1}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", DIAMOND, retention=timedelta(0)), flow_id="f")
        eventually(lambda: not [key for key in keys(primaries) if ":job:" in key], timeout=20)
        assert flow.status().state is FlowState.COMPLETED
        home = next(server.client for server in primaries.servers if _has(server, "glide:gmo:home:{f}"))
        eventually(lambda: home.ttl("glide:gmo:home:{f}") > 29 * 86400, timeout=10)


def _has(server: Any, key: str) -> bool:
    return key in server.client.keys("*")


def test_a_job_outside_the_flow_is_a_conflict_and_frees_the_id(primaries: Primaries, url: str) -> None:
    with Queue(NEAR, url) as queue, FlowProducer(url) as flows:
        queue.add("work", options=JobOptions(job_id="f~m"))
        with pytest.raises(FlowConflict):
            flows.submit(FlowSpec("n", DIAMOND), flow_id="f")
        with pytest.raises(FlowNotFound):
            flows.get("f")
        assert not [key for key in keys(primaries) if "home" in key or ":gmo:flow" in key]
        assert flows.submit(FlowSpec("n", [slot_node("x", queue="c")]), flow_id="f").home == "c"


def test_an_abandoned_submission_is_swept_with_its_claim(primaries: Primaries, url: str) -> None:
    class Later:
        def now_ms(self) -> int:
            return 10**13

        def monotonic_ms(self) -> int:
            return self.now_ms()

    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", DIAMOND), flow_id="f")
        home = QueueKeys("glide", flow.home)
        client = primaries.owner(flow.home).client
        client.hset(home.flow("f"), "state", "staging")
        client.zadd(home.key("gmo:staging"), {"f": 1})
        flows._run(sweep([home], Later()))
        assert not [key for key in keys(primaries) if "home" in key or ":gmo:flow" in key]


def test_a_flow_across_slots_accepts_no_more_nodes_and_reports_it(url: str, run_worker: RunWorker) -> None:
    run_worker(["b", "c"], {"work": lambda ctx: 1}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", [slot_node("a"), slot_node("m", "a", queue="c")]), flow_id="f")
        with pytest.raises(ConfigurationError, match="several slots"):
            flow.extend([slot_node("late", "m")])
        assert len(flow.result(timeout=LONG)) == 2


def test_a_flow_in_one_slot_does_not_grow_into_another(url: str, run_worker: RunWorker) -> None:
    message = r"node far cannot be added: its queue c is not in the slot of its flow in the cluster. Fix: "
    refused = list[str]()

    def work(ctx: Any) -> None:
        for nodes in (
            [slot_node("far", queue="c")],
            [slot_node("next"), slot_node("far", "next", queue="c")],
        ):
            with pytest.raises(ConfigurationError, match=message) as caught:
                ctx.flow.add_nodes(nodes)
            refused.append(str(caught.value))

    run_worker(["b"], {"work": work}, url=url)
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("n", [slot_node("a")]), flow_id="f")
        assert flow.wait(timeout=LONG).state is FlowState.COMPLETED
        with pytest.raises(ConfigurationError, match=message):
            flow.extend([slot_node("far", "a", queue="c")])
        assert len(refused) == 2
        assert [node.name for node in flow.nodes()] == ["a"]


def test_a_flow_across_slots_has_generations(
    primaries: Primaries, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    ran = Counter[str]()
    broken = {"n"}

    def work(ctx: Any) -> str:
        ran[ctx.node] += 1
        if ctx.node in broken:
            raise ValueError("boom")
        return f"{ctx.node}({','.join(sorted(ctx.inputs))})/{ctx.generation}"

    run_worker(["b", "c", NEAR], {"work": work}, url=url)
    across = [
        slot_node("a"),
        slot_node("m", "a", queue="c"),
        slot_node("n", "a"),
        slot_node("end", "m", "n", queue="c"),
    ]
    mended = [*across[:2], slot_node("n", "a", options=JobOptions(attempts=2)), slot_node("end", "m", "n")]
    with FlowProducer(url) as flows:
        old = flows.submit(FlowSpec("n", across), flow_id="f")
        assert old.wait(timeout=LONG).status.state is FlowState.FAILED
        broken.clear()
        flow = flows.submit(FlowSpec("n", mended), flow_id="f", on_existing="retry_failed")
        results = flow.result(timeout=LONG)
        assert results == {"a": "a()/0", "m": "m(a)/0", "n": "n(a)/1", "end": "end(m,n)/1"}
        assert ran == {"a": 1, "m": 1, "n": 2, "end": 1}
        with pytest.raises(Superseded):
            old.retry_failed()
        for _ in range(2):
            flow.restart(idempotency_key="click")
            assert flow.result(timeout=LONG)["end"] == "end(m,n)/2"
        # A specification with all queues in one slot stays on the path of the flow.
        flow = flows.submit(FlowSpec("n", DIAMOND), flow_id="f", on_existing="restart")
        assert flow.result(timeout=LONG)["end"] == "end(m,n)/3"
        assert [one.generation for one in flow.history()] == [0, 1, 2, 3]
        eventually(lambda: len([key for key in keys(primaries) if ":job:" in key]) == 4, timeout=20)
        staged = flows.submit(FlowSpec("n", DIAMOND), flow_id="g")
        staged.wait(timeout=LONG)
        with pytest.raises(FlowConflict, match=r"flow g began with all .* in one slot .* under another id$"):
            flows.submit(FlowSpec("n", across), flow_id="g", on_existing="restart")
        with pytest.raises(FlowConflict, match="cannot continue with queues in several"):
            flows.plan(FlowSpec("n", across), flow_id="g")
        assert staged.status().state is FlowState.COMPLETED


@pytest.mark.long
def test_a_flow_in_one_slot_survives_the_restart_of_its_primary(
    run_worker: RunWorker, tmp_path: Path, eventually: Eventually
) -> None:
    with running_primaries(tmp_path) as primaries:
        nodes = [
            slot_node("first"),
            *(slot_node(f"n{n}", "first", queue=("b", NEAR)[n % 2]) for n in range(200)),
        ]
        running = run_worker(["b", NEAR], {"work": lambda ctx: 1}, url=primaries.url, concurrency=8)
        with FlowProducer(primaries.url) as flows, ThreadPoolExecutor(1) as threads:
            flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
            eventually(lambda: flow.status().completed > 20, timeout=20)
            waiting = threads.submit(flow.wait, timeout=60)
            owner = primaries.owner("b")
            owner.kill()
            time.sleep(2)  # longer than a call is repeated
            owner.start()
            assert waiting.result().status.state is FlowState.COMPLETED
            assert flow.status().completed == 201
        running.stop()
