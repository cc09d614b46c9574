"""Rules and policies of nodes as they are written, before any server sees them."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import Deduplication, Dependency, FlowNode, FlowSpec, JobOptions, Rule
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows import map_over, nested
from glidemq_orchestrate.flows.checked import CheckedNode, check_flow
from glidemq_orchestrate.flows.dependencies import OnFailure, verdict
from glidemq_orchestrate.flows.staged.growth import check_growth
from glidemq_orchestrate.flows.staged.submit import JobNames, more_fields
from glidemq_orchestrate.jobs.option_values import JobRef
from tests.builders import node
from tests.rule_oracle import ENDS, verdicts

POLICIES: list[Any] = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]

OTHER_POLICIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rule": "all_done"}, {}),
    ({"on_failure": "skip"}, {"on_failure": "ignore"}),
    ({"queue_timeout": timedelta(seconds=1)}, {}),
    ({"after": [Dependency("a", "skip")]}, {"after": ["a"]}),
]

BAD_NODES: list[tuple[dict[str, Any], str]] = [
    ({"rule": "most"}, "node b: rule 'most' is unknown; use all_success, .* or always"),
    (
        {"on_failure": "shrug"},
        "node b: on_failure 'shrug' is unknown; use fail, .* or all_done",
    ),
    ({"queue_timeout": timedelta(0)}, "node b: queue_timeout must be at least a millisecond"),
    ({"queue_timeout": timedelta(seconds=-1)}, "node b: queue_timeout must not be negative"),
    ({"queue_timeout": "5"}, "node b: queue_timeout must be a timedelta or a number of seconds"),
    ({"options": JobOptions(deduplication=Deduplication("x"))}, "node b: options.deduplication"),
    ({"options": JobOptions(parent=JobRef("q", "1"))}, "node b: options.parent"),
]

BAD_FLOWS: list[tuple[dict[str, Any], str]] = [
    ({"deadline": timedelta(0)}, "deadline must be at least a millisecond"),
    ({"deadline": "60"}, "deadline must be a timedelta or a number of seconds"),
    ({"priority": 5_000}, "flow n: priority must be at most 2048"),
    ({"queue_timeout": timedelta(days=-1)}, "queue_timeout must not be negative"),
]


def checked(*nodes: FlowNode, **kw: Any) -> dict[str, CheckedNode]:
    return {one.name: one for one in check_flow(FlowSpec("n", nodes, **kw)).nodes}


def fields(nodes: dict[str, CheckedNode], name: str) -> Any:
    text = more_fields(nodes[name], JobNames("glide", "f", dict.fromkeys(nodes, "etl")))
    return json.loads(text) if text else {}


class TestDependencies:
    def test_a_dependency_is_the_name_of_a_node(self) -> None:
        one = Dependency("load", "ignore")
        assert one == "load"
        assert one in {"load": 1}
        assert (one.name, one.on_failure) == ("load", OnFailure.IGNORE)
        assert repr(one) == "Dependency('load', 'ignore')"
        assert repr(Dependency("load")) == "'load'"

    def test_a_copy_has_its_policy(self, subtests: pytest.Subtests) -> None:
        for again in POLICIES:
            with subtests.test(again=again):
                assert again(Dependency("load", "skip")).on_failure is OnFailure.SKIP

    def test_nested_flows_keep_policies(self) -> None:
        inner = FlowSpec("inner", [node("a"), node("b", Dependency("a", "ignore"))])
        (after,) = nested(inner)[1].after
        assert (str(after), getattr(after, "on_failure", None)) == ("inner/a", "ignore")

    def test_templates_keep_policies(self) -> None:
        template = node("t", Dependency("a", "skip"), rule="none_failed")
        first, second = map_over(template, [1, 2])
        assert [getattr(one.after[0], "on_failure", None) for one in (first, second)] == ["skip", "skip"]
        assert second.rule == "none_failed"


class TestWhatIsSent:
    def test_ordinary_nodes_need_nothing_more(self) -> None:
        nodes = checked(node("a"), node("b", "a"), node("c", Dependency("a")))
        assert [fields(nodes, name) for name in nodes] == [{}, {}, {}]
        assert not any(one.has_policies for one in nodes.values())

    def test_rules_and_policies(self) -> None:
        nodes = checked(
            node("a", on_failure="ignore"),
            node("b"),
            node("c", "a", Dependency("b", OnFailure.SKIP), rule=Rule.ONE_FAILED),
            node("d", Dependency("a", "fail")),
        )
        assert fields(nodes, "a") == {"gmo:on_failure": "ignore"}
        assert fields(nodes, "c") == {"gmo:rule": "one_failed", "gmo:edge:glide:{etl}:f~b": "skip"}
        assert fields(nodes, "d") == {"gmo:rule": "all_success", "gmo:edge": "fail"}

    def test_a_rule_without_dependencies_means_nothing(self) -> None:
        assert fields(checked(node("a", rule="all_failed")), "a") == {}

    def test_a_queue_timeout_of_its_own_or_of_the_flow(self) -> None:
        own = node("b", queue_timeout=timedelta(seconds=2))
        nodes = checked(node("a"), own, queue_timeout=timedelta(minutes=1))
        assert [fields(nodes, name)["gmo:queue_timeout"] for name in nodes] == ["60000", "2000"]

    def test_the_priority_of_the_flow_is_for_nodes_without_one(self) -> None:
        nodes = checked(node("a"), node("b", options=JobOptions(priority=2, attempts=3)), priority=7)
        assert [fields(nodes, name)["priority"] for name in nodes] == ["7", "2"]
        assert json.loads(nodes["a"].options) == {"priority": 7}

    def test_one_policy_for_many_dependencies_is_sent_once(self) -> None:
        names = [f"n{n}" for n in range(2_000)]
        nodes = checked(*map(node, names), node("end", *(Dependency(name, "ignore") for name in names)))
        assert fields(nodes, "end") == {"gmo:rule": "all_success", "gmo:edge": "ignore"}

    def test_growth_keeps_rules_for_nodes_that_it_does_not_have(self) -> None:
        growth = check_growth([node("x", Dependency("old", "skip"), "older", rule="all_done")])
        (only,) = growth.nodes
        assert (only.rule, dict(only.policies)) == (Rule.ALL_DONE, {"old": OnFailure.SKIP})
        assert growth.outside == {"old", "older"}


class TestDigests:
    """Another rule is another flow; what is written out although it is the default is not."""

    def test_another_policy_is_another_flow(self, subtests: pytest.Subtests) -> None:
        for one, other in OTHER_POLICIES:
            with subtests.test(one=one):

                def digest(given: dict[str, Any]) -> str:
                    nodes = [node("a"), FlowNode("b", queue="etl", job="work", **{"after": ["a"]} | given)]
                    return check_flow(FlowSpec("n", nodes)).digest

                assert digest(one) != digest(other)

    def test_deadline_and_fail_fast_are_part_of_it(self) -> None:
        specs = [
            FlowSpec("n", [node("a")]),
            FlowSpec("n", [node("a")], deadline=timedelta(hours=1)),
            FlowSpec("n", [node("a")], fail_fast=True),
        ]
        assert len({check_flow(spec).digest for spec in specs}) == 3

    def test_defaults_written_out_are_the_same(self) -> None:
        plain = FlowSpec("n", [node("a"), node("b", "a")])
        nodes = [node("a", on_failure="fail"), node("b", Dependency("a"), rule="all_success")]
        assert check_flow(plain).digest == check_flow(FlowSpec("n", nodes, priority=0)).digest


class TestBadInput:
    def test_of_nodes(self, subtests: pytest.Subtests) -> None:
        for given, expected in BAD_NODES:
            with subtests.test(given=given), pytest.raises(InvalidFlow, match=expected):
                checked(node("a"), FlowNode("b", queue="etl", job="work", after=["a"], **given))

    def test_of_flows(self, subtests: pytest.Subtests) -> None:
        for given, expected in BAD_FLOWS:
            with subtests.test(given=given), pytest.raises(InvalidFlow, match=expected):
                checked(node("a"), **given)

    def test_an_unknown_policy_of_a_dependency(self) -> None:
        with pytest.raises(InvalidFlow, match="dependency a: on_failure 'shrug' is unknown"):
            Dependency("a", "shrug")

    def test_many_dependencies_with_different_policies(self) -> None:
        names = [f"n{n}" for n in range(1_001)]
        some = [Dependency(name, "ignore") if name == "n7" else name for name in names]
        with pytest.raises(
            InvalidFlow, match="node end has 1,001 dependencies and different on_failure for some"
        ):
            checked(*map(node, names), node("end", *some))


def test_a_file_has_them_all() -> None:
    spec = FlowSpec(
        "n",
        [
            node("a", on_failure=OnFailure.SKIP, queue_timeout=timedelta(seconds=5)),
            node("b", Dependency("a", "ignore"), rule=Rule.NONE_FAILED),
        ],
        deadline=timedelta(hours=1),
        fail_fast=True,
        priority=3,
        queue_timeout=timedelta(minutes=1),
    )
    wire = spec.to_dict()
    assert wire["nodes"][1]["after"] == [{"name": "a", "on_failure": "ignore"}]
    assert check_flow(FlowSpec.from_dict(wire)).digest == check_flow(spec).digest
    graph = spec.to_graph()
    assert check_flow(FlowSpec.from_graph(graph, **graph.graph)).digest == check_flow(spec).digest


def test_verdicts_in_python_are_those_of_the_table(subtests: pytest.Subtests) -> None:
    for rule in Rule:
        with subtests.test(rule=rule):
            for ends in itertools.chain(*(itertools.product(ENDS, repeat=size) for size in (1, 2, 3))):
                counts = [ends.count(end) for end in ENDS]
                assert verdict(rule, *counts, total=len(ends)) in verdicts(rule, ends)
                assert verdict(rule, 0, 0, 0, total=len(ends)) == ("run" if rule is Rule.ALWAYS else None)
            assert verdict(rule, 0, 0, 0, total=0) == "run"
