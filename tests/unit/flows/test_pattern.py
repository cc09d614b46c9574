"""Shapes of flows: what waits for what afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode, FlowNode, FlowSpec, JobOptions
from glidemq_orchestrate.errors import DuplicateNode, InvalidFlow
from glidemq_orchestrate.flows import chain, chord, group, map_over, nested
from glidemq_orchestrate.flows.checked import check_flow
from tests.builders import node

if TYPE_CHECKING:
    from collections.abc import Iterable


def edges(nodes: list[FlowNode]) -> dict[str, list[str]]:
    check_flow(FlowSpec("n", nodes))
    return {node.name: list(node.after) for node in nodes}


def test_a_chain_runs_one_after_the_other() -> None:
    assert edges(chain(node("a"), node("b"), node("c"))) == {"a": [], "b": ["a"], "c": ["b"]}


def test_a_chain_of_groups_waits_for_all_last_nodes() -> None:
    middle = [node("b"), node("c"), node("d", "c")]
    assert edges(chain(node("a"), middle, node("e"))) == {
        "a": [], "b": ["a"], "c": ["a"], "d": ["c"], "e": ["b", "d"],
    }  # fmt: skip


def test_an_empty_part_of_a_chain_breaks_nothing() -> None:
    assert edges(chain(node("a"), [], node("b"))) == {"a": [], "b": ["a"]}


def test_a_group_waits_for_nothing_new() -> None:
    assert edges(group(node("a"), [node("b"), node("c", "b")])) == {"a": [], "b": [], "c": ["b"]}


def test_a_chord_ends_in_its_body() -> None:
    assert edges(chord([node("a"), node("b")], node("sum"))) == {"a": [], "b": [], "sum": ["a", "b"]}


def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(DuplicateNode, match="a"):
        group(node("a"), node("a"))
    with pytest.raises(DuplicateNode, match="a"):
        chain(node("a"), node("a"))


def test_a_map_makes_a_node_an_item_with_stable_names() -> None:
    nodes = map_over(node("clean", data={"k": 1}), [7, "x"], collect=node("report"))
    assert [(made.name, made.data) for made in nodes[:2]] == [
        ("clean[0]", {"k": 1, "item": 7}),
        ("clean[1]", {"k": 1, "item": "x"}),
    ]
    assert edges(nodes) == {"clean[0]": [], "clean[1]": [], "report": ["clean[0]", "clean[1]"]}


def test_a_map_without_data_gives_the_item_itself() -> None:
    assert [made.data for made in map_over(node("n"), [1, None, {"a": 2}])] == [1, None, {"a": 2}]


@pytest.mark.parametrize("items", ["abc", b"abc", {"k": 1}])
def test_one_item_is_no_list_of_items(items: Any) -> None:
    for array in (False, True):
        with pytest.raises(InvalidFlow, match=r"items must be a list, got .* Fix: map_over"):
            map_over(node("n"), items, array=array)


def test_a_map_over_nothing_leaves_its_collector_where_the_template_was() -> None:
    nodes = map_over(node("clean", "split"), [], collect=node("report", "head"))
    assert [(made.name, list(made.after)) for made in nodes] == [("report", ["head", "split"])]


def test_a_map_may_make_an_array_that_its_collector_waits_for() -> None:
    template = node("clean", "split", data={"k": 1}, options=JobOptions(attempts=3))
    cases: list[Iterable[Any]] = [[7, "x"], range(3), iter("ab")]
    for items in cases:
        made, collector = map_over(template, items, collect=node("report", "head"), array=True)
        assert isinstance(made, ArrayNode)
        assert (made.name, made.data, made.after, made.options) == (
            "clean", {"k": 1}, ["split"], template.options,
        )  # fmt: skip
        assert list(collector.after) == ["head", "clean"]
        over = made.over
    assert list(over) == ["a", "b"]
    assert [list(made.after) for made in map_over(template, [], collect=node("report"), array=True)] == [
        ["split"]
    ]


def test_a_template_whose_data_has_no_place_for_an_item_is_refused() -> None:
    with pytest.raises(InvalidFlow, match="must be an object"):
        map_over(node("n", data=[1]), [2])


def test_a_nested_flow_is_prefixed_and_hangs_where_it_is_put() -> None:
    inner = FlowSpec("sub", [node("a"), node("b", "a")])
    assert edges([node("x"), *nested(inner, after=["x"])]) == {"x": [], "sub/a": ["x"], "sub/b": ["sub/a"]}
    assert edges(chain(node("x"), inner, nested(inner, name="again"), node("y"))) == {
        "x": [], "sub/a": ["x"], "sub/b": ["sub/a"],
        "again/a": ["sub/b"], "again/b": ["again/a"], "y": ["again/b"],
    }  # fmt: skip
