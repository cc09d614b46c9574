"""Facts 28 to 33 and 38 of the client specification: parents, diamonds, failures, signals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, Queue
from tests.node import Node, PlainNode

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker


def test_fact_28_a_parent_of_node_is_queued_once_by_our_workers(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    parent = node.add_parent("parent")
    children = [node.add(opts={"parent": {"id": parent, "queue": "q"}}) for _ in range(2)]
    run_worker(["q"], {"work": lambda ctx: ctx.job_id, "parent": lambda ctx: sorted(ctx.inputs)})
    eventually(lambda: node.job(parent)["state"] == "completed")
    assert set(node.children_values(parent)) == {f"glide:{{q}}:{child}" for child in children}
    assert [event["jobId"] for event in node.events() if event["event"] == "completed"].count(parent) == 1


def test_children_that_node_adds_before_their_parent_are_its_own(node: Node) -> None:
    child = node.add(opts={"parent": {"id": "late", "queue": "q"}})
    assert node.add("parent", opts={"jobId": "late"}) == "late"
    assert node.client.smembers("glide:{q}:deps:late") == {f"glide:{{q}}:{child}"}


def test_fact_29_a_parent_in_another_queue_is_released(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    parent = node.add_parent("parent")
    other = Node(node.client, "q2")
    child = other.add(opts={"parent": {"id": parent, "queue": "q"}})
    node.client.sadd(f"glide:{{q}}:deps:{parent}", f"glide:{{q2}}:{child}")
    run_worker(["q2"], {"work": lambda ctx: 1})
    eventually(lambda: node.job(parent)["state"] == "waiting")
    assert node.children_values(parent) == {f"glide:{{q2}}:{child}": "1"}


@pytest.mark.parametrize("chains", [True, False])
def test_a_job_releases_what_came_to_wait_for_it_while_a_node_worker_ran_it(
    node: Node, queue: Queue, *, chains: bool
) -> None:
    """The worker read the job before, and reports that it has no parents."""
    dependency, dependent = node.add(), queue.add("later", delay=60)
    taken = node.take()
    assert taken is not None
    assert queue.depends_on(dependent, [dependency]).changed == (dependency,)
    if chains:
        assert node.finish(taken, "1")[0] == "NEXT_NONE"
    else:
        PlainNode(node.client, "q").end(dependency, taken.entry)
    assert node.job(dependent)["state"] == "delayed"


def test_fact_30_a_diamond_of_node_runs_in_order_on_our_workers(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    ids, order = node.diamond(), list[str]()

    def work(ctx: Any) -> str:
        order.append(ctx.name)
        return str(ctx.name)

    run_worker(["q"], dict.fromkeys("ABCD", work))
    eventually(lambda: node.job(ids["D"])["state"] == "completed")
    assert (order[0], set(order[1:3]), order[3]) == ("A", {"B", "C"}, "D")
    assert node.children_values(ids["D"]) == {f"glide:{{q}}:{ids[name]}": f'"{name}"' for name in "BC"}


def test_fact_31_a_diamond_of_ours_runs_in_order_on_node_workers(node: Node, url: str) -> None:
    spec = FlowSpec(
        "diamond",
        [
            FlowNode("A", queue="q", job="A"),
            FlowNode("B", queue="q", job="B", after=["A"]),
            FlowNode("C", queue="q", job="C", after=["A"]),
            FlowNode("D", queue="q", job="D", after=["B", "C"]),
        ],
    )
    with FlowProducer(url) as flows:
        ids = {found.name: found.job_id for found in flows.submit(spec, flow_id="f").nodes()}
    names = {job_id: name for name, job_id in ids.items()}
    order = [names[job_id] for job_id in node.run(lambda taken: json.dumps(taken.fields["name"]))]
    assert (order[0], set(order[1:3]), order[3]) == ("A", {"B", "C"}, "D")
    assert sorted(node.children_values(ids["D"]).values()) == ['"B"', '"C"']


def test_fact_32_a_failed_dependency_of_node_blocks_until_it_is_retried(
    node: Node, run_worker: RunWorker, eventually: Eventually
) -> None:
    b = node.add_parent("B")
    a = node.add("A")
    node.link(a, (node, b))
    broken = [True]

    def work(ctx: Any) -> None:
        if broken[0]:
            raise ValueError

    run_worker(["q"], {"A": work, "B": lambda ctx: 1})
    eventually(lambda: node.job(a)["state"] == "failed")
    assert node.job(b)["state"] == "waiting-children"
    broken[0] = False
    keys = node.key("failed", "scheduled", "events", "id")
    assert node.fcall("glidemq_retryJobs", keys, 0, node.now()) == 1
    eventually(lambda: node.job(b)["state"] == "completed")


def test_fact_33_edges_across_queues_are_kept_by_our_flows(
    node: Node, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    """Node leaves C in waiting-children here: B has dependencies, and C is in another queue."""
    spec = FlowSpec(
        "across",
        [
            FlowNode("A", queue="q", job="w"),
            FlowNode("B", queue="q", job="w", after=["A"]),
            FlowNode("C", queue="q2", job="w", after=["B"]),
        ],
    )
    with FlowProducer(url) as flows:
        flow = flows.submit(spec, flow_id="f")
        run_worker(["q", "q2"], {"w": lambda ctx: sorted(ctx.inputs)})
        assert flow.wait().results == {"A": [], "B": ["A"], "C": ["B"]}


def test_fact_38_a_signal_of_ours_is_what_node_expects(node: Node, queue: Queue) -> None:
    job_id = node.add()
    taken = node.take()
    assert taken is not None
    keys = node.key(f"job:{job_id}", "stream", "events", "suspended")
    assert node.fcall("glidemq_suspend", keys, job_id, taken.entry, "workers", node.now(), "", 0) == "ok"
    assert queue.signal(job_id, "approved", {"by": "me"})
    again = node.take()
    assert again is not None
    (signal,) = json.loads(again.fields["signals"])
    assert signal["name"] == "approved"
    assert json.loads(signal["data"]) == {"by": "me"}, "the data is a text of its own"
