"""Nodes that are completed, skipped and cancelled by hand."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, FlowProducer, FlowSpec, Rule
from glidemq_orchestrate.errors import (
    NodeNotFound,
    NodeNotRepeatable,
)
from tests.builders import diamond, node
from tests.server.conftest import STAGED
from tests.server.flows.node_changes.conftest import counts
from tests.server.policy_work import LONG, Work, reasons, states

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from tests.conftest import Eventually, RunWorker

pytestmark = pytest.mark.usefixtures("path")


def test_a_failed_node_is_completed(broken: Flow, work: Work) -> None:
    assert broken.complete_node("b", {"rows": 1}) == ["b"]
    outcome = broken.wait(timeout=LONG)
    assert work.ran == ["d"]
    assert work.inputs["d"] == {"b": {"rows": 1}, "c": "c!"}
    assert (counts(broken), outcome.results["b"]) == (("completed", 5, 0, 0), {"rows": 1})
    assert broken.complete_node("b", {"rows": 1}) == []
    assert work.ran == ["d"]


def test_a_result_is_replaced(done: Flow, work: Work) -> None:
    assert done.complete_node("b", 7) == ["b"]
    done.wait(timeout=LONG)
    assert (work.ran, work.inputs["d"]) == (["d"], {"b": 7, "c": "c!"})


def test_a_node_that_waits_or_runs_is_completed(
    flows: FlowProducer, work: Work, eventually: Eventually
) -> None:
    work.held["a"] = threading.Event()
    flow = flows.submit(diamond(), flow_id="f")
    eventually(lambda: "a" in work.ran)
    assert flow.complete_node("c", "early") == ["c"]
    assert flow.complete_node("a", "instead") == ["a"]
    outcome = flow.wait(timeout=LONG)
    work.held["a"].set()
    assert (outcome.results["a"], outcome.results["c"]) == ("instead", "early")
    assert work.inputs["b"] == {"a": "instead"}
    assert "c" not in work.ran
    eventually(lambda: flow.results()["a"] == "instead")


def test_a_failed_node_is_skipped(flows: FlowProducer, work: Work) -> None:
    spec = diamond(b={"job": "work"}, d={"rule": Rule.NONE_FAILED})
    work.ends["b"] = "failed"
    flow = flows.submit(spec, flow_id="f")
    flow.wait(timeout=LONG)
    assert flow.skip_node("b", "not today") == ["b"]
    flow.wait(timeout=LONG)
    assert counts(flow) == ("completed", 4, 0, 1)
    assert reasons(flow)["b"] == "not today"
    assert flow.skip_node("b") == []
    flow.cancel_node("b")
    assert counts(flow) == ("completed", 4, 0, 1)


def test_a_skipped_node_skips_what_follows_and_a_retry_leaves_it(flows: FlowProducer, work: Work) -> None:
    spec = FlowSpec("n", [node("a"), node("b", "a"), node("failed.1")])
    work.held["a"] = threading.Event()
    flow = flows.submit(spec, flow_id="f")
    assert flow.skip_node("a") == ["a"]
    work.held.pop("a").set()
    flow.wait(timeout=LONG)
    assert (states(flow)["b"], reasons(flow)["a"]) == ("skipped", "skipped manually")
    work.ends["failed.1"] = "completed"
    work.ran.clear()
    flow.retry_failed()
    flow.wait(timeout=LONG)
    assert work.ran == ["failed.1"]
    assert counts(flow) == ("completed", 1, 0, 2)


def test_a_node_is_cancelled(flows: FlowProducer, work: Work, eventually: Eventually) -> None:
    work.held["b"] = threading.Event()
    flow = flows.submit(diamond(), flow_id="f")
    eventually(lambda: "b" in work.ran)
    assert flow.cancel_node("b", "takes too long") == ["b"]
    flow.wait(timeout=LONG)
    work.held.pop("b").set()
    assert counts(flow) == ("failed", 3, 2, 0)
    assert reasons(flow)["b"] == "cancelled: takes too long"
    assert flow.cancel_node("b", "again") == flow.cancel_node("a") == []
    flow.rerun("b")
    flow.wait(timeout=LONG)
    assert counts(flow) == ("completed", 5, 0, 0)


def test_several_that_follow_each_other(done: Flow, work: Work) -> None:
    assert sorted(done.skip_node(nodes=["d", "b", "a"])) == ["a", "b", "d"]
    done.wait(timeout=LONG)
    # c has no rule of its own: it is skipped because of a.
    assert states(done) == {
        "a": "skipped",
        "b": "skipped",
        "c": "skipped",
        "d": "skipped",
        "e": "completed",
    }
    assert (work.ran, reasons(done)["b"]) == ([], "skipped manually")


@STAGED
def test_an_element_of_a_fan_out(flows: FlowProducer, run_worker: RunWorker) -> None:
    broken = {"part-2"}

    def work(ctx: Context) -> Any:
        if ctx.node == "split":
            names = [f"part-{i}" for i in range(4)]
            assert ctx.flow is not None
            ctx.flow.add_nodes([node(name) for name in names], before=["join"])
        elif ctx.node in broken:
            raise RuntimeError("no such part")
        return sorted(ctx.inputs.values()) if ctx.node == "join" else str(ctx.node)

    run_worker(["etl"], {"work": work}, concurrency=4)
    flow = flows.submit(FlowSpec("n", [node("split"), node("join", "split")]), flow_id="f")
    flow.wait(timeout=LONG)
    assert flow.complete_node("part-2", "by hand") == ["part-2"]
    outcome = flow.wait(timeout=LONG)
    assert outcome.results["join"] == ["by hand", "part-0", "part-1", "part-3", "split"]
    broken.clear()
    flow.rerun("part-2")
    assert flow.wait(timeout=LONG).results["join"] == ["part-0", "part-1", "part-2", "part-3", "split"]
    with pytest.raises(NodeNotRepeatable, match="node split has added nodes"):
        flow.rerun("split")
    with pytest.raises(NodeNotRepeatable, match="node split has added nodes"):
        flow.complete_node("split", 1)
    assert flow.status().state == "completed"

    with pytest.raises(NodeNotFound, match="without a node part-2"):
        flow.restart(nodes=["split", "part-2"])
    assert flow.status().generation == 0
    flow.restart(nodes=["split"])
    outcome = flow.wait(timeout=LONG)
    assert (flow.generation, outcome.status.completed) == (1, 6)
    assert outcome.results["join"] == ["part-0", "part-1", "part-2", "part-3", "split"]
