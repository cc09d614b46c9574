"""Array nodes before they are sent: what they accept, and their form in flow files and on the wire."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from glidemq_orchestrate import ArrayNode, FlowNode, FlowSpec, Ordering, check_flow
from glidemq_orchestrate.errors import EncodeError, FlowTooLarge, GlideMQError, InvalidFlow, PayloadTooLarge
from glidemq_orchestrate.flows.arrays import CheckedArray
from glidemq_orchestrate.flows.elements import contains, summary_of
from glidemq_orchestrate.flows.nodes import split_name


def flow_of(**array: Any) -> FlowSpec:
    return FlowSpec("f", [ArrayNode("a", **array)], queue="q")


def checked(**array: Any) -> CheckedArray:
    (node,) = check_flow(flow_of(**array)).nodes
    assert node.array is not None
    return node.array


BAD: dict[str, tuple[dict[str, Any], type[GlideMQError]]] = {
    "node a: over is empty: an array has 1 to 100,000,000 elements": ({"over": []}, InvalidFlow),
    "node a: over has 100,000,001 elements; the limit is 100,000,000": (
        {"over": range(100_000_001)},
        FlowTooLarge,
    ),
    "node a: over has 1,000,000,000,000,000,000,000,000 elements; the limit is 100,000,000": (
        {"over": range(10**24)},
        FlowTooLarge,
    ),
    "node a: values and step of a range must be within ±9,007,199,254,740,991, got range(9": (
        {"over": range(2**53 - 1, 2**53 + 1)},
        InvalidFlow,
    ),
    "node a: values and step of a range must be within ±9,007,199,254,740,991, got range(-1": (
        {"over": range(-(10**19), 0, 10**18)},
        InvalidFlow,
    ),
    "node a: over must be a range or a list, got 5": ({"over": 5}, InvalidFlow),
    "node a: over must be a range or a list, got 'abc'": ({"over": "abc"}, InvalidFlow),
    "node a: item 1 is not JSON: it is NaN": ({"over": [1, float("nan")]}, EncodeError),
    "node a: item 1 is not JSON: Object of type object": ({"over": [1, object()]}, EncodeError),
    "node a: item 0 is 1,048,578 bytes": ({"over": ["x" * 1_048_576]}, PayloadTooLarge),
    "node a: data of an array must be an object": ({"over": [1], "data": [2]}, InvalidFlow),
    "node a: data of an array cannot have the key 'item'": ({"over": [1], "data": {"item": 2}}, InvalidFlow),
    "node a: an ordering key can contain {item} or {item.field}, got {itm.id} in 'c-{itm.id}'": (
        {"over": [{"id": 1}], "ordering": Ordering("c-{itm.id}")},
        InvalidFlow,
    ),
    "node a: as_jobs must be True or False, got 1": ({"over": [1], "as_jobs": 1}, InvalidFlow),
    "node a: max_running must be a whole number of at least 1, got 0": (
        {"over": [1], "max_running": 0},
        InvalidFlow,
    ),
    "node a: max_failed must be a whole number of at least 0, got True": (
        {"over": [1], "max_failed": True},
        InvalidFlow,
    ),
    "node a: max_failed must be a number or a share such as '1%', got '5'": (
        {"over": [1], "max_failed": "5"},
        InvalidFlow,
    ),
    "node a: max_failed must be a number or a share such as '1%', got '101%'": (
        {"over": [1], "max_failed": "101%"},
        InvalidFlow,
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_an_array_is_refused(message: str) -> None:
    given, error = BAD[message]
    with pytest.raises(error) as raised:
        check_flow(flow_of(**given))
    assert str(raised.value).startswith(message)


def test_a_range_is_two_numbers_however_long() -> None:
    array = checked(over=range(7, 100_000_007), max_running=5, max_failed="0.1%")
    assert array.chunks == ()
    assert json.loads(array.definition) == {
        "size": 100_000_000, "per": 0, "running": 5, "failed": 100_000, "start": 7, "step": 1,
    }  # fmt: skip
    assert array.digest == ""


def test_another_mistake_is_found_without_walking_the_range() -> None:
    begun = time.process_time()
    with pytest.raises(InvalidFlow, match="node b: after must be"):
        check_flow(
            FlowSpec("f", [ArrayNode("a", over=range(10**8)), FlowNode("b", after=5)], queue="q")  # type: ignore[arg-type]
        )
    assert time.process_time() - begun < 1


def test_items_are_packed_in_chunks_of_the_same_number() -> None:
    items = [{"at": at, "text": "line\nend"} for at in range(250)]
    array = checked(over=items)
    assert json.loads(array.definition)["per"] == 100
    lines = [line for chunk in array.chunks for line in chunk.split("\n")]
    assert [json.loads(line) for line in lines] == items
    large = checked(over=["x" * 30_000, "y"] * 3)
    assert [len(chunk.split("\n")) for chunk in large.chunks] == [2, 2, 2]
    assert array.digest != checked(over=items[:-1]).digest


def test_an_array_is_part_of_the_identity_of_its_flow() -> None:
    digests = {
        check_flow(flow_of(over=over, max_failed=limit)).digest
        for over in ([1, 2], [1, 3], range(2))
        for limit in (None, 1)
    }
    assert len(digests) == 6


def test_an_array_has_a_form_in_flow_files() -> None:
    wire = {
        "name": "n",
        "queue": "q",
        "nodes": [
            {"name": "a", "over": {"stop": 100}, "max_failed": "1%", "options": {"attempts": 3}},
            {"name": "b", "over": [1, {"c": None}], "max_running": 2, "as_jobs": True, "after": ["a"]},
            {"name": "c", "after": ["b"]},
        ],
    }
    spec = FlowSpec.from_dict(wire)
    first, second, last = spec.nodes
    assert isinstance(first, ArrayNode)
    assert (first.over, first.max_failed, first.options.attempts) == (range(100), "1%", 3)
    assert isinstance(second, ArrayNode)
    assert (second.over, second.max_running, second.as_jobs) == ([1, {"c": None}], 2, True)
    assert type(last) is FlowNode
    assert FlowSpec.from_dict(spec.to_dict()) == spec
    for wrong, message in (
        ({"max_failed": 3}, "max_running, max_failed, as_jobs are of arrays"),
        ({"over": {"stop": 3, "step": 0}}, "over: range"),
    ):
        with pytest.raises(InvalidFlow, match=message):
            FlowSpec.from_dict({"name": "n", "queue": "q", "nodes": [{"name": "a", **wrong}]})


def test_the_items_of_an_array_are_not_in_its_repr() -> None:
    assert "secret" not in repr(flow_of(over=["secret"]).nodes)


def test_names_and_texts_of_elements() -> None:
    assert split_name("clean[4711]") == ("clean", 4711)
    assert split_name("a[1][2]") == ("a[1]", 2)
    assert split_name("clean") is split_name("clean[-1]") is split_name("[1]") is None
    assert [at for at in range(12) if contains("0,3-5,10", at)] == [0, 3, 4, 5, 10]
    assert summary_of({"rows": 1}) is summary_of(7) is None
