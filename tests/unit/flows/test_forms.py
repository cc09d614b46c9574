"""Specifications from and to graphs, dicts and files, and their drawings."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import networkx as nx
import pytest
import yaml

from glidemq_orchestrate import (
    Backoff,
    Dependency,
    FlowNode,
    FlowSpec,
    JobOptions,
    Keep,
    Ordering,
    RateLimit,
    Rule,
)
from glidemq_orchestrate.errors import ConfigurationError, CycleError, DuplicateNode, InvalidFlow
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.flows.forms.drawing import dot, fold, mermaid, range_name
from glidemq_orchestrate.flows.forms.file import OptionsFile, make_schema, schema_text, write_schema
from glidemq_orchestrate.jobs.option_values import Fallback
from tests.builders import node

if TYPE_CHECKING:
    from collections.abc import Iterable

EVERYTHING = JobOptions(
    attempts=3,
    backoff=Backoff("fixed", timedelta(seconds=2), 0.5),
    timeout=timedelta(minutes=5),
    delay=timedelta(milliseconds=1500),
    priority=7,
    ttl=timedelta(hours=1),
    ordering=Ordering("customer", 2, RateLimit(3, timedelta(seconds=10))),
    lease=timedelta(seconds=30),
    remove_on_complete=Keep(count=5, age=timedelta(days=1)),
    remove_on_fail=True,
    fallbacks=(Fallback("small", "here", {"deep": [1, {"x": None}]}),),
)
FUNCTIONS = """
from glidemq_orchestrate import FlowNode, FlowSpec

def build(day, months=(1, 2)):
    return FlowSpec("n", [FlowNode(f"clean-{month}", queue="etl", job="clean", data=day) for month in months])

def as_dict():
    return {"name": "n", "nodes": [{"name": "a", "queue": "etl", "job": "a"}]}

def wrong():
    return "n"

def busy():
    raise OSError("the table of months cannot be read")

class Flows:
    @staticmethod
    def small():
        return as_dict()

number = 1
"""

SPEC = FlowSpec(
    "nightly",
    [
        FlowNode("extract", queue="etl", job="extract", data={"day": "2026-01-01"}),
        FlowNode("clean", queue="spark", job="clean", data=[1, None], after=["extract"], options=EVERYTHING),
        FlowNode(
            "report", queue="etl", job="report", after=[Dependency("clean", on_failure="ignore"), "extract"]
        ),
        FlowNode(
            "tidy",
            queue="etl",
            job="tidy",
            after=["report"],
            rule=Rule.ALL_DONE,
            on_failure=OnFailure.SKIP,
            queue_timeout=timedelta(minutes=3),
        ),
    ],
    labels={"dag": "nightly"},
    retention=timedelta(days=7),
    deadline=timedelta(hours=2),
    fail_fast=True,
    priority=3,
    queue_timeout=timedelta(minutes=9),
)

INVALID_FLOWS: list[tuple[Any, type[Exception], str]] = [
    (nx.Graph([("a", "b")]), InvalidFlow, "undirected"),
    ({"a": ["b"]}, InvalidFlow, r"dict is not a graph: a networkx\.DiGraph"),
    (nx.DiGraph([("a", "b")]), InvalidFlow, "node a of the graph has no queue"),
    (nx.DiGraph([("1", 1)]), DuplicateNode, "1"),
]

REFUSED_BY_SCHEMA: list[dict[str, Any]] = [
    {"nodes": []},
    {"name": ""},
    {"node": []},
    {"retention": "a week", "name": 1},
    {"labels": {"a": 1}},
]

NO_FUNCTIONS: list[tuple[str, str]] = [
    ("nightly", "flow 'nightly': no such function; write module:function"),
    ("a-b:c", "flow 'a-b:c': no such function; write module:function"),
    ("made_flows:nope", "flow 'made_flows:nope': made_flows has no function nope"),
    ("made_flows:number", "flow 'made_flows:number' is not a function; write module:function"),
    ("made_flows:Flows", "flow 'made_flows:Flows' is not a function; write module:function"),
    ("no_flows:build", "no_flows cannot be imported: No module named 'no_flows'"),
    ("needy_flows:build", "needy_flows cannot be imported: No module named 'no_such_package'"),
    ("bad_flows:build", "bad_flows cannot be imported: invalid syntax"),
]

NO_GRAPHS: list[tuple[str, dict[str, Any], str]] = [
    (
        "made_flows:build",
        {},
        "cannot be called with these arguments: missing a required argument: 'day'",
    ),
    ("made_flows:build", {"day": 1, "x": 2}, "got an unexpected keyword argument 'x'"),
    ("made_flows:wrong", {}, "flow made_flows:wrong must return a FlowSpec or a dict, not str"),
    (
        "builtins:vars",
        {},
        "flow builtins:vars cannot be called with these arguments: no signature found",
    ),
]


def test_a_flow_file_has_every_option_that_a_node_may_have() -> None:
    """A node is one job of its own flow: its id, its parents and what makes it unique come from there."""
    of_jobs = {field.name for field in fields(JobOptions)} - {"job_id", "deduplication", "parent"}
    assert set(OptionsFile.model_fields) == of_jobs


def fan(count: int) -> list[FlowNode]:
    items = [node(f"clean[{n}]", "split") for n in range(count)]
    checks = [node(f"check[{n}]", f"clean[{n}]") for n in range(count)]
    return [node("split"), *items, *checks, node("join", *(one.name for one in checks))]


def labels(nodes: Iterable[FlowNode], **kw: Any) -> list[str]:
    return [group.label for group in fold(check_flow(FlowSpec("f", list(nodes))).nodes, **kw)]


class TestDicts:
    def test_a_dict_made_of_a_flow_makes_an_equal_flow(self) -> None:
        again = FlowSpec.from_dict(SPEC.to_dict())
        assert check_flow(again) == check_flow(SPEC)
        assert again.nodes[1].options == EVERYTHING

    def test_it_is_json_and_holds_only_what_is_not_the_default(self) -> None:
        wire = json.loads(json.dumps(SPEC.to_dict()))
        assert wire["retention"] == "P7D"
        assert wire["nodes"][0] == {
            "name": "extract", "queue": "etl", "job": "extract", "data": {"day": "2026-01-01"}
        }  # fmt: skip
        assert wire["nodes"][1]["options"]["timeout"] == "PT5M"
        assert check_flow(FlowSpec.from_dict(wire)) == check_flow(SPEC)

    def test_yaml_carries_it_too(self, tmp_path: Path) -> None:
        path = tmp_path / "flow.yaml"
        path.write_text(yaml.safe_dump(SPEC.to_dict()))
        assert check_flow(FlowSpec.from_file(path)) == check_flow(SPEC)


class TestGraphs:
    def test_a_graph_made_of_a_flow_makes_an_equal_flow(self) -> None:
        graph = SPEC.to_graph()
        assert sorted(graph.edges) == [
            ("clean", "report"), ("extract", "clean"), ("extract", "report"), ("report", "tidy")
        ]  # fmt: skip
        assert graph.edges["clean", "report"]["on_failure"] == "ignore"
        assert nx.is_directed_acyclic_graph(graph)
        about = {key: value for key, value in graph.graph.items() if key != "name"}
        again = FlowSpec.from_graph(graph, name=graph.name, **about)
        assert check_flow(again).digest == check_flow(SPEC).digest
        for part in fields(SPEC):
            if part.name != "nodes":
                assert getattr(again, part.name) == getattr(SPEC, part.name)
        assert again.nodes[1].options == EVERYTHING

    def test_a_graph_of_anything_becomes_a_flow(self) -> None:
        graph: Any = nx.MultiDiGraph()
        graph.add_node(1, data={"month": 1}, colour="red", options={"attempts": 2})
        graph.add_edge(1, ("a", 2), weight=3)
        graph.add_edge(1, ("a", 2))
        spec = FlowSpec.from_graph(graph, name="f", queue="etl", job="work")
        assert spec.nodes == [
            FlowNode(
                "1", queue="etl", job="work", data={"month": 1}, after=[], options=JobOptions(attempts=2)
            ),
            FlowNode("('a', 2)", queue="etl", job="work", after=["1"]),
        ]

    def test_a_graph_that_is_not_networkx_will_do(self) -> None:
        class Graph:
            def is_directed(self) -> bool:
                return True

            def nodes(self, *, data: bool) -> list[tuple[str, dict[str, Any]]]:
                assert data
                return [("a", {"queue": "q", "job": "j"}), ("b", {"queue": "q", "job": "k"})]

            def edges(self, *, data: bool) -> list[tuple[str, str, dict[str, Any]]]:
                assert data
                return [("a", "b", {})]

        spec = FlowSpec.from_graph(Graph(), name="f")
        assert [(one.name, one.job, one.after) for one in spec.nodes] == [("a", "j", []), ("b", "k", ["a"])]

    def test_the_nodes_of_a_cycle_are_named(self) -> None:
        graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])
        with pytest.raises(CycleError, match="b") as caught:
            FlowSpec.from_graph(graph, name="f", queue="q", job="j")
        assert sorted(caught.value.cycle) == ["b", "c"]

    def test_an_invalid_flow_is_refused(self, subtests: pytest.Subtests) -> None:
        for graph, error, expected in INVALID_FLOWS:
            with subtests.test(graph=graph), pytest.raises(error, match=expected):
                FlowSpec.from_graph(graph, name="f", **({"queue": "q", "job": "j"} if "1" in graph else {}))

    def test_without_networkx_the_error_shows_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "networkx", None)
        with pytest.raises(ConfigurationError, match=r"pip install 'glidemq-orchestrate\[graph\]'"):
            SPEC.to_graph()


class TestSchema:
    def test_the_published_schema_is_fresh(self) -> None:
        assert schema_text() == write_schema(), "run `make schema`"

    def test_it_is_a_schema_that_accepts_what_flows_are_written_as(self) -> None:
        schema = make_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        for spec in (SPEC, FlowSpec("fan", fan(20))):
            jsonschema.validate(json.loads(json.dumps(spec.to_dict())), schema)
        root = Path(__file__).parents[3]
        pages = [root / "README.md", *(root / "docs").rglob("*.md")]
        text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
        examples = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        flows = [value for value in map(yaml.safe_load, examples) if "nodes" in value]
        assert len(flows) > 3
        for example in flows:
            jsonschema.validate(example, schema)
            assert check_flow(FlowSpec.from_dict(example))
        jsonschema.validate({"$schema": "flow.schema.json", **SPEC.to_dict()}, schema)
        assert check_flow(
            FlowSpec.from_dict({"$schema": "flow.schema.json", **SPEC.to_dict()})
        ) == check_flow(SPEC)
        seconds = SPEC.to_dict() | {"retention": 3600}
        jsonschema.validate(seconds, schema)

    def test_it_refuses_an_invalid_flow(self, subtests: pytest.Subtests) -> None:
        for change in REFUSED_BY_SCHEMA:
            with subtests.test(change=change), pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(SPEC.to_dict() | change, make_schema())


class TestFolding:
    def test_a_chain_of_fan_outs_is_folded_step_by_step(self) -> None:
        groups = fold(check_flow(FlowSpec("f", fan(1000))).nodes, at_least=10)
        assert [(group.label, len(group.nodes), group.after) for group in groups] == [
            ("split", 1, []),
            ("clean[0..999]", 1000, [0]),
            ("check[0..999]", 1000, [1]),
            ("join", 1, [2]),
        ]

    def test_below_the_limit_and_without_one_every_node_stands_for_itself(self) -> None:
        assert labels(fan(2), at_least=3) == [
            "split", "clean[0]", "clean[1]", "check[0]", "check[1]", "join"
        ]  # fmt: skip
        assert len(labels(fan(20), at_least=None)) == 42

    def test_nodes_of_another_queue_job_or_depth_are_others(self) -> None:
        chain = [node("n1"), *(node(f"n{n}", f"n{n - 1}") for n in range(2, 6))]
        assert labels(chain, at_least=2) == ["n1", "n2", "n3", "n4", "n5"]
        mixed = [FlowNode(f"n{n}", queue="etl", job="odd" if n % 2 else "even") for n in range(4)]
        assert labels(mixed, at_least=2) == ["n0..2", "n1..3"]

    def test_some_may_be_kept_apart(self) -> None:
        nodes = fan(5)
        found = fold(nodes, at_least=3, alone=lambda one: one.name == "clean[2]")
        assert [group.label for group in found] == [
            "split", "clean[0..4]", "clean[2]", "check[0..4]", "join"
        ]  # fmt: skip
        assert found[3].after == [1, 2]

    def test_a_range_keeps_the_writing_of_its_numbers(self) -> None:
        assert range_name(["2013-01-part08", "2013-01-part09", "2013-01-part10"]) == "2013-01-part08..10"
        assert range_name(["a1b1", "a2b1", "a1b2"]) == "a1..2b1..2"
        assert range_name(["only"]) == "only"


class TestDrawings:
    def test_mermaid(self) -> None:
        assert FlowSpec("f", fan(12)).to_mermaid() == (
            "flowchart TD\n"
            '  n0["split"]\n'
            '  n1[["clean[0..11]<br/>12 nodes"]]\n'
            '  n2[["check[0..11]<br/>12 nodes"]]\n'
            '  n3["join"]\n'
            "  n0 --> n1\n"
            "  n1 --> n2\n"
            "  n2 --> n3\n"
        )

    def test_names_cannot_break_out_of_a_mermaid_label(self) -> None:
        drawn = mermaid([node('a"]; click n0 "x" <b>`#&\\ é')])
        assert drawn == 'flowchart TD\n  n0["a#34;]#59; click n0 #34;x#34; #60;b#62;#96;#35;#38;#92; é"]\n'

    def test_dot(self) -> None:
        drawn = dot('my "flow"', [node("a\\n"), node('b"', "a\\n")])
        assert drawn.startswith('digraph "my \\"flow\\"" {\n')
        assert '  n0 [label="a\\\\n"]\n  n1 [label="b\\""]\n  n0 -> n1\n}\n' in drawn

    def test_rules_and_policies_are_drawn(self) -> None:
        spec = FlowSpec(
            "f",
            [
                node("a"),
                node("b", on_failure="skip"),
                node("c", Dependency("a", "ignore"), "b", rule="all_done"),
                node("d", "a", Dependency("b", "fail")),
            ],
        )
        drawn = spec.to_mermaid()
        assert '  n2["c<br/>rule: all_done"]\n' in drawn
        assert "  n0 -.->|on failure: ignore| n2\n  n1 -.->|on failure: skip| n2\n" in drawn
        assert "  n0 --> n3\n  n1 --> n3\n" in drawn
        assert '  n0 -> n2 [style=dashed label="on failure: ignore"]\n' in spec.to_dot()
        mixed = [node("x"), node("a1", "x"), node("a2", "x", rule="all_done")]
        assert labels(mixed, at_least=2) == ["x", "a1", "a2"]

    def test_a_limit_of_its_own(self) -> None:
        spec = FlowSpec("f", fan(4))
        assert spec.to_dot().count(" -> ") == 12
        assert spec.to_dot(fold=4).count(" -> ") == 3
        assert FlowSpec("f", fan(12)).to_mermaid(fold=None).count(" --> ") == 36

    def test_what_cannot_run_is_not_drawn(self) -> None:
        with pytest.raises(CycleError):
            FlowSpec("f", [node("a", "b"), node("b", "a")]).to_mermaid()


class TestFromAFunction:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "made_flows.py").write_text(FUNCTIONS)
        (tmp_path / "bad_flows.py").write_text("def (")
        (tmp_path / "needy_flows.py").write_text("import no_such_package")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "made_flows", raising=False)

    def test_it_is_called_with_the_arguments(self) -> None:
        spec = FlowSpec.from_function("made_flows:build", day="2026-01-01", months=[3])
        assert spec == FlowSpec("n", [FlowNode("clean-3", queue="etl", job="clean", data="2026-01-01")])

    def test_a_dict_is_read_like_a_file(self) -> None:
        assert [node.name for node in FlowSpec.from_function("made_flows:as_dict").nodes] == ["a"]
        assert FlowSpec.from_function("made_flows:Flows.small").name == "n"

    def test_there_is_no_such_function(self, subtests: pytest.Subtests) -> None:
        for place, message in NO_FUNCTIONS:
            with subtests.test(place=place), pytest.raises(ConfigurationError, match=re.escape(message)):
                FlowSpec.from_function(place)

    def test_it_makes_no_flow(self, subtests: pytest.Subtests) -> None:
        for place, arguments, message in NO_GRAPHS:
            with subtests.test(place=place), pytest.raises(InvalidFlow, match=re.escape(message)):
                FlowSpec.from_function(place, **arguments)

    def test_what_it_raises_is_passed_on(self) -> None:
        with pytest.raises(OSError, match="the table of months cannot be read"):
            FlowSpec.from_function("made_flows:busy")


def test_a_file_leaves_out_durations_that_are_defaults() -> None:
    options = JobOptions(attempts=2, delay=0, backoff=Backoff("fixed", 5))
    wire = FlowSpec("n", [FlowNode("a", queue="q", job="j", options=options)]).to_dict()
    assert wire["nodes"][0]["options"] == {"attempts": 2, "backoff": {"kind": "fixed", "delay": "PT5S"}}
