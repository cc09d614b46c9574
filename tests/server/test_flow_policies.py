"""What the end of a node means to those that wait for it: rules, policies, skips, retries of all that."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Dependency,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    OnFailure,
    Ordering,
    Queue,
    Rule,
    Skip,
    Unrecoverable,
)
from glidemq_orchestrate._ops import flow as ops
from glidemq_orchestrate.clock import SystemClock
from glidemq_orchestrate.keys import QueueKeys
from tests.rule_oracle import ENDS, verdicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

LONG = timedelta(seconds=60)


def node(name: str, *after: str, **kw: Any) -> FlowNode:
    return FlowNode(name, kw.pop("queue", "etl"), kw.pop("job", "work"), after=list(after), **kw)


class Work:
    """Ends each node as its name or the test says."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}
        self.ran: list[str] = []
        self.inputs: dict[str, dict[str, Any]] = {}
        self.held: dict[str, threading.Event] = {}

    def __call__(self, ctx: Any) -> str:
        name = str(ctx.node)
        self.ran.append(name)
        self.inputs[name] = dict(ctx.inputs)
        if name in self.held:
            assert self.held[name].wait(30)
        end = self.ends.get(name) or name.split(".", maxsplit=1)[0]
        if end == "failed":
            raise Unrecoverable("broken")
        if end == "skipped":
            raise Skip("nothing to do")
        return f"{name}!"


@pytest.fixture
def work(run_worker: RunWorker) -> Work:
    made = Work()
    run_worker(["etl"], {"work": made}, concurrency=8)
    return made


def states(flow: Any) -> dict[str, str]:
    return {one.name: str(one.state) for one in flow.nodes()}


def reasons(flow: Any) -> dict[str, str]:
    return {one.name: one.reason for one in flow.nodes()}


class TestRules:
    @pytest.mark.parametrize("rule", Rule)
    def test_a_rule_decides_by_the_ends_of_the_dependencies(
        self, rule: Rule, flows: FlowProducer, work: Work
    ) -> None:
        nodes = [node(f"{end}.{n}") for end in ENDS for n in range(3)]
        expected: dict[str, set[str]] = {}
        for ends in (
            ends for size in (1, 2, 3) for ends in itertools.combinations_with_replacement(ENDS, size)
        ):
            name = "completed.by-" + "-".join(ends)
            nodes.append(node(name, *(f"{end}.{n}" for n, end in enumerate(ends)), rule=rule))
            expected[name] = {"completed" if word == "run" else word for word in verdicts(rule, ends)}
        flow = flows.submit(FlowSpec("n", nodes))
        status = flow.wait(timeout=LONG).status
        found = states(flow)
        assert {name: found[name] for name in expected if found[name] not in expected[name]} == {}
        assert status.open == 0
        assert status.skipped == sum(state == "skipped" for state in found.values())

    @pytest.mark.parametrize("rule", Rule)
    def test_the_order_in_which_dependencies_end_does_not_matter(
        self, rule: Rule, flows: FlowProducer, work: Work
    ) -> None:
        nodes: list[FlowNode] = []
        found: dict[frozenset[str], set[str]] = {}
        for trio in itertools.permutations(ENDS):
            base = "-".join(trio)
            nodes += [node(f"{end}.{base}-{n}", *_before(trio, base, n)) for n, end in enumerate(trio)]
            nodes += [
                node(f"gate.{base}-{n}", f"{end}.{base}-{n}", rule=Rule.ALL_DONE)
                for n, end in enumerate(trio)
            ]
            nodes.append(
                node(f"completed.{base}", *(f"{end}.{base}-{n}" for n, end in enumerate(trio)), rule=rule)
            )
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        for name, state in states(flow).items():
            if name.startswith("completed.") and name.count("-") == 2:
                found.setdefault(frozenset(name[10:].split("-")), set()).add(state)
        (seen,) = found.values()
        # Both a failure and a skip decide at once what waits for success of all: the first has its way.
        assert len(seen) == 1 or (rule is Rule.ALL_SUCCESS and seen == {"failed", "skipped"})

    @pytest.mark.parametrize(
        ("rule", "first"), [("one_success", "completed"), ("one_failed", "failed"), ("one_done", "failed")]
    )
    def test_one_is_enough_while_the_others_still_run(
        self, rule: str, first: str, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        work.held["slow"] = threading.Event()
        flow = flows.submit(
            FlowSpec("n", [node("slow"), node(f"{first}.1"), node("d", "slow", f"{first}.1", rule=rule)])
        )
        eventually(lambda: "d" in work.ran)
        assert states(flow)["slow"] == "active"
        work.held["slow"].set()
        flow.wait(timeout=LONG)
        assert work.ran.count("d") == 1
        assert states(flow)["d"] == "completed"

    def test_always_runs_at_once(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
        work.held["slow"] = threading.Event()
        flow = flows.submit(FlowSpec("n", [node("slow"), node("d", "slow", rule="always")]))
        eventually(lambda: "d" in work.ran)
        work.held["slow"].set()
        assert flow.wait(timeout=LONG).status.completed == 2

    def test_inputs_are_those_that_completed(self, flows: FlowProducer, work: Work) -> None:
        after = ["completed.1", "failed.1", "skipped.1"]
        flows.submit(FlowSpec("n", [*map(node, after), node("d", *after, rule="all_done")])).wait(
            timeout=LONG
        )
        assert work.inputs["d"] == {"completed.1": "completed.1!"}

    def test_a_rule_on_a_node_that_waits_for_nothing_means_nothing(
        self, flows: FlowProducer, work: Work
    ) -> None:
        nodes = [node(f"completed.{rule}", rule=rule) for rule in Rule]
        assert flows.submit(FlowSpec("n", nodes)).wait(timeout=LONG).status.completed == len(Rule)

    def test_a_wide_fan_in_with_a_rule(self, flows: FlowProducer, work: Work) -> None:
        names = [f"{ENDS[n % 3]}.{n}" for n in range(1_500)]
        nodes = [
            *map(node, names),
            node("completed.all", *names, rule="all_done"),
            node("completed.one", *names, rule="one_failed"),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        status = flow.wait(timeout=LONG).status
        assert (status.completed, status.failed, status.skipped) == (502, 500, 500)
        assert len(work.inputs["completed.all"]) == 500

    def test_a_wide_fan_out_is_skipped_and_failed(self, flows: FlowProducer, work: Work) -> None:
        skipped = [node(f"s{n}", "skipped.1") for n in range(700)]
        failed = [node(f"f{n}", "failed.1") for n in range(700)]
        done = [node(f"completed.{n}", "failed.1", rule="all_done") for n in range(700)]
        flow = flows.submit(FlowSpec("n", [node("skipped.1"), node("failed.1"), *skipped, *failed, *done]))
        status = flow.wait(timeout=LONG).status
        assert (status.completed, status.failed, status.skipped) == (700, 701, 701)
        told = reasons(flow)
        assert told["s1"] == "upstream skipped: skipped.1"
        assert told["f1"] == "upstream failed: failed.1"


def _before(trio: Sequence[str], base: str, n: int) -> Iterable[str]:
    return [f"gate.{base}-{n - 1}"] if n else []


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "state"),
        [("fail", "failed"), ("ignore", "completed"), ("skip", "skipped"), ("all_done", "completed")],
    )
    @pytest.mark.parametrize("place", ["node", "dependency"])
    def test_what_a_failure_means(
        self, policy: str, state: str, place: str, flows: FlowProducer, work: Work
    ) -> None:
        if place == "node":
            nodes = [node("failed.1", on_failure=policy), node("completed.d", "failed.1", "completed.1")]
        else:
            nodes = [node("failed.1"), node("completed.d", Dependency("failed.1", policy), "completed.1")]
        flow = flows.submit(FlowSpec("n", [node("completed.1"), *nodes]))
        status = flow.wait(timeout=LONG).status
        assert states(flow)["completed.d"] == state
        is_forgiven = place == "node" and policy == "ignore"
        assert status.state == ("completed" if is_forgiven else "failed")
        assert status.failed == 2 - (policy != "fail")

    @pytest.mark.parametrize(("policy", "state"), [("ignore", "skipped"), ("all_done", "completed")])
    @pytest.mark.parametrize("place", ["node", "dependency"])
    def test_what_a_skip_means(
        self, policy: str, state: str, place: str, flows: FlowProducer, work: Work
    ) -> None:
        if place == "node":
            nodes = [node("skipped.1", on_failure=policy), node("completed.d", "skipped.1")]
        else:
            nodes = [node("skipped.1"), node("completed.d", Dependency("skipped.1", policy))]
        flow = flows.submit(FlowSpec("n", nodes))
        assert flow.wait(timeout=LONG).status.state == "completed"
        assert states(flow)["completed.d"] == state

    def test_the_dependency_has_the_last_word(self, flows: FlowProducer, work: Work) -> None:
        nodes = [
            node("failed.1", on_failure=OnFailure.SKIP),
            node("completed.a", Dependency("failed.1", OnFailure.IGNORE)),
            node("completed.b", "failed.1"),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow) == {"failed.1": "failed", "completed.a": "completed", "completed.b": "skipped"}

    def test_rules_see_what_policies_make_of_an_end(self, flows: FlowProducer, work: Work) -> None:
        after = [Dependency("failed.1", "skip"), "completed.1"]
        nodes = [
            node("failed.1"),
            node("completed.1"),
            node("completed.a", *after, rule=Rule.NONE_FAILED),
            node("completed.b", *after, rule=Rule.ONE_FAILED),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow)["completed.a"] == "completed"
        assert states(flow)["completed.b"] == "skipped"

    def test_skips_and_failures_travel(self, flows: FlowProducer, work: Work) -> None:
        nodes = [
            node("skipped.1"),
            node("a", "skipped.1"),
            node("b", "a"),
            node("failed.1"),
            node("c", "failed.1"),
            node("d", "c"),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert reasons(flow) == {
            "skipped.1": "nothing to do",
            "a": "upstream skipped: skipped.1",
            "b": "upstream skipped: a",
            "failed.1": "broken",
            "c": "upstream failed: failed.1",
            "d": "upstream failed: failed.1",
        }

    def test_a_dependency_that_nodes_were_added_to_later(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(FlowSpec("n", [node("failed.1", on_failure="ignore"), node("skipped.1")]))
        assert flow.wait(timeout=LONG).status.state == "completed"
        flow.extend(
            [
                node("completed.a", "failed.1"),
                node("b", "skipped.1"),
                node("completed.c", "failed.1", "skipped.1", rule="none_failed"),
                node("completed.d", Dependency("skipped.1", "all_done")),
            ]
        )
        flow.wait(timeout=LONG)
        found = states(flow)
        assert [found[name] for name in ("completed.a", "b", "completed.c", "completed.d")] == [
            "completed", "skipped", "completed", "completed",
        ]  # fmt: skip


class TestRetries:
    def test_what_a_failure_had_decided_is_decided_anew(self, flows: FlowProducer, work: Work) -> None:
        """Skips and failures because of it are undone; what ran although it had failed stays."""
        work.ends["a"] = "failed"
        nodes = [
            node("a"),
            node("completed.kept", Dependency("a", "ignore")),
            node("on-failure", "a", rule=Rule.ONE_FAILED),
            node("on-success", "a"),
            node("skip-then-run", Dependency("a", "skip")),
            node("completed.done", "a", "completed.kept", rule=Rule.ALL_DONE),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow) == {
            "a": "failed",
            "completed.kept": "completed",
            "on-failure": "completed",
            "on-success": "failed",
            "skip-then-run": "skipped",
            "completed.done": "completed",
        }
        work.ends["a"] = "completed"
        work.ran.clear()
        assert flow.retry_failed() == "running"
        status = flow.wait(timeout=LONG).status
        assert sorted(work.ran) == ["a", "on-success", "skip-then-run"]
        assert set(states(flow).values()) == {"completed"}
        assert (status.completed, status.failed, status.skipped) == (6, 0, 0)

    def test_a_skip_by_choice_stays(self, flows: FlowProducer, work: Work) -> None:
        work.ends["a"] = "failed"
        nodes = [node("a"), node("skipped.1"), node("d", "a", "skipped.1"), node("e", "d")]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow)["d"] in {"failed", "skipped"}  # whichever came first
        work.ends["a"] = "completed"
        flow.retry_failed()
        status = flow.wait(timeout=LONG).status
        assert states(flow) == {"a": "completed", "skipped.1": "skipped", "d": "skipped", "e": "skipped"}
        assert status.state == "completed"
        assert work.ran.count("skipped.1") == 1

    @pytest.mark.parametrize("width", [3, 120])
    def test_an_ignored_failure_that_is_run_again_is_waited_for(
        self, width: int, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        """What dependents were told of the first run must not release them before the second has ended."""
        work.ends |= {"a": "failed"} | {f"d{n}": "failed" for n in range(width)}
        nodes = [node("a", on_failure="ignore"), *(node(f"d{n}", "a") for n in range(width))]
        flow = flows.submit(FlowSpec("n", nodes))
        assert flow.wait(timeout=LONG).status.failed == width + 1
        work.ends.clear()
        work.ends |= dict.fromkeys(["a", *(f"d{n}" for n in range(width))], "completed")
        work.held["a"] = threading.Event()
        work.ran.clear()
        flow.retry_failed()
        eventually(lambda: work.ran == ["a"])
        assert set(states(flow).values()) == {"active", "waiting-children"}
        work.held["a"].set()
        assert flow.wait(timeout=LONG).status.completed == width + 1


class TestRestarts:
    def test_everything_runs_again(self, flows: FlowProducer, work: Work) -> None:
        nodes = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", rule="all_done")]
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
        flow.wait(timeout=LONG)
        assert flow.restart() == "running"
        outcome = flow.wait(timeout=LONG)
        assert sorted(work.ran) == sorted("abcd" * 2)
        assert work.ran[4] == "a"
        assert outcome.status.generation == 1
        assert outcome.status.completed == 4
        assert work.inputs["d"] == {"b": "b!", "c": "c!"}

    def test_a_flow_that_runs_is_left_alone(
        self, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        work.held["a"] = threading.Event()
        flow = flows.submit(FlowSpec("n", [node("a")]))
        eventually(lambda: work.ran == ["a"])
        assert flow.restart() == "running"
        assert flow.status().generation == 0
        work.held["a"].set()
        assert flow.wait(timeout=LONG).status.completed == 1

    @pytest.mark.parametrize("end", ["completed", "failed"])
    def test_a_submission_may_ask_for_it(self, end: str, flows: FlowProducer, work: Work) -> None:
        work.ends["a"] = end
        spec = FlowSpec("n", [node("a"), node("b", "a")])
        flows.submit(spec, flow_id="f").wait(timeout=LONG)
        work.ends["a"] = "completed"
        again = flows.submit(spec, flow_id="f", on_existing="restart")
        assert again.wait(timeout=LONG).status.state == "completed"
        assert work.ran.count("a") == 2

    def test_what_running_nodes_added_is_added_anew(self, flows: FlowProducer, run_worker: RunWorker) -> None:
        sizes = [70, 2]
        ran: list[str] = []

        def grow(ctx: Any) -> None:
            template = FlowNode("part", "etl", "part")
            ctx.flow.map_over(template, list(range(sizes[len(ran) > 0])), before=["end"])

        def part(ctx: Any) -> str:
            ran.append(ctx.node)
            return str(ctx.node)

        run_worker(["etl"], {"grow": grow, "part": part}, concurrency=4)
        nodes = [node("grow", job="grow"), node("end", "grow", job="part")]
        flow = flows.submit(FlowSpec("n", nodes))
        assert flow.wait(timeout=LONG).status.total == 72
        ran_before = len(ran)
        flow.restart()
        status = flow.wait(timeout=LONG).status
        assert (status.total, status.completed) == (4, 4)
        assert sorted(ran[ran_before:]) == ["end", "part[0]", "part[1]"]
        found = {one.name: one.after for one in flow.nodes()}
        assert sorted(found) == ["end", "grow", "part[0]", "part[1]"]
        assert set(found["end"]) == {"grow", "part[0]", "part[1]"}

    def test_a_large_flow_restarts_in_slices(self, flows: FlowProducer, work: Work) -> None:
        names = [f"n{n}" for n in range(400)]
        nodes = [*map(node, names), node("end", *names), *(node(f"o{n}", "end") for n in range(400))]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        flow.restart()
        assert flow.wait(timeout=LONG).status.completed == 801
        assert work.ran.index("end", 801) > 801 + 399
        assert len(work.ran) == 1602

    @pytest.mark.parametrize("calls", [0, 1, 2, 4, 7, 11])
    def test_a_restart_that_was_cut_off_is_gone_on_with(
        self, calls: int, flows: FlowProducer, work: Work, hand: Hand
    ) -> None:
        names = [f"n{n}" for n in range(120)]
        nodes = [*map(node, names), node("end", *names), *(node(f"o{n}", "end") for n in range(120))]
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
        flow.wait(timeout=LONG)
        hand.run_until(ops.restart(ops.FlowRef(QueueKeys("glide", "etl"), "f"), SystemClock()), calls)
        status = flow.wait(timeout=LONG).status
        assert (status.completed, status.generation) == (241, min(calls, 1))
        assert len(work.ran) == 241 * (1 + min(calls, 1))


class TestLimits:
    def test_a_deadline_fails_the_flow(self, flows: FlowProducer, work: Work) -> None:
        work.held["slow"] = threading.Event()
        spec = FlowSpec("n", [node("slow"), node("d", "slow")], deadline=timedelta(seconds=1))
        status = flows.submit(spec).wait(timeout=LONG).status
        work.held["slow"].set()
        assert status.state == "failed"
        assert status.reason == "deadline: it has not ended within 1 s"

    def test_a_retry_has_the_whole_time_again(
        self, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        work.held["slow"] = threading.Event()
        spec = FlowSpec("n", [node("slow")], deadline=timedelta(seconds=1))
        flow = flows.submit(spec)
        assert flow.wait(timeout=LONG).status.state == "failed"
        work.held.pop("slow").set()
        flow.retry_failed()
        assert flow.wait(timeout=LONG).status.state == "completed"

    def test_a_queue_that_nobody_serves_fails_its_nodes_loudly(self, flows: FlowProducer, work: Work) -> None:
        nodes = [
            node("a", queue="nobody", queue_timeout=timedelta(milliseconds=300)),
            node("b", "a"),
            node("completed.c", "a", rule="one_failed"),
        ]
        flow = flows.submit(FlowSpec("n", [*nodes, *(node(f"x{n}") for n in range(3))]))
        flow.wait(timeout=LONG)
        assert reasons(flow)["a"] == "queue timeout: no worker of queue nobody began it within 0.3 s"
        assert states(flow)["b"] == "failed"
        assert states(flow)["completed.c"] == "completed"

    def test_whoever_waits_ends_a_flow_that_nobody_looks_after(self, flows: FlowProducer) -> None:
        nodes = [node("a", queue="nobody"), node("b", "a", queue="nobody")]
        late = flows.submit(FlowSpec("n", nodes, queue_timeout=timedelta(milliseconds=200)))
        assert late.wait(timeout=LONG).status.failed == 2
        slow = flows.submit(FlowSpec("n", nodes, deadline=timedelta(milliseconds=200)))
        assert slow.wait(timeout=LONG).status.reason == "deadline: it has not ended within 0.2 s"

    def test_the_flow_has_a_queue_timeout_for_all(self, flows: FlowProducer, work: Work) -> None:
        """A node that is begun in time is not concerned, however long it runs."""
        work.held["slow"] = threading.Event()
        nodes = [node("slow"), node("a", queue="nobody"), *(node(f"x{n}") for n in range(3))]
        flow = flows.submit(FlowSpec("n", nodes, queue_timeout=timedelta(milliseconds=700)))
        while states(flow)["a"] != "failed":
            pass
        assert states(flow)["slow"] == "active"
        work.held["slow"].set()
        assert flow.wait(timeout=LONG).status.failed == 1

    def test_fail_fast_ends_the_rest(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
        work.held["slow"] = threading.Event()
        nodes = [node("slow"), node("d", "slow"), node("failed.1", "completed.1"), node("completed.1")]
        flow = flows.submit(FlowSpec("n", nodes, fail_fast=True))
        status = flow.wait(timeout=LONG).status
        work.held["slow"].set()
        assert (status.state, status.reason) == ("failed", "failed.1: broken")
        assert reasons(flow)["d"] == "cancelled: failed.1: broken"

    def test_fail_fast_leaves_ignored_failures_alone(self, flows: FlowProducer, work: Work) -> None:
        nodes = [node("failed.1", on_failure="ignore"), node("completed.1", "failed.1")]
        assert (
            flows.submit(FlowSpec("n", nodes, fail_fast=True)).wait(timeout=LONG).status.state == "completed"
        )


class TestPlaces:
    """What a node's options say about its place in the queue holds when it is released."""

    def test_priority_and_lifo_hold_for_released_nodes(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        ran: list[str] = []
        released = threading.Event()

        def work(ctx: Any) -> None:
            if ctx.node == "root":
                assert released.wait(30)
            ran.append(ctx.node)

        def options(**kw: Any) -> JobOptions:
            return JobOptions(**kw)

        nodes = [
            node("root"),
            node("plain-1", "root"),
            node("plain-2", "root"),
            node("low", "root", options=options(priority=9)),
            node("high", "root", options=options(priority=1)),
            node("lifo", "root", options=options(lifo=True)),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        released.set()
        run_worker(["etl"], {"work": work}, concurrency=1, prefetch=0)
        assert flow.wait(timeout=LONG).status.completed == 6
        assert ran[0] == "root"
        assert ran.index("high") < ran.index("low") < min(ran.index("plain-1"), ran.index("plain-2"))
        assert ran.index("lifo") < min(ran.index("plain-1"), ran.index("plain-2"))

    def test_the_flow_has_a_priority_for_all(self, flows: FlowProducer, run_worker: RunWorker) -> None:
        ran: list[str] = []

        def work(ctx: Any) -> None:
            ran.append(ctx.node)

        flows.submit(FlowSpec("low", [node(f"low{n}") for n in range(3)], priority=9))
        last = flows.submit(FlowSpec("none", [node(f"none{n}") for n in range(3)]))
        flows.submit(FlowSpec("high", [node(f"high{n}") for n in range(3)], priority=2))
        run_worker(["etl"], {"work": work}, concurrency=1, prefetch=0)
        last.wait(timeout=LONG)
        assert [name.rstrip("012") for name in ran] == ["high"] * 3 + ["low"] * 3 + ["none"] * 3

    def test_a_time_to_live_counts_from_the_release(self, flows: FlowProducer, work: Work) -> None:
        late = JobOptions(ttl=timedelta(seconds=30), delay=timedelta(milliseconds=150))
        nodes = [
            node("a", options=late),
            node(
                "b",
                "a",
                options=JobOptions(ttl=timedelta(milliseconds=100), delay=timedelta(milliseconds=400)),
            ),
            node("c", "a", options=JobOptions(ttl=timedelta(seconds=30))),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.wait(timeout=LONG)
        assert states(flow) == {"a": "completed", "b": "failed", "c": "completed"}
        assert reasons(flow)["b"] == "expired"

    def test_a_concurrency_key_limits_nodes_of_all_flows(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        running, most, lock = [0], [0], threading.Lock()

        def work(ctx: Any) -> None:
            if ctx.node == "root":
                return
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.02)
            with lock:
                running[0] -= 1

        run_worker(["etl"], {"work": work}, concurrency=8)
        two = JobOptions(ordering=Ordering("warehouse", concurrency=2))
        made = [
            flows.submit(
                FlowSpec("n", [node("root"), *(node(f"d{n}", "root", options=two) for n in range(10))])
            )
            for _ in range(3)
        ]
        assert [flow.wait(timeout=LONG).status.completed for flow in made] == [11] * 3
        assert most[0] == 2

    def test_a_slot_of_a_cancelled_node_is_free_again(
        self, flows: FlowProducer, work: Work, eventually: Eventually
    ) -> None:
        one = JobOptions(ordering=Ordering("warehouse"))
        work.held["a"] = threading.Event()
        first = flows.submit(FlowSpec("n", [node("a", options=one)]))
        eventually(lambda: work.ran == ["a"])
        second = flows.submit(FlowSpec("n", [node("b", options=one)]))
        third = flows.submit(FlowSpec("n", [node("c", options=one), node("d", "c", options=one)]))
        second.cancel("not needed")
        first.cancel("not needed")
        assert third.wait(timeout=LONG).status.completed == 2
        work.held["a"].set()
        first.retry_failed()
        second.retry_failed()
        assert first.wait(timeout=LONG).status.completed == 1
        assert second.wait(timeout=LONG).status.completed == 1

    def test_cancelled_nodes_leave_the_lists(self, flows: FlowProducer, url: str, redis_client: Any) -> None:
        nodes = [
            node(f"{kind}{n}", options=options)
            for n in range(5)
            for kind, options in {
                "lifo": JobOptions(lifo=True),
                "priority": JobOptions(priority=3),
                "delay": JobOptions(delay=timedelta(hours=1)),
                "key": JobOptions(ordering=Ordering("k")),
                "plain": JobOptions(),
            }.items()
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        flow.cancel("not needed")
        flow.wait(timeout=LONG)
        base = "glide:{etl}:"
        assert redis_client.exists(*(base + key for key in ("lifo", "priority", "scheduled"))) == 0
        assert redis_client.xlen(base + "stream") == 0


class TestSkipping:
    def test_a_watcher_and_a_drawing_tell_it(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(
            FlowSpec("n", [node("completed.1"), node("skipped.1", "completed.1"), node("d", "skipped.1")])
        )
        told = [(getattr(change, "node", ""), str(change.state)) for change in flow.watch(timeout=LONG)]
        assert told[-1] == ("", "completed")
        assert [one for one in told if one[1] == "skipped"] == [("skipped.1", "skipped"), ("d", "skipped")]
        (skipped,) = [one for one in flow.nodes() if one.name == "d"]
        assert flow.node("d") == skipped
        assert flow.results() == flow.results(["completed.1", "d"]) == {"completed.1": "completed.1!"}

    def test_a_rule_that_is_not_met_tells_by_what(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(FlowSpec("n", [node("completed.1"), node("d", "completed.1", rule="one_failed")]))
        flow.wait(timeout=LONG)
        assert reasons(flow)["d"] == "upstream completed: completed.1"

    def test_outside_flows_a_skip_is_a_completion_without_result(
        self, url: str, work: Work, run_worker: RunWorker
    ) -> None:
        def skip(_: Any) -> str:
            raise Skip("twice is enough")

        run_worker(["other"], {"skip": skip})
        with Queue("other", url) as queue:
            assert queue.add_and_wait("skip") is None
