"""A node runs again, and with it all that follow."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, FlowProducer, FlowSpec, Ordering, Rule
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.builders import NEAR, diamond, node
from tests.node import Node
from tests.server.flows.node_changes.conftest import counts
from tests.server.policy_work import LONG, Work, reasons, states

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Dump

pytestmark = pytest.mark.usefixtures("path")


def test_a_rerun_node_whose_rule_is_no_longer_met_says_so(flows: FlowProducer, work: Work) -> None:
    work.ends["a"] = "failed"
    alert = node("alert", "a", rule=Rule.ONE_FAILED)
    flow = flows.submit(FlowSpec("n", [node("a"), alert]), flow_id="f")
    flow.wait(timeout=LONG)
    work.ends.clear()
    flow.retry_failed()
    flow.wait(timeout=LONG)

    flow.rerun("alert")
    flow.wait(timeout=LONG)

    assert states(flow)["alert"] == "skipped"
    assert reasons(flow)["alert"].startswith("upstream completed: ")
    assert reasons(flow)["alert"] != "upstream completed: "


def test_a_node_runs_again_with_all_that_follow(done: Flow, work: Work) -> None:
    assert done.rerun("b") == ["b"]
    outcome = done.wait(timeout=LONG)
    assert work.ran == ["b", "d"]
    assert counts(done) == ("completed", 5, 0, 0)
    assert outcome.results == {name: f"{name}!" for name in "abcde"}


def test_its_failure_reaches_what_follows(done: Flow, work: Work) -> None:
    work.ends["a"] = "failed"
    done.rerun("a")
    done.wait(timeout=LONG)
    assert counts(done) == ("failed", 1, 4, 0)
    assert done.status().reason == "a: broken"
    assert reasons(done)["d"] == "upstream failed: a"
    work.ends.clear()
    work.ran.clear()
    done.retry_failed()
    done.wait(timeout=LONG)
    assert counts(done) == ("completed", 5, 0, 0)
    assert sorted(work.ran) == ["a", "b", "c", "d"]


def test_one_failed_node_of_several(flows: FlowProducer, work: Work) -> None:
    spec = FlowSpec("n", [node("failed.1"), node("failed.2"), node("z", "failed.1")])
    flow = flows.submit(spec, flow_id="f")
    flow.wait(timeout=LONG)
    work.ends["failed.1"] = "completed"
    flow.rerun("failed.1")
    flow.wait(timeout=LONG)
    assert states(flow) == {"failed.1": "completed", "failed.2": "failed", "z": "completed"}
    assert (counts(flow), flow.status().reason) == (("failed", 2, 1, 0), "failed.2: broken")
    assert work.ran.count("failed.2") == 1


def test_in_a_cancelled_flow(flows: FlowProducer, work: Work, eventually: Eventually) -> None:
    work.held["c"] = threading.Event()
    flow = flows.submit(diamond(), flow_id="f")
    eventually(lambda: flow.node("b").state == "completed")
    flow.cancel("enough")
    work.held.pop("c").set()
    flow.wait(timeout=LONG)
    flow.rerun("c")
    flow.wait(timeout=LONG)
    assert states(flow) == dict.fromkeys("abcde", "completed")
    assert counts(flow) == ("completed", 5, 0, 0)


def test_what_follows_and_runs_is_stopped(flows: FlowProducer, run_worker: RunWorker) -> None:
    begun, held, stopped = threading.Semaphore(0), threading.Event(), threading.Event()
    value = [1]

    def work(ctx: Context) -> Any:
        if ctx.node == "a":
            return value[0]
        begun.release()
        while not held.wait(0.02):
            if ctx.cancelled:
                stopped.set()
                return "stale"
        return ctx.inputs["a"]

    # It learns of that before a heartbeat is due, as its worker runs the next attempt.
    run_worker(["etl"], {"work": work}, concurrency=4, lease=timedelta(minutes=10))
    flow = flows.submit(FlowSpec("n", [node("a"), node("b", "a")]), flow_id="f")
    assert begun.acquire(timeout=20)
    value[0] = 2
    flow.rerun("a")
    assert begun.acquire(timeout=20)
    assert stopped.wait(20)
    held.set()
    assert flow.wait(timeout=LONG).results == {"a": 2, "b": 2}


def test_what_follows_and_has_ended_before_its_dependencies_runs_again(
    flows: FlowProducer, work: Work, eventually: Eventually
) -> None:
    work.held["runs"] = threading.Event()
    spec = FlowSpec(
        "n",
        [
            node("a"),
            node("quick"),
            node("runs", "a"),
            node("near", "runs", "quick", rule=Rule.ONE_SUCCESS),
            node("waits", "runs"),
            node("far", "waits", "quick", rule=Rule.ONE_SUCCESS),
            node("last", "far"),
        ],
    )
    flow = flows.submit(spec, flow_id="f")
    eventually(lambda: {*work.ran} == {"a", "quick", "runs", "near", "far", "last"})
    eventually(lambda: states(flow)["last"] == "completed")
    work.ran.clear()

    flow.rerun("a")
    eventually(lambda: {*work.ran} >= {"a", "near", "far", "last"})
    work.held["runs"].set()
    flow.wait(timeout=LONG)

    assert sorted(work.ran) == ["a", "far", "last", "near", "runs", "waits"]
    assert counts(flow) == ("completed", 7, 0, 0)


@pytest.mark.usefixtures("frequent_chores")
def test_what_follows_and_waits_in_any_place_waits_again(
    url: str,
    *,
    flows: FlowProducer,
    work: Work,
    eventually: Eventually,
    redis_client: Any,
    path: str,
) -> None:
    nodes = [
        node("a"),
        node("stream", "a", queue=NEAR),
        node("first", "a", queue=NEAR, options=JobOptions(priority=3)),
        node("lifo", "a", queue=NEAR, options=JobOptions(lifo=True)),
    ]
    if path == "staged":
        nodes += [
            node("late", "a", queue=NEAR, options=JobOptions(delay=LONG * 60)),
            node("one", "a", queue=NEAR, options=JobOptions(ordering=Ordering("k"))),
            node("two", "a", queue=NEAR, options=JobOptions(ordering=Ordering("k"))),
        ]
    spec = FlowSpec("n", nodes)
    flow = flows.submit(spec, flow_id="f")
    eventually(lambda: "waiting-children" not in states(flow).values())

    def places() -> dict[str, str]:
        """Who supervises the queue may make a job of a priority ready."""
        return {name: "waiting" if state == "prioritized" else state for name, state in states(flow).items()}

    before = places()
    for _ in range(3):
        work.held["a"] = threading.Event()
        flow.rerun("a")
        assert set(states(flow).values()) - {"active", "waiting"} == {"waiting-children"}
        assert redis_client.xlen(f"glide:{{{NEAR}}}:stream") == 0
        assert not redis_client.zrange(f"glide:{{{NEAR}}}:scheduled", 0, -1)
        work.held.pop("a").set()
        with Supervisor(url, queues=[NEAR]).running() if path == "portable" else nullcontext():
            eventually(lambda: places() == before)
    idle = Node(redis_client, NEAR)
    idle.promote()
    taken = idle.run()
    assert sorted(taken) == sorted(one.job_id for one in flow.nodes() if one.queue == NEAR)
    flow.cancel()


def test_a_repeat_of_the_request_changes_nothing(done: Flow, work: Work, dump: Dump) -> None:
    for _ in range(2):
        assert done.rerun("b", idempotency_key="r1") == ["b"]
        done.wait(timeout=LONG)
    assert work.ran == ["b", "d"]
    done.rerun("b", idempotency_key="r2")
    done.wait(timeout=LONG)
    assert done.rerun("b", idempotency_key="r1") == ["b"]
    assert (work.ran, done.status().state) == (["b", "d"] * 2, "completed")


def test_rules_and_policies_hold_again(flows: FlowProducer, work: Work) -> None:
    spec = FlowSpec(
        "n",
        [
            node("a"),
            node("skips", "a", rule=Rule.ALL_SUCCESS),
            node("cleans", "a", rule=Rule.ALL_DONE),
            node("when-broken", "a", rule=Rule.ONE_FAILED),
            node("ignored", on_failure=OnFailure.IGNORE),
            node("after", "ignored"),
        ],
    )
    flow = flows.submit(spec, flow_id="f")
    flow.wait(timeout=LONG)
    assert states(flow)["when-broken"] == "skipped"
    work.ends |= {"a": "failed", "ignored": "failed"}
    work.ran.clear()
    assert sorted(flow.rerun(nodes=["a", "ignored"])) == ["a", "ignored"]
    flow.wait(timeout=LONG)
    assert sorted(work.ran) == ["a", "after", "cleans", "ignored", "when-broken"]
    assert states(flow)["skips"] == "failed"
    assert counts(flow) == ("failed", 3, 3, 0)


@pytest.mark.long
def test_wide_ones(flows: FlowProducer, work: Work) -> None:
    leaves = [node(f"leaf-{i}", "a") for i in range(120)]
    spec = FlowSpec("n", [node("a"), *leaves, node("z", *(leaf.name for leaf in leaves))])
    flow = flows.submit(spec, flow_id="f")
    flow.wait(timeout=LONG)
    work.ran.clear()
    flow.rerun("a")
    flow.wait(timeout=LONG)
    assert sorted(work.ran) == sorted(one.name for one in spec.nodes)
    assert (work.ran[0], work.ran[-1]) == ("a", "z")
    work.ran.clear()
    assert flow.complete_node("a", "by hand") == ["a"]
    flow.wait(timeout=LONG)
    assert sorted(work.ran) == sorted(one.name for one in spec.nodes[1:])
    assert work.inputs["leaf-7"] == {"a": "by hand"}
    work.ran.clear()
    assert len(flow.rerun(pattern="leaf-*", dependents=False)) == 120
    flow.wait(timeout=LONG)
    assert sorted(work.ran) == sorted(leaf.name for leaf in leaves)
    assert counts(flow) == ("completed", 122, 0, 0)
