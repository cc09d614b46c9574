"""Nodes whose jobs were removed: what is shown, what dependents get, what a retry makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Flow, FlowNode, FlowProducer, FlowSpec, JobState, Queue
from glidemq_orchestrate.errors import FlowExpired, NodeNotRepeatable, ResultRemoved
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.staged.submit import needed_again
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import node
from tests.server.conftest import REACHES
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from tests.server.conftest import Hand

Submit = Callable[..., Flow]
NODES = (node("a"), node("b", "a", data={"day": 7}), node("c", "b"))


@pytest.fixture(params=REACHES)
def submit(request: pytest.FixtureRequest, hand: Hand, flows: FlowProducer) -> Submit:
    """Submits by either path."""

    def made(*nodes: FlowNode, on_existing: Any = "attach") -> Flow:
        checked = check_flow(FlowSpec("n", nodes))
        reach = REACHES[request.param]
        hand.run(submit_flow("glide", checked, "f", on_existing, SystemClock(), reach=reach))
        return flows.get("f")

    return made


def foreign_removal(client: Any, job_id: str) -> None:
    """As the retention of a Node worker removes a job."""
    client.delete(f"glide:{{etl}}:job:{job_id}")
    for name in ("completed", "failed"):
        client.zrem(f"glide:{{etl}}:{name}", job_id)


def clean(queue: Queue) -> None:
    queue.clean(JobState.FAILED)


def remove(queue: Queue) -> None:
    queue.remove("f~b")


@pytest.mark.parametrize("how", [clean, remove])
def test_a_failed_node_stays_failed_and_a_retry_makes_it_again(
    how: Callable[[Queue], None], submit: Submit, flows: FlowProducer, queue: Queue, work: Work
) -> None:
    work.ends["b"] = "failed"
    flow = submit(*NODES)
    flow.wait(timeout=LONG)
    how(queue)
    shown = flow.node("b")
    assert (shown.state, shown.removed, shown.reason) == ("failed", True, "its job was removed")
    assert {one.name: one.removed for one in flow.nodes()}["b"]
    assert states(flow) == {"a": "completed", "b": "failed", "c": "failed"}
    plan = flows.plan(FlowSpec("n", NODES), flow_id="f")
    assert (plan.keeps, dict(plan.runs)) == (["a"], {"b": "was failed", "c": "was failed"})
    work.ends.clear()
    flow.retry_failed()
    assert flow.result(timeout=LONG) == {"a": "a!", "b": "b!", "c": "c!"}
    assert queue.get_job("f~b").data == {"day": 7}
    assert work.ran.count("a") == 1
    assert not flow.node("b").removed


def test_a_removed_input_fails_the_node_and_a_retry_makes_it_again(
    submit: Submit, queue: Queue, work: Work
) -> None:
    work.ends["c"] = "failed"
    flow = submit(node("a"), node("b"), node("c", "a", "b"))
    flow.wait(timeout=LONG)
    queue.remove("f~a")
    with pytest.raises(ResultRemoved) as refused:
        flow.results()
    assert refused.value.names == ["a"]
    assert flow.wait(timeout=LONG).removed == ["a"]
    work.ends.clear()
    flow.rerun("c")
    ended = flow.wait(timeout=LONG)
    assert ended.failed[0].name == "c"
    assert "the result of job f~a was removed" in ended.failed[0].reason
    flow.retry_failed()
    assert flow.result(timeout=LONG) == {"a": "a!", "b": "b!", "c": "c!"}
    assert work.inputs["c"] == {"a": "a!", "b": "b!"}
    assert (work.ran.count("a"), work.ran.count("b")) == (2, 1)


def test_results_that_were_removed_are_an_error(submit: Submit, queue: Queue, work: Work) -> None:
    flow = submit(*NODES)
    assert flow.result(timeout=LONG) == {"a": "a!", "b": "b!", "c": "c!"}
    queue.remove("f~b")
    for read in (flow.result, flow.results, flow.wait, lambda: flow.results(["a", "b"])):
        with pytest.raises(ResultRemoved, match="b were removed"):
            read()
    assert flow.results(["a", "c"]) == {"a": "a!", "c": "c!"}
    assert states(flow) == {"a": "completed", "b": "completed", "c": "completed"}
    flow.rerun("b")
    assert flow.result(timeout=LONG) == {"a": "a!", "b": "b!", "c": "c!"}


def test_what_others_remove_is_an_error_until_it_is_submitted_again(
    submit: Submit, redis_client: Any, work: Work
) -> None:
    held = work.held["b"] = threading.Event()
    flow = submit(node("a"), node("b"), node("c", "a", "b"))
    while states(flow)["a"] != "completed":
        pass
    foreign_removal(redis_client, "f~a")
    held.set()
    ended = flow.wait(timeout=LONG)
    assert ended.status.state == "failed"
    assert "c" not in ended.results
    with pytest.raises(NodeNotRepeatable, match="submit the specification again"):
        flow.retry_failed()
    again = submit(node("a"), node("b"), node("c", "a", "b"), on_existing="retry_failed")
    assert again.result(timeout=LONG) == {"a": "a!", "b": "b!", "c": "c!"}
    assert work.inputs["c"] == {"a": "a!", "b": "b!"}
    assert work.ran.count("b") == 1


@pytest.mark.parametrize("submit", ["staged"], indirect=True)
def test_a_retry_during_the_removal_of_its_flow_says_that_it_expired(
    submit: Submit, hand: Hand, redis_client: Any, work: Work
) -> None:
    work.ends["b"] = "failed"
    submit(*NODES).wait(timeout=LONG)
    foreign_removal(redis_client, "f~a")  # as a sweep begins that the retry has not seen yet
    redis_client.hset("glide:{etl}:gmo:flow:f", "expired_at", "1")
    with pytest.raises(FlowExpired, match="removed after its retention"):
        hand.run(needed_again(FlowRef(QueueKeys("glide", "etl"), "f", "staged")))


def test_a_failed_job_that_others_remove_is_made_from_the_specification(
    submit: Submit, flows: FlowProducer, redis_client: Any, queue: Queue, work: Work
) -> None:
    work.ends["b"] = "failed"
    submit(*NODES).wait(timeout=LONG)
    foreign_removal(redis_client, "f~b")
    assert states(flows.get("f"))["b"] == flows.get("f").node("b").state == "failed"
    plan = flows.plan(FlowSpec("n", NODES), flow_id="f")
    assert list(plan.runs) == ["b", "c"]
    work.ends.clear()
    again = submit(*NODES, on_existing="retry_failed")
    assert again.result(timeout=LONG) == {"a": "a!", "b": "b!", "c": "c!"}
    assert queue.get_job(again.node("b").job_id).data == {"day": 7}
    assert work.ran.count("a") == 1


def test_nodes_of_a_running_flow_cannot_be_removed(submit: Submit, queue: Queue, work: Work) -> None:
    held = work.held["b"] = threading.Event()
    flow = submit(node("a"), node("b"), node("c", "a", "b"))
    while states(flow)["a"] != "completed":
        pass
    assert queue.clean(JobState.COMPLETED) == []
    with pytest.raises(Exception, match="is a node of a flow that has not ended"):
        queue.remove("f~a")
    held.set()
    assert flow.result(timeout=LONG) == {"a": "a!", "b": "b!", "c": "c!"}


def test_a_retry_also_makes_again_what_removed_inputs_have_read(
    submit: Submit, flows: FlowProducer, queue: Queue, work: Work
) -> None:
    nodes = (node("a"), node("b", "a"), node("other", "a"), node("c", "b"))
    work.ends["c"] = "failed"
    flow = submit(*nodes)
    flow.wait(timeout=LONG)
    assert len(queue.clean(JobState.COMPLETED)) == 3
    plan = flows.plan(FlowSpec("n", nodes), flow_id="f")
    assert (plan.keeps, sorted(plan.runs)) == (["other"], ["a", "b", "c"])
    work.ends.clear()
    flow.retry_failed()
    with pytest.raises(ResultRemoved, match="the jobs of other were removed"):
        flow.wait(timeout=LONG)
    assert flow.results(["a", "b", "c"]) == {"a": "a!", "b": "b!", "c": "c!"}
    assert (work.ran.count("a"), work.ran.count("other")) == (2, 1)


def test_nodes_that_are_added_after_a_removed_one_fail_immediately(
    flows: FlowProducer, queue: Queue, work: Work
) -> None:
    flow = flows.submit(FlowSpec("n", [node("a")]))
    flow.wait(timeout=LONG)
    queue.clean(JobState.COMPLETED)
    flow.extend([node("b", "a")])
    failed = flow.wait(timeout=timedelta(seconds=5)).failed
    assert [(one.name, "was removed" in one.reason) for one in failed] == [("b", True)]
