"""Single nodes: running them again, and ending them by hand, in flows that run and in ended ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, Ordering, RetryLater, Rule
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.errors import (
    ConfigurationError,
    EncodeError,
    FlowEnded,
    NodeNotEnded,
    NodeNotFound,
    NodeNotRepeatable,
    PayloadTooLarge,
    Superseded,
)
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.flows.node_table import Change
from glidemq_orchestrate.flows.nodes import Selection, change_nodes
from glidemq_orchestrate.flows.portable import changes
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.call import Batch
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.builders import diamond, node
from tests.node import Node
from tests.profile import sampled
from tests.server.conftest import REACHES
from tests.server.policy_work import LONG, Work, reasons, states

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Dump, Hand


STAGED = pytest.mark.parametrize("path", ["staged"], indirect=True)


@pytest.fixture(params=list(REACHES), autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of every flow that a producer submits; STAGED: only what the portable path refuses."""
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES[request.param])
    return str(request.param)


@pytest.fixture
def done(flows: FlowProducer, work: Work) -> Flow:
    """The diamond, completed."""
    flow = flows.submit(diamond(), flow_id="f")
    flow.wait(timeout=LONG)
    work.ran.clear()
    return flow


@pytest.fixture
def broken(flows: FlowProducer, work: Work) -> Flow:
    """The diamond, in which b has failed; it would not fail again."""
    work.ends["b"] = "failed"
    flow = flows.submit(diamond(), flow_id="f")
    flow.wait(timeout=LONG)
    work.ends.clear()
    work.ran.clear()
    return flow


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


def counts(flow: Flow) -> tuple[str, int, int, int]:
    status = flow.status()
    return str(status.state), status.completed, status.failed, status.skipped


class TestRerun:
    def test_a_node_runs_again_with_all_that_follow(self, done: Flow, work: Work) -> None:
        assert done.rerun("b") == ["b"]
        outcome = done.wait(timeout=LONG)
        assert work.ran == ["b", "d"]
        assert counts(done) == ("completed", 5, 0, 0)
        assert outcome.results == {name: f"{name}!" for name in "abcde"}

    def test_a_node_runs_again_alone(self, done: Flow, work: Work) -> None:
        assert done.rerun("a", dependents=False) == ["a"]
        done.wait(timeout=LONG)
        assert work.ran == ["a"]
        assert counts(done) == ("completed", 5, 0, 0)

    @pytest.mark.parametrize("prefetch", [0, 2])
    def test_alone_it_is_waited_for_by_what_no_handler_has(
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, prefetch: int
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
        nodes = [node("a"), node("busy", "a", queue="other"), node("b", "busy", "a", queue="other")]
        nodes += [node("c-0", "a", queue="other"), node("c-1", "a", queue="other", rule=Rule.ALL_DONE)]
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
        eventually(lambda: flow.node("busy").state == flow.node("c-0").state == "waiting")
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
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
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
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, how: str
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

    def test_its_failure_reaches_what_follows(self, done: Flow, work: Work) -> None:
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

    def test_alone_it_takes_no_result_from_those_that_follow(self, done: Flow, work: Work) -> None:
        work.ends["a"] = "failed"
        done.rerun("a", dependents=False)
        done.wait(timeout=LONG)
        assert counts(done) == ("failed", 4, 1, 0)
        assert (done.status().reason, done.results()["d"]) == ("a: broken", "d!")

    def test_one_failed_node_of_several(self, flows: FlowProducer, work: Work) -> None:
        spec = FlowSpec("n", [node("failed.1"), node("failed.2"), node("z", "failed.1")])
        flow = flows.submit(spec, flow_id="f")
        flow.wait(timeout=LONG)
        work.ends["failed.1"] = "completed"
        flow.rerun("failed.1")
        flow.wait(timeout=LONG)
        assert states(flow) == {"failed.1": "completed", "failed.2": "failed", "z": "completed"}
        assert (counts(flow), flow.status().reason) == (("failed", 2, 1, 0), "failed.2: broken")
        assert work.ran.count("failed.2") == 1

    def test_in_a_cancelled_flow(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
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

    def test_alone_it_knows_of_what_was_cancelled_before_it(self, flows: FlowProducer) -> None:
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

    def test_alone_with_others_it_knows_of_what_was_cancelled_and_stays(self, flows: FlowProducer) -> None:
        flow = flows.submit(diamond(), flow_id="f")
        flow.cancel("enough")
        flow.wait(timeout=LONG)
        flow.rerun(nodes=["a", "b", "d"], dependents=False)  # and not c
        flow.complete_node("a", 1)
        flow.complete_node("b", 1)
        flow.wait(timeout=LONG)  # no worker looks after it
        assert reasons(flow)["d"] == "upstream failed: c"
        assert states(flow) == dict.fromkeys("ab", "completed") | dict.fromkeys("cde", "failed")

    def test_what_follows_and_runs_is_stopped(self, flows: FlowProducer, run_worker: RunWorker) -> None:
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

    @pytest.mark.usefixtures("frequent_chores")
    def test_what_follows_and_waits_in_any_place_waits_again(
        self,
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
            node("stream", "a", queue="idle"),
            node("first", "a", queue="idle", options=JobOptions(priority=3)),
            node("lifo", "a", queue="idle", options=JobOptions(lifo=True)),
        ]
        if path == "staged":
            nodes += [
                node("late", "a", queue="idle", options=JobOptions(delay=LONG * 60)),
                node("one", "a", queue="idle", options=JobOptions(ordering=Ordering("k"))),
                node("two", "a", queue="idle", options=JobOptions(ordering=Ordering("k"))),
            ]
        spec = FlowSpec("n", nodes)
        flow = flows.submit(spec, flow_id="f")
        eventually(lambda: "waiting-children" not in states(flow).values())

        def places() -> dict[str, str]:
            """Who supervises the queue may make a job of a priority ready."""
            return {
                name: "waiting" if state == "prioritized" else state for name, state in states(flow).items()
            }

        before = places()
        for _ in range(3):
            work.held["a"] = threading.Event()
            flow.rerun("a")
            assert set(states(flow).values()) - {"active", "waiting"} == {"waiting-children"}
            assert redis_client.xlen("glide:{idle}:stream") == 0
            assert not redis_client.zrange("glide:{idle}:scheduled", 0, -1)
            work.held.pop("a").set()
            with Supervisor(url, queues=["idle"]).running() if path == "portable" else nullcontext():
                eventually(lambda: places() == before)
        idle = Node(redis_client, "idle")
        idle.promote()
        taken = idle.run()
        assert sorted(taken) == sorted(one.job_id for one in flow.nodes() if one.queue == "idle")
        flow.cancel()

    def test_a_repeat_of_the_request_changes_nothing(self, done: Flow, work: Work, dump: Dump) -> None:
        for _ in range(2):
            assert done.rerun("b", idempotency_key="r1") == ["b"]
            done.wait(timeout=LONG)
        assert work.ran == ["b", "d"]
        done.rerun("b", idempotency_key="r2")
        done.wait(timeout=LONG)
        assert done.rerun("b", idempotency_key="r1") == ["b"]
        assert (work.ran, done.status().state) == (["b", "d"] * 2, "completed")

    def test_rules_and_policies_hold_again(self, flows: FlowProducer, work: Work) -> None:
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

    def test_wide_ones(self, flows: FlowProducer, work: Work) -> None:
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


class TestByHand:
    def test_a_failed_node_is_completed(self, broken: Flow, work: Work) -> None:
        assert broken.complete_node("b", {"rows": 1}) == ["b"]
        outcome = broken.wait(timeout=LONG)
        assert work.ran == ["d"]
        assert work.inputs["d"] == {"b": {"rows": 1}, "c": "c!"}
        assert (counts(broken), outcome.results["b"]) == (("completed", 5, 0, 0), {"rows": 1})
        assert broken.complete_node("b", {"rows": 1}) == []
        assert work.ran == ["d"]

    def test_a_result_is_replaced(self, done: Flow, work: Work) -> None:
        assert done.complete_node("b", 7) == ["b"]
        done.wait(timeout=LONG)
        assert (work.ran, work.inputs["d"]) == (["d"], {"b": 7, "c": "c!"})

    def test_a_node_that_waits_or_runs_is_completed(
        self, flows: FlowProducer, work: Work, eventually: Eventually
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

    def test_a_failed_node_is_skipped(self, flows: FlowProducer, work: Work) -> None:
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

    def test_a_skipped_node_skips_what_follows_and_a_retry_leaves_it(
        self, flows: FlowProducer, work: Work
    ) -> None:
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

    def test_a_node_is_cancelled(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
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

    def test_several_that_follow_each_other(self, done: Flow, work: Work) -> None:
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
    def test_an_element_of_a_fan_out(self, flows: FlowProducer, run_worker: RunWorker) -> None:
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


class TestChoosing:
    def test_by_name_state_and_error(self, flows: FlowProducer, work: Work) -> None:
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"pattern": "load-*"}, ["load-1", "load-2"]),
            ({"state": "failed"}, ["load-1", "load-2", "send", "z"]),
            ({"error": "Unrecoverable: *"}, []),
            ({"error": "*broken*"}, ["load-1", "load-2", "send"]),
            ({"pattern": "load-*", "error": "broken"}, ["load-1", "load-2"]),
            ({"state": "active"}, []),
            ({"nodes": ["z", "send"]}, ["send", "z"]),
        ]
        for filters, names in cases:
            work.ends |= dict.fromkeys(("load-1", "load-2", "send"), "failed")
            spec = FlowSpec(
                "n", [node("load-1"), node("load-2"), node("send"), node("ok"), node("z", "send")]
            )
            flow = flows.submit(spec)
            flow.wait(timeout=LONG)
            work.ends.clear()
            assert sorted(flow.rerun(**filters)) == names, filters
            flow.wait(timeout=LONG)

    def test_by_the_names_of_a_fan_out(self, flows: FlowProducer, work: Work) -> None:
        every = ["item[0]", "item[1]", "item[10]", "part-1", "part-2"]
        cases: list[tuple[str, list[str]]] = [
            ("item[1]", ["item[1]"]),
            ("item[?]", ["item[0]", "item[1]"]),
            ("item[*]", ["item[0]", "item[10]", "item[1]"]),
            ("item[[]1]", ["item[1]"]),
            ("part-[12]", ["part-1", "part-2"]),
            ("part-[!1]", ["part-2"]),
            ("*[0-1]*", ["item[0]", "item[10]", "item[1]", "part-1"]),
            ("item[2]", []),
            ("[", []),
        ]
        for pattern, names in cases:
            flow = flows.submit(FlowSpec("n", [node(name) for name in every]))
            flow.wait(timeout=LONG)
            assert sorted(flow.complete_node(pattern=pattern, result=1)) == sorted(names), pattern
            assert flow.wait(timeout=LONG).status.completed == 5

    def test_more_than_one_call_holds(self, flows: FlowProducer, work: Work) -> None:
        names = [f"n-{i}" for i in range(170)]
        flow = flows.submit(FlowSpec("n", [node(name) for name in names]), flow_id="f")
        flow.wait(timeout=LONG)
        for _ in range(2):
            assert sorted(flow.rerun(nodes=names, idempotency_key="all")) == sorted(names)
            flow.wait(timeout=LONG)
        assert len(work.ran) == 2 * len(names)
        with pytest.raises(NodeNotFound, match="no node missing"):
            flow.rerun(nodes=[*names, "missing"])
        assert (len(work.ran), flow.status().state) == (2 * len(names), "completed")


class TestRefusals:
    def test_bad_input_changes_nothing(self, done: Flow, dump: Dump) -> None:
        cases: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
            (lambda flow: flow.rerun("nope"), NodeNotFound, "the flow has no node nope"),
            (lambda flow: flow.rerun(nodes=["a", "nope"]), NodeNotFound, "nope"),
            (lambda flow: flow.complete_node("nope", 1), NodeNotFound, "nope"),
            (lambda flow: flow.complete_node("a", "x" * 2**21), PayloadTooLarge, "the limit is 1,048,576"),
            (lambda flow: flow.complete_node("a", {1}), EncodeError, "the result is not JSON"),
            (lambda flow: flow.rerun(), ConfigurationError, "select nodes either by name"),
            (lambda flow: flow.rerun("a", pattern="b*"), ConfigurationError, "either by name"),
            (lambda flow: flow.rerun(nodes="abc"), ConfigurationError, "must be a list of node names"),
            (lambda flow: flow.rerun(state="broken"), ConfigurationError, "state must be one of"),
            (lambda flow: flow.rerun("a", idempotency_key="x" * 300), ConfigurationError, "idempotency_key"),
        ]
        for call, error, text in cases:
            before = dump()
            with pytest.raises(error, match=text):
                call(done)
            after = dump()
            assert {key: after.get(key) for key in before if "worker" not in key} == {
                key: value for key, value in before.items() if "worker" not in key
            }

    def test_a_node_that_has_not_ended(self, flows: FlowProducer, dump: Dump) -> None:
        flow = flows.submit(diamond(), flow_id="f")
        before = dump()
        for names in (["a"], ["b", "a"], [f"n-{i}" for i in range(60)]):
            with pytest.raises((NodeNotEnded, NodeNotFound)):
                flow.rerun(nodes=names)
        assert dump() == before
        assert flow.rerun(pattern="*") == []
        with pytest.raises(NodeNotEnded, match="node a has not ended: it is waiting"):
            flow.rerun("a")

    def test_an_older_generation(self, done: Flow, flows: FlowProducer, dump: Dump) -> None:
        new = flows.submit(diamond(), flow_id="f", on_existing="restart")
        new.wait(timeout=LONG)
        for change in (done.rerun, done.complete_node, done.skip_node, done.cancel_node):
            with pytest.raises(Superseded):
                change("a")
        assert new.rerun("a") == ["a"]
        assert new.wait(timeout=LONG).status.completed == 5

    def test_a_flow_that_is_being_stopped(
        self, flows: FlowProducer, redis_client: Any, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow = flows.submit(diamond(), flow_id="f")
        cancel = {"cancel": "cancelled", "reason": "why"}
        if path == "portable":
            cancel = {"cancel:0": json.dumps({"how": "cancelled", "reason": "why"})}
            advanced = Mock(side_effect=lambda *_: backend.backend_of(flow._ref).status(flow._ref))
            monkeypatch.setattr(changes, "advance", advanced)  # it came after that
        redis_client.hset("glide:{etl}:gmo:flow:f", mapping=cancel)
        with pytest.raises(FlowEnded, match="flow f is being stopped"):
            flow.complete_node("a", 1)


class TestCrashes:
    @pytest.mark.parametrize("what", ["follow", "completed"])
    def test_killed_after_each_call(self, flows: FlowProducer, work: Work, hand: Hand, what: Any) -> None:
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
                Change(what, "r", '"by hand"'),
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
        self, done: Flow, work: Work, hand: Hand, eventually: Eventually
    ) -> None:
        changing = change_nodes(done._ref, Selection(("a",)), Change("follow", "r"), SystemClock())
        has_noted = False
        for request in hand.steps(changing):
            calls = request.calls if isinstance(request, Batch) else [request]
            has_noted = any({"gmo_change_nodes", "note:1"} & set(call.words) for call in calls)
            if has_noted:
                break
        assert has_noted
        eventually(lambda: sorted(work.ran) == ["a", "b", "c", "d"])
        assert done.wait(timeout=LONG).status.completed == 5

    @STAGED
    def test_what_was_skipped_stays_so_when_a_late_end_before_it_is_refused(
        self, url: str, flows: FlowProducer, redis_client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        nodes = [
            FlowNode("a", queue="etl", job="a"),
            FlowNode("x", queue="etl", job="x", after=["a"], rule="all_done"),
            FlowNode("b", queue="node", job="b", after=["x"]),
            FlowNode("c", queue="etl", job="c", after=["b"]),
        ]
        spec = FlowSpec("n", nodes)
        flow, held, ran = flows.submit(spec, flow_id="f"), threading.Event(), list[str]()
        held.set()

        def work(ctx: Context) -> None:
            held.wait(20)
            ran.append(ctx.name)

        run_worker(["etl"], dict.fromkeys("axc", work))
        worker = Node(redis_client, "node")
        worker.open()
        taken = eventually(worker.take)
        assert taken is not None
        held.clear()
        flow.skip_node(nodes=["a", "c"])
        worker.complete(taken, '"stale"')
        with Supervisor(url, queues=["node"]).running():
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
        self, url: str, flows: FlowProducer, redis_client: Any, run_worker: RunWorker, eventually: Eventually
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
