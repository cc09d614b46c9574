"""What a flow is before it is sent to a server."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate import (
    ArrayNode,
    Backoff,
    Dependency,
    FlowNode,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    CycleError,
    DuplicateNode,
    EncodeError,
    FlowTooLarge,
    InvalidFlow,
    PayloadTooLarge,
    UnknownDependency,
)
from glidemq_orchestrate.flows import FlowStatus, NodeStatus
from glidemq_orchestrate.flows.checked import MAX_NODES, check_flow
from glidemq_orchestrate.flows.status import FlowId
from glidemq_orchestrate.wire.stored import moment
from tests.builders import node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


RUN_TIMES: list[tuple[str, str, float | None]] = [
    ("1000", "3500", 2.5),
    ("1000", "", None),
    ("", "3500", None),
    ("3500", "1000", None),
]

NO_FLOWS: list[bytes] = [b"name: [", b"\xff\xfe\x00", b"- 1\n- 2\n", b"", b"just text"]


def flow(*nodes: FlowNode, name: str = "nightly", **kw: Any) -> FlowSpec:
    return FlowSpec(name, nodes=nodes, **kw)


DIGESTS = ["eda69978", "04a10163", "a15c1057", "e05e357e", "487d26f5"]

DIAMOND = (node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"))


def order(spec: FlowSpec) -> list[str]:
    return [checked.name for checked in check_flow(spec).nodes]


def test_dependencies_come_before_dependents_and_equals_in_writing_order() -> None:
    assert order(flow(*reversed(DIAMOND))) == ["a", "c", "b", "d"]
    assert order(flow(*DIAMOND)) == ["a", "b", "c", "d"]


@given(st.permutations(range(8)), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_the_order_respects_every_edge_of_any_acyclic_flow(
    writing: list[int], edges: set[tuple[int, int]]
) -> None:
    after: dict[int, list[str]] = {n: [f"n{low}" for low, high in edges if low < high == n] for n in range(8)}
    found = order(flow(*(node(f"n{n}", *after[n]) for n in writing)))
    assert sorted(found) == [f"n{n}" for n in range(8)]
    assert all(found.index(f"n{low}") < found.index(f"n{high}") for low, high in edges if low < high)


def test_a_node_knows_its_relations_in_both_directions_each_once() -> None:
    checked = {n.name: n for n in check_flow(flow(*DIAMOND[:3], node("d", "b", "c", "b"))).nodes}
    assert checked["d"].after == ("b", "c")
    assert checked["b"].dependents == ("d",)
    assert checked["a"].dependents == ("b", "c")
    assert [n.rank for n in checked.values()] == [0, 1, 2, 3]


def test_a_cycle_is_refused_and_lists_its_nodes_in_order() -> None:
    with pytest.raises(CycleError) as refused:
        check_flow(flow(node("start"), node("a", "c", "start"), node("b", "a"), node("c", "b")))
    cycle = refused.value.cycle
    assert sorted(cycle) == ["a", "b", "c"]
    at = cycle.index("a")
    assert [*cycle[at:], *cycle[:at]] == ["a", "b", "c"]
    assert f"the flow has a cycle: {' -> '.join([*cycle, cycle[0]])}" == str(refused.value)


def test_a_node_that_waits_for_itself_is_a_cycle_of_one() -> None:
    with pytest.raises(CycleError, match="a -> a") as refused:
        check_flow(flow(node("a", "a")))
    assert refused.value.cycle == ["a"]


def test_duplicate_names_are_all_listed() -> None:
    with pytest.raises(DuplicateNode, match="a, b") as refused:
        check_flow(flow(node("a"), node("b"), node("a"), node("b"), node("c")))
    assert refused.value.names == ["a", "b"]


def test_unknown_dependencies_are_all_listed() -> None:
    with pytest.raises(UnknownDependency, match="b waits for x, y") as refused:
        check_flow(flow(node("a"), node("b", "a", "x", "y")))
    assert refused.value.missing == {"b": ["x", "y"]}


@pytest.mark.long
def test_a_hundred_thousand_nodes_are_a_flow_and_one_more_is_too_many() -> None:
    nodes = [node(f"n{n}") for n in range(MAX_NODES + 1)]
    assert len(check_flow(flow(*nodes[:-1])).nodes) == 100_000
    with pytest.raises(FlowTooLarge, match="100,001"):
        check_flow(flow(*nodes))


def test_a_node_name_that_cannot_be_shown_is_refused(subtests: pytest.Subtests) -> None:
    for name in ("", "x" * 257, "a\nb", "a\x7f", "a\x00"):
        with subtests.test(name=name), pytest.raises(InvalidFlow, match="node name"):
            check_flow(flow(node(name)))


def test_a_node_name_of_256_odd_characters_is_fine() -> None:
    assert order(flow(node("ä:{}|" * 51 + "!"))) == ["ä:{}|" * 51 + "!"]


def test_a_text_as_list_of_dependencies_is_refused_and_not_taken_apart() -> None:
    with pytest.raises(InvalidFlow, match="b: after must be a list"):
        check_flow(flow(node("a"), FlowNode("b", queue="etl", job="work", after="a")))


MISSING_FIELDS: list[tuple[FlowSpec, str]] = [
    (flow(node("a"), name=""), "flow name .. is not valid"),
    (flow(), "has no nodes"),
    (flow(node("a", job="")), "node a: job name .. is not valid"),
    (flow(node("a", options=JobOptions(job_id="own"))), "job_id is set by the flow"),
]


def test_what_is_missing_is_named(subtests: pytest.Subtests) -> None:
    for spec, expected in MISSING_FIELDS:
        with subtests.test(spec=spec), pytest.raises(InvalidFlow, match=expected):
            check_flow(spec)


def test_a_bad_queue_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="queue name 'a:b'"):
        check_flow(flow(node("a", queue="a:b")))


def test_a_bad_payload_names_its_node() -> None:
    with pytest.raises(EncodeError, match="data of node bad"):
        check_flow(flow(node("good"), node("bad", data={1, 2})))
    with pytest.raises(PayloadTooLarge, match="data of node big"):
        check_flow(flow(node("big", data="x" * 1_048_576)))


def test_dependencies_may_be_given_by_an_iterator() -> None:
    for after in ((name for name in "ab"), iter(["a", "b"]), map(str, "ab")):
        last: Any = FlowNode("c", queue="etl", after=after)  # type: ignore[arg-type]
        spec = flow(node("a"), node("b"), last)
        for _ in range(2):
            assert [one.after for one in check_flow(spec).nodes] == [(), (), ("a", "b")]


def test_the_digest_is_equal_for_any_writing_order() -> None:
    digests = {check_flow(flow(*nodes)).digest for nodes in itertools.permutations(DIAMOND)}
    turned = replace(DIAMOND[3], after=["c", "b", "c"])
    assert digests == {check_flow(flow(*DIAMOND[:3], turned)).digest}


def test_the_digest_does_not_see_the_order_of_keys_but_that_of_lists() -> None:
    first = {"x": 1, "y": [1, {"a": 1, "b": 2}]}
    turned = {"y": [1, {"b": 2, "a": 1}], "x": 1}
    other = {"x": 1, "y": [{"a": 1, "b": 2}, 1]}
    digests = [check_flow(flow(node("a", data=data))).digest for data in (first, turned, other)]
    assert digests[0] == digests[1] != digests[2]


def changes() -> Sequence[FlowSpec]:
    first = DIAMOND[0]
    changed = [
        replace(first, queue="other"),
        replace(first, job="other"),
        replace(first, data=0),
        replace(first, data=False),
        replace(first, data=""),
        replace(first, options=JobOptions(attempts=2)),
        replace(first, options=JobOptions(delay=timedelta(seconds=1))),
        replace(first, options=JobOptions(timeout=timedelta(seconds=1))),
        replace(first, options=JobOptions(backoff=Backoff())),
        replace(first, options=JobOptions(backoff=Backoff(jitter=0.5))),
    ]
    return [
        *(flow(one, *DIAMOND[1:]) for one in changed),
        flow(*DIAMOND, name="other"),
        flow(*DIAMOND, node("e")),
        flow(*DIAMOND[:3]),
        flow(*DIAMOND[:3], node("d", "b")),
        flow(*DIAMOND[:3], node("d", "a", "b", "c")),
        flow(node("A"), node("b", "A"), node("c", "A"), node("d", "b", "c")),
    ]


def test_the_digest_differs_for_any_change() -> None:
    digests = [check_flow(spec).digest for spec in [flow(*DIAMOND), *changes()]]
    assert len(set(digests)) == len(digests) == 17


WRONG_LABELS: list[tuple[Any, str]] = [
    ({str(n): "x" for n in range(33)}, "flow f has 33 labels; the limit is 32. Fix: leave 1 of them out"),
    ({"team": "x" * 257}, "flow f: the value of label 'team' must have 1 to 256 characters, got 257"),
    ({"team": ""}, "flow f: the value of label 'team' must have 1 to 256 characters, got 0"),
    ({"x" * 257: "a"}, "flow f: the key of a label must have 1 to 256 characters, got 257"),
    (
        {"team": 5},
        "flow f: the value of label 'team' must be text, got 5. Fix: convert it, or leave the label out",
    ),
    ({5: "a"}, "flow f: the key of label 5 must be text, got 5. Fix: convert it, or leave the label out"),
    (
        {"team": "\ud800"},
        "flow f: the value of label 'team' must have 1 to 256 characters that UTF-8 can encode",
    ),
    (None, "flow f: labels must map texts to texts, got None"),
    ("team=a", "flow f: labels must map texts to texts, got 'team=a'"),
]


def test_a_wrong_label_is_refused_with_its_key_and_the_limit(subtests: pytest.Subtests) -> None:
    for labels, message in WRONG_LABELS:
        with subtests.test(message), pytest.raises(InvalidFlow) as refused:
            check_flow(FlowSpec("f", [node("a")], labels=labels))
        assert str(refused.value) == message


def test_the_digest_is_that_of_earlier_versions() -> None:
    flows = [
        flow(*DIAMOND, name="é"),
        flow(node("a", data={"z": [1.5, 1e16, {"b": "ü", "a": None}], "a": "\x7f"})),
        flow(node("a"), node("b", "a", rule="one_success", on_failure="ignore", queue_timeout=5.0)),
        flow(node("a"), node("b", Dependency("a", on_failure="ignore")), fail_fast=True, deadline=60.0),
        flow(ArrayNode("a", queue="etl", over=range(9), max_failed=1), queue_timeout=1.0),
    ]
    assert [check_flow(one).digest[:8] for one in flows] == DIGESTS


def test_labels_do_not_change_what_runs() -> None:
    assert check_flow(flow(*DIAMOND, labels={"dag": "x"})).digest == check_flow(flow(*DIAMOND)).digest


def test_the_home_is_the_queue_with_most_nodes_and_the_first_in_doubt() -> None:
    assert check_flow(flow(node("a", queue="x"), node("b", queue="y"), node("c", queue="y"))).home == "y"
    assert check_flow(flow(node("a", queue="x"), node("b", queue="y"))).home == "x"
    assert check_flow(flow(node("a", queue="x"), node("b", queue="y"))).queues == ("x", "y")


FILE = {
    "name": "nightly",
    "labels": {"dag": "d"},
    "nodes": [
        {"name": "a", "queue": "etl", "job": "work", "data": {"month": 1, "deep": [None, True, 1.5, "x"]}},
        {
            "name": "b",
            "queue": "etl",
            "job": "work",
            "after": ["a"],
            "options": {
                "attempts": 3,
                "timeout": "PT5M",
                "delay": 1.5,
                "backoff": {"kind": "fixed", "delay": 2},
            },
        },
    ],
}

SPEC = flow(
    node("a", data={"month": 1, "deep": [None, True, 1.5, "x"]}),
    node(
        "b",
        "a",
        options=JobOptions(
            attempts=3,
            timeout=timedelta(minutes=5),
            delay=timedelta(seconds=1.5),
            backoff=Backoff("fixed", timedelta(seconds=2)),
        ),
    ),
    labels={"dag": "d"},
)


def test_a_flow_from_a_dict_equals_the_flow_written_in_python() -> None:
    found = FlowSpec.from_dict(FILE)
    assert check_flow(found).digest == check_flow(SPEC).digest
    assert found.labels == SPEC.labels
    assert found.nodes[0].data == SPEC.nodes[0].data


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_flow_file_may_be_yaml_or_json(tmp_path: Path, suffix: str) -> None:
    import yaml  # noqa: PLC0415  only here

    path = tmp_path / f"flow.{suffix}"
    path.write_text(json.dumps(FILE) if suffix == "json" else yaml.safe_dump(FILE))
    assert check_flow(FlowSpec.from_file(path)).digest == check_flow(SPEC).digest
    assert FlowSpec.from_file(str(path)).name == "nightly"


def broken(**changes: Any) -> dict[str, Any]:
    wire: dict[str, Any] = json.loads(json.dumps(FILE))
    wire["nodes"][1] |= changes
    return wire


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"nodes": []}, "name"),
    ({"name": "x"}, "nodes"),
    ({"name": "x", "nodes": [], "node": []}, "node"),
    ({"name": "x", "nodes": {}}, "nodes"),
    (broken(afer=["a"]), r"node b: there is no field 'afer'; did you mean 'after'\?"),
    (broken(after="a"), "node b: after"),
    (broken(job=None), "node b: job"),
    (broken(options={"atempts": 3}), "node b: options: there is no field 'atempts'"),
    (broken(options={"attempts": 0}), "node b: options: attempts"),
    (broken(options={"timeout": "soon"}), r"node b: options\.timeout"),
    (
        broken(options={"backoff": {"dely": 1}}),
        r"node b: options\.backoff: there is no field 'dely'; did you mean 'delay'",
    ),
    (broken(options={"backoff": {"kind": "slow"}}), r"node b: options\.backoff\.kind"),
    (broken(options={"backoff": {"jitter": 2}}), r"node b: options\.backoff: backoff jitter"),
    (broken(options={"delay": -1}), "node b: options: delay"),
]


def test_a_bad_field_is_named_with_its_place(subtests: pytest.Subtests) -> None:
    for wire, place in BAD_FIELDS:
        with subtests.test(wire=wire), pytest.raises(InvalidFlow, match=place):
            FlowSpec.from_dict(wire)


def test_the_check_reports_data_that_is_not_json_with_its_node() -> None:
    with pytest.raises(EncodeError, match="data of node b"):
        check_flow(FlowSpec.from_dict(broken(data={"when": timedelta(1)})))


def test_all_bad_places_are_reported_together() -> None:
    wire = broken(job=3)
    wire["nodes"][0]["queu"] = "x"
    with pytest.raises(InvalidFlow, match=r"node a: there is no field 'queu'.*node b: job"):
        FlowSpec.from_dict(wire)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"flow\.yaml: No such file"):
        FlowSpec.from_file(tmp_path / "flow.yaml")


def test_a_file_that_is_not_a_flow_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for content in NO_FLOWS:
        with subtests.test(content=content):
            path = tmp_path / "flow.yaml"
            path.write_bytes(content)
            with pytest.raises(InvalidFlow, match=r"flow\.yaml"):
                FlowSpec.from_file(path)


def test_a_status_counts_what_is_open_and_knows_when_it_has_ended() -> None:
    status = FlowStatus(FlowId("f"), "n", FlowState.RUNNING, "q", 10, 3, 2, "", {}, None, None)
    assert status.open == 5
    assert [state.is_terminal for state in FlowState] == [False, False, True, True, True, False]


def test_the_seconds_of_a_node_are_those_of_its_last_run(subtests: pytest.Subtests) -> None:
    for started, finished, seconds in RUN_TIMES:
        with subtests.test(started=started):
            one = NodeStatus(
                "a", "q", "j", "w", (), JobState.COMPLETED, 1, "", None, moment(started), moment(finished)
            )
            assert one.seconds == seconds


def test_a_flow_file_says_how_long_the_flow_is_kept() -> None:
    wire = {"name": "n", "retention": "P7D", "nodes": [{"name": "a", "queue": "etl", "job": "work"}]}
    assert check_flow(FlowSpec.from_dict(wire)).retention_ms == 7 * 86_400_000
    assert check_flow(FlowSpec.from_dict(wire | {"retention": 60})).retention_ms == 60_000
