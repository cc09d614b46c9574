"""A change whose caller dies, and late ends of the attempts that it stopped."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.node_table import RequestedChange
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.call import Batch
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.builders import NEAR, node
from tests.node import Node
from tests.profile import sampled
from tests.server.flows.node_changes.conftest import counts
from tests.server.policy_work import LONG, Work

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.long
@pytest.mark.parametrize("what", ["follow", "completed"])
def test_killed_after_each_call(flows: FlowProducer, work: Work, hand: Hand, what: Any) -> None:
    for calls in sampled(range(1, 12)):
        names = [f"n-{i}" for i in range(60)]
        spec = FlowSpec("n", [node("a"), *(node(name, "a") for name in names), node("z", *names)])
        flow = flows.submit(spec, flow_id=f"f{calls}")
        flow.wait(timeout=LONG)
        work.ran.clear()
        changed = names[:55]
        changing = partial(
            change_nodes,
            flow._ref,
            Selection(changed),
            RequestedChange(what, "r", '"by hand"'),
            SystemClock(),
        )
        hand.run_until(changing(), calls)
        assert hand.run(changing()) == changed
        outcome = flow.wait(timeout=LONG)
        assert counts(flow) == ("completed", 62, 0, 0)
        again = {name for name in work.ran if name != "z"}
        assert again == (set(changed) if what == "follow" else set())
        assert outcome.results["n-3"] == ("n-3!" if what == "follow" else "by hand")
        assert work.inputs["z"]["n-3"] == outcome.results["n-3"]


@pytest.mark.usefixtures("frequent_chores")
def test_a_supervisor_does_what_a_dead_caller_left(
    done: Flow, work: Work, hand: Hand, eventually: Eventually
) -> None:
    changing = change_nodes(done._ref, Selection(("a",)), RequestedChange("follow", "r"), SystemClock())
    has_noted = False
    for request in hand.steps(changing):
        calls = request.calls if isinstance(request, Batch) else [request]
        has_noted = any({"gmo_change_nodes", "note:1"} & set(call.words) for call in calls)
        if has_noted:
            break
    assert has_noted
    eventually(lambda: sorted(work.ran) == ["a", "b", "c", "d"])
    assert done.wait(timeout=LONG).status.completed == 5


def test_what_was_skipped_stays_so_when_a_late_end_before_it_is_refused(
    url: str, flows: FlowProducer, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    nodes = [
        FlowNode("a", queue="etl", job="a"),
        FlowNode("x", queue="etl", job="x", after=["a"], rule="all_done"),
        FlowNode("b", queue=NEAR, job="b", after=["x"]),
        FlowNode("c", queue="etl", job="c", after=["b"]),
    ]
    spec = FlowSpec("n", nodes)
    flow, held, ran = flows.submit(spec, flow_id="f"), threading.Event(), list[str]()
    held.set()

    def work(ctx: Context) -> None:
        held.wait(20)
        ran.append(ctx.name)

    run_worker(["etl"], dict.fromkeys("axc", work))
    worker = Node(redis_client, NEAR)
    worker.open()
    taken = eventually(worker.take)
    assert taken is not None
    held.clear()
    flow.skip_node(nodes=["a", "c"])
    worker.complete(taken, '"stale"')
    with Supervisor(url, queues=[NEAR]).running():
        eventually(lambda: flow.node("b").state == "waiting-children")
        held.set()
        again = eventually(worker.take)
        assert again is not None
        worker.complete(again, '"fresh"')
        outcome = flow.wait(timeout=LONG)
    assert (outcome.results["b"], ran) == ("fresh", ["a", "x", "x"])
    assert [str(flow.node(name).state) for name in "axbc"] == [
        "skipped",
        "completed",
        "completed",
        "skipped",
    ]


def test_a_late_end_by_a_node_worker_of_what_ran_before_is_no_end(
    url: str, flows: FlowProducer, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    nodes = [FlowNode("a", queue="etl"), FlowNode("b", after=["a"]), FlowNode("c", after=["b"])]
    spec = FlowSpec("n", nodes, queue="node")
    flow = flows.submit(spec, flow_id="f")
    held = threading.Event()
    held.set()
    runs: list[int] = []

    def a(ctx: Context) -> int:
        held.wait(20)
        runs.append(1)
        return len(runs)

    run_worker(["etl"], {"a": a})
    supervisor = Supervisor(url, queues=["node"])
    worker = Node(redis_client, "node")
    worker.open()
    eventually(lambda: flow.node("b").state == "waiting")
    taken = worker.take()
    assert taken is not None
    held.clear()
    flow.rerun("a")
    worker.complete(taken, '"stale"')
    with supervisor.running():
        eventually(lambda: flow.node("b").state == "waiting-children")
    held.set()
    with Supervisor(url, queues=["node"]).running():
        eventually(lambda: flow.node("b").state == "waiting")
    assert "b" not in flow.results()
    again = worker.take()
    assert again is not None
    assert again.id == taken.id
    last = worker.complete(again, '"fresh"')
    with Supervisor(url, queues=["node"]).running():
        last = last or eventually(worker.take)
        assert last is not None
        worker.complete(last, "null")
        assert flow.wait(timeout=LONG).results == {"a": 2, "b": "fresh", "c": None}
