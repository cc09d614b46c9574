"""A node runs again without those that follow it."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, FlowProducer, FlowSpec, RetryLater, Rule
from glidemq_orchestrate.jobs.options import JobOptions
from tests.builders import diamond, node
from tests.server.flows.node_changes.conftest import counts
from tests.server.policy_work import LONG, Work, reasons, states

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from tests.conftest import Eventually, RunWorker

pytestmark = pytest.mark.usefixtures("path")


def test_a_node_runs_again_alone(done: Flow, work: Work) -> None:
    assert done.rerun("a", dependents=False) == ["a"]
    done.wait(timeout=LONG)
    assert work.ran == ["a"]
    assert counts(done) == ("completed", 5, 0, 0)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_alone_it_is_waited_for_by_what_no_handler_has(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, prefetch: int
) -> None:
    value, seen, busy, held = [1], list[Any](), threading.Event(), threading.Event()

    def work(ctx: Context) -> Any:
        if ctx.node == "a":
            assert value[0] == 1 or held.wait(20)
            return value[0]
        if ctx.node == "busy":
            busy.set()
            assert held.wait(20)
        seen.append((ctx.node, dict(ctx.inputs)))
        return None

    run_worker(["etl"], {"work": work})
    nodes = [node("a"), node("busy", "a", queue="other", priority=1), node("b", "busy", "a", queue="other")]
    nodes += [node("c-0", "a", queue="other"), node("c-1", "a", queue="other", rule=Rule.ALL_DONE)]
    flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
    eventually(lambda: "waiting-children" not in (states(flow)["busy"], states(flow)["c-0"]))
    if prefetch:
        run_worker(["other"], {"work": work}, concurrency=1, prefetch=prefetch)
        assert busy.wait(20)
    value[0] = 2
    flow.rerun("a", dependents=False)
    waits = [name for name, state in states(flow).items() if state == "waiting-children"]
    assert waits == (["b", "c-0", "c-1"] if prefetch else ["busy", "b", "c-0", "c-1"])
    if not prefetch:
        run_worker(["other"], {"work": work}, concurrency=4)
    held.set()
    flow.wait(timeout=LONG)
    old = {"a": 1 if prefetch else 2}
    assert dict(seen) == {"busy": old, "b": {"a": 2, "busy": None}, "c-0": {"a": 2}, "c-1": {"a": 2}}
    assert len(seen) == 4 or prefetch  # a worker may not have known yet that these were taken from it


def test_alone_it_is_waited_for_by_many(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    value, seen = [1], list[Any]()

    def work(ctx: Context) -> Any:
        if ctx.node == "a":
            return value[0]
        seen.append(ctx.inputs.get("a"))
        return None

    run_worker(["etl"], {"work": work})
    leaves = [node(f"leaf-{i}", "a", queue="other") for i in range(120)]
    flow = flows.submit(FlowSpec("n", [node("a"), *leaves]), flow_id="f")
    eventually(lambda: flow.node("leaf-119").state == flow.node("leaf-0").state == "waiting")
    value[0] = 2
    run_worker(["other"], {"work": work}, concurrency=2)
    flow.rerun("a", dependents=False)
    flow.wait(timeout=LONG)
    assert len(seen) == 120
    assert set(seen) <= {1, 2}


@pytest.mark.parametrize("how", ["fails", "later"])
def test_alone_it_is_waited_for_by_the_next_attempt(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, how: str
) -> None:
    value, seen, begun, held = [1], list[Any](), threading.Event(), threading.Event()

    def work(ctx: Context) -> Any:
        if ctx.node == "a":
            assert value[0] == 1 or held.wait(20)
            return value[0]
        seen.append(dict(ctx.inputs))
        if not begun.is_set():
            begun.set()
            eventually(lambda: flow.node("a").state == "active")
            if how == "fails":
                raise ValueError("not yet")
            raise RetryLater(timedelta(milliseconds=1))
        return ctx.inputs["a"]

    run_worker(["etl", "other"], {"work": work}, concurrency=2)
    spec = FlowSpec("n", [node("a"), node("b", "a", queue="other", options=JobOptions(attempts=2))])
    flow = flows.submit(spec, flow_id="f")
    assert begun.wait(20)
    value[0] = 2
    flow.rerun("a", dependents=False)
    eventually(lambda: flow.node("b").state == "waiting-children")
    held.set()
    assert flow.wait(timeout=LONG).results == {"a": 2, "b": 2}
    assert seen == [{"a": 1}, {"a": 2}]


def test_alone_it_takes_no_result_from_those_that_follow(done: Flow, work: Work) -> None:
    work.ends["a"] = "failed"
    done.rerun("a", dependents=False)
    done.wait(timeout=LONG)
    assert counts(done) == ("failed", 4, 1, 0)
    assert (done.status().reason, done.results()["d"]) == ("a: broken", "d!")


def test_alone_it_knows_of_what_was_cancelled_before_it(flows: FlowProducer) -> None:
    spec = diamond()
    always = replace(spec, nodes=[*spec.nodes, node("after all", "b", rule=Rule.ALL_DONE, queue="other")])
    flow = flows.submit(always, flow_id="f")
    flow.cancel("enough")
    flow.wait(timeout=LONG)
    flow.rerun("d", dependents=False)
    flow.wait(timeout=LONG)  # no worker looks after it
    assert reasons(flow)["d"].startswith("upstream failed: ")
    flow.rerun("after all", dependents=False)
    flow.status()
    assert flow.node("after all").state == "waiting"


def test_alone_with_others_it_knows_of_what_was_cancelled_and_stays(flows: FlowProducer) -> None:
    flow = flows.submit(diamond(), flow_id="f")
    flow.cancel("enough")
    flow.wait(timeout=LONG)
    flow.rerun(nodes=["a", "b", "d"], dependents=False)  # and not c
    flow.complete_node("a", 1)
    flow.complete_node("b", 1)
    flow.wait(timeout=LONG)  # no worker looks after it
    assert reasons(flow)["d"] == "upstream failed: c"
    assert states(flow) == dict.fromkeys("ab", "completed") | dict.fromkeys("cde", "failed")
