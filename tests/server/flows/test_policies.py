"""What the end of a node means to those that wait for it: rules, policies and skips."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Dependency, FlowNode, FlowProducer, FlowSpec, Queue, Rule, Skip
from glidemq_orchestrate.errors import FlowFailed
from glidemq_orchestrate.flows.dependencies import OnFailure
from tests.builders import node
from tests.rule_oracle import ENDS, verdicts
from tests.server.policy_work import LONG, Work, reasons, states

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.conftest import Eventually, RunWorker


class TestRules:
    def test_a_rule_decides_by_the_ends_of_the_dependencies(self, flows: FlowProducer, work: Work) -> None:
        for rule in Rule:
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

    def test_the_order_in_which_dependencies_end_does_not_matter(
        self, flows: FlowProducer, work: Work
    ) -> None:
        for rule in Rule:
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
            # A failure and a skip both decide immediately what waits for success of all: the first wins.
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

    def test_always_runs_immediately(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
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

    @pytest.mark.long
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

    @pytest.mark.long
    def test_a_wide_fan_out_is_skipped_and_failed(self, flows: FlowProducer, work: Work) -> None:
        skipped = [node(f"s{n}", "skipped.1") for n in range(700)]
        failed = [node(f"f{n}", "failed.1") for n in range(700)]
        done = [node(f"completed.{n}", "failed.1", rule="all_done") for n in range(700)]
        flow = flows.submit(FlowSpec("n", [node("skipped.1"), node("failed.1"), *skipped, *failed, *done]))
        status = flow.wait(timeout=LONG).status
        assert (status.completed, status.failed, status.skipped) == (700, 701, 701)
        found = reasons(flow)
        assert found["s1"] == "upstream skipped: skipped.1"
        assert found["f1"] == "upstream failed: failed.1"


def _before(trio: Sequence[str], base: str, n: int) -> Iterable[str]:
    return [f"gate.{base}-{n - 1}"] if n else []


class TestPolicies:
    def test_what_a_failure_means(self, flows: FlowProducer, work: Work) -> None:
        for place in ["node", "dependency"]:
            for policy, state in [
                ("fail", "failed"),
                ("ignore", "completed"),
                ("skip", "skipped"),
                ("all_done", "completed"),
            ]:
                if place == "node":
                    nodes = [
                        node("failed.1", on_failure=policy),
                        node("completed.d", "failed.1", "completed.1"),
                    ]
                else:
                    nodes = [
                        node("failed.1"),
                        node("completed.d", Dependency("failed.1", policy), "completed.1"),
                    ]
                flow = flows.submit(FlowSpec("n", [node("completed.1"), *nodes]))
                status = flow.wait(timeout=LONG).status
                assert states(flow)["completed.d"] == state
                is_forgiven = place == "node" and policy == "ignore"
                assert status.state == ("completed" if is_forgiven else "failed")
                assert status.failed == 2 - (policy != "fail")

    @pytest.mark.usefixtures("path")
    def test_an_ignored_failure_is_named_after_the_cause(self, flows: FlowProducer, work: Work) -> None:
        nodes = [
            node("failed.audit", on_failure="ignore"),
            node("failed.load", "failed.audit"),
            node("completed.report", "failed.load"),
        ]
        flow = flows.submit(FlowSpec("n", nodes))
        failed = flow.wait(timeout=LONG).failed
        expected = [("failed.load", False), ("failed.audit", True), ("completed.report", False)]
        assert [(one.name, one.ignored) for one in failed] == expected
        with pytest.raises(FlowFailed, match=r" failed: failed\.load: broken\n"):
            flow.result(timeout=LONG)
        assert {one.name for one in flow.nodes() if one.ignored} == {"failed.audit"}
        assert [flow.node(one.name).ignored for one in failed] == [False, True, False]

    def test_what_a_skip_means(self, flows: FlowProducer, work: Work) -> None:
        for place in ["node", "dependency"]:
            for policy, state in [("ignore", "skipped"), ("all_done", "completed")]:
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


class TestSkipping:
    def test_a_watcher_and_a_drawing_show_it(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(
            FlowSpec("n", [node("completed.1"), node("skipped.1", "completed.1"), node("d", "skipped.1")])
        )
        changes = [(getattr(change, "node", ""), str(change.state)) for change in flow.watch(timeout=LONG)]
        assert changes[-1] == ("", "completed")
        assert [one for one in changes if one[1] == "skipped"] == [("skipped.1", "skipped"), ("d", "skipped")]
        (skipped,) = [one for one in flow.nodes() if one.name == "d"]
        assert flow.node("d") == skipped
        assert flow.results() == flow.results(["completed.1", "d"]) == {"completed.1": "completed.1!"}

    def test_a_rule_that_is_not_met_names_the_cause(self, flows: FlowProducer, work: Work) -> None:
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
