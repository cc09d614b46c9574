"""A flow whose keys hold invalid values harms itself only: others are listed, moved on and found."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, FlowState, JobState
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts import upkeep
from glidemq_orchestrate.attempts.supervision import LAP_MS, Supervision
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Hand

ETL = QueueKeys("glide", "etl")
BAD, GOOD = "glide:{etl}:gmo:flow:bad", "glide:{etl}:gmo:flow:good"
LONG = timedelta(seconds=20)


class Later(SystemClock):
    """The present, moved on."""

    def __init__(self) -> None:
        self.ahead = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead


def spec(*names: str) -> FlowSpec:
    nodes = [FlowNode(name, queue="etl", job="work") for name in names]
    return FlowSpec("n", [*nodes, FlowNode("end", queue="etl", job="work", after=list(names))])


def test_an_unreadable_record_is_listed_as_broken_beside_the_others(
    clients: Clients, redis_client: Any
) -> None:
    flows = clients.flows()
    for flow_id in ("bad", "good", "text"):
        flows.submit(spec("a"), flow_id=flow_id)
    odd = {"state": "here", "total": "9" * 400, "failed": "x", "labels": "[", "created_at": "1e300"}
    redis_client.hset(BAD, mapping=odd | {"name": b"\xff", "reason": b"\xff"})
    redis_client.delete(BAD.replace("bad", "text"))
    redis_client.set(BAD.replace("bad", "text"), "no hash")
    found = {flow.id: flow for flow in flows.list()}
    assert {name: (flow.state, flow.broken) for name, flow in found.items()} == {
        "bad": (FlowState.UNKNOWN, True),
        "good": (FlowState.RUNNING, False),
        "text": (FlowState.UNKNOWN, True),
    }
    assert (found["bad"].total, found["bad"].labels, found["bad"].reason) == (0, {}, "\ufffd")


def test_a_row_that_cannot_be_read_is_listed_as_a_broken_node(clients: Clients, redis_client: Any) -> None:
    for row in ["", "[", "[1]", "{}", "[1,2,3,4]", '["x","etl","j","w"]', '[1e99,"q","j","w"]']:
        redis_client.flushdb()
        flow = clients.flows().submit(spec("a", "b"), flow_id="bad")
        redis_client.hset(BAD + ":nodes", "a", row)
        nodes = {node.name: node for node in flow.nodes()}
        assert {name: node.broken for name, node in nodes.items()} == {"a": True, "b": False, "end": False}
        assert nodes["a"].state is JobState.UNKNOWN
        assert flow.node("b").state is JobState.WAITING
        assert flow.status().total == 3


def test_a_job_of_a_node_that_is_not_a_hash_is_listed_as_a_broken_node(
    clients: Clients, redis_client: Any
) -> None:
    flow = clients.flows().submit(spec("a", "b"), flow_id="bad")
    redis_client.delete("glide:{etl}:job:bad~a")
    redis_client.set("glide:{etl}:job:bad~a", "no hash")
    broken = {node.name: node.broken for node in flow.nodes()}
    assert broken == {"a": True, "b": False, "end": False}


@pytest.mark.parametrize("part", ["open", "nodes", ""])
def test_a_supervisor_finds_what_is_lost_behind_an_unreadable_flow(
    flows: FlowProducer, hand: Hand, redis_client: Any, part: str
) -> None:
    flows.submit(spec("a"), flow_id="bad")
    good = flows.submit(spec("a"), flow_id="good")
    place = BAD + (f":{part}" if part else "")
    redis_client.delete(place, "glide:{etl}:job:bad~a", "glide:{etl}:job:good~a")
    redis_client.set(place, "of another type")
    clock, watch = Later(), Supervision(ETL, "gmo-worker-x")
    for _ in range(6):
        hand.run(supervise.tick(watch, clock))
        clock.ahead += LAP_MS
    assert good.status().state is FlowState.FAILED


def test_a_flow_that_cannot_be_moved_on_holds_up_no_other(
    flows: FlowProducer, hand: Hand, redis_client: Any, run_worker: RunWorker
) -> None:
    flows.submit(spec("a"), flow_id="bad")
    good = flows.submit(spec("a"), flow_id="good")
    redis_client.delete(BAD)
    redis_client.set(BAD, "of another type")
    redis_client.sadd("glide:{etl}:gmo:todo", "bad", b"\xff", *(f"gone {n}" for n in range(5)))
    redis_client.zadd("glide:{etl}:gmo:flows:state:running", {"bad": 1, b"\xff": 2})
    for _ in range(3):
        hand.run(upkeep.upkeep([ETL], SystemClock()))
    running = run_worker(["etl"], {"work": lambda ctx: ctx.node})
    assert good.wait(timeout=LONG).status.state is FlowState.COMPLETED
    assert running.error is None


def test_results_that_are_not_json_end_the_node_that_needs_them(
    flows: FlowProducer, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    """A Node worker wrote them."""
    flow = flows.submit(spec("a", "b"), flow_id="bad")
    other = flows.submit(spec("a"), flow_id="good")

    def work(ctx: Any) -> Any:
        if (ctx.flow_id, ctx.node) == ("bad", "b"):
            eventually(lambda: redis_client.hget("glide:{etl}:job:bad~a", "state") == "completed")
            redis_client.hset("glide:{etl}:job:bad~a", "returnvalue", b"caf\xe9")
        return ctx.node

    running = run_worker(["etl"], {"work": work}, concurrency=2)  # Redis 7.0 starts nodes in any order
    assert other.wait(timeout=LONG).results == {"a": "a", "end": "end"}
    eventually(lambda: flow.status().state is FlowState.FAILED)
    assert flow.node("end").reason == "DecodeError: result of node a is not UTF-8"
    assert running.error is None
