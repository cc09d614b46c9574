"""From the tasks of a group to a flow: pure."""

from __future__ import annotations

from typing import Any

import pytest
from airflow_provider_glidemq.group_flow import EXPAND_JOB, flow_of, is_node_of, ordered

from glidemq_orchestrate import FlowNode
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.python.expand import JOB_NAME

OVER_RESULT = {
    "over": {"month": None},
    "into": "arguments",
    "inputs": [{"node": "a", "to": ["over", "month"]}],
}

ITEMS: list[tuple[Any, list[Any]]] = [
    ({"x": [1, 2], "y": ["a", "b"]}, [(1, "a"), (1, "b"), (2, "a"), (2, "b")]),
    ({"x": {"k": 1}, "y": (3,)}, [(["k", 1], 3)]),
    ([{"x": 1, "y": 2}, {"x": 3, "y": 4}], [(1, 2), (3, 4)]),
]

NO_LISTS: list[tuple[Any, str]] = [
    ({"month": 5}, "b: it is expanded over month, which must be a list, got int"),
    ({"month": "text"}, "must be a list, got str"),
    ({"month": None}, "must be a list, got None"),
    ([{"month": 1}, 2], "a list of dicts, got int in it"),
]


def task(name: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "queue": "q", "job": "j", "after": list(after), "options": {}, **more}


def call(name: str, *after: str, **more: Any) -> dict[str, Any]:
    data = {"callable": "m:f", "arguments": {"rows": 1}}
    return task(name, *after, data=data, **more)


def nodes(*tasks: dict[str, Any]) -> dict[str, FlowNode]:
    return {node.name: node for node in flow_of("etl", tasks).spec.nodes}


def over(lists: Any, into: str = "arguments") -> dict[str, Any]:
    return {"over": lists, "into": into}


def test_a_task_becomes_a_node_with_its_dependencies_rule_and_options() -> None:
    found = nodes(task("a"), task("b", "a", rule="all_done", options={"attempts": 3}, data={"n": 1}))
    assert found["b"].after == ["a"]
    assert (found["b"].rule, found["b"].options.attempts, found["b"].data) == ("all_done", 3, {"n": 1})


def test_an_expanded_task_becomes_a_node_for_each_item() -> None:
    found = nodes(task("a"), call("b", "a", expand=over({"month": [7, 8]})), task("c", "b", "a"))
    assert list(found) == ["a", "b[0]", "b[1]", "c"]
    assert found["b[1]"].data == {"callable": "m:f", "arguments": {"rows": 1, "month": 8}}
    assert found["b[1]"].after == ["a"]
    assert found["c"].after == ["b[0]", "b[1]", "a"]


def test_items_are_those_of_airflow_in_its_order(subtests: pytest.Subtests) -> None:
    for lists, items in ITEMS:
        with subtests.test(lists=lists):
            found = nodes(call("b", expand=over(lists))).values()
            given: list[Any] = [node.data["arguments"] for node in found]  # type: ignore[index, call-overload]
            assert [(one["x"], one["y"]) for one in given] == items


def test_the_nodes_of_an_expanded_job_differ_in_the_fields_that_were_given() -> None:
    lists = [{"data": 1}, {"data": 2, "queue_name": "other", "options": {"attempts": 4}}]
    found = nodes(task("b", expand=over(lists, "fields")))
    assert (found["b[0]"].data, found["b[0]"].queue, found["b[0]"].options.attempts) == (1, "q", 1)
    assert (found["b[1]"].data, found["b[1]"].queue, found["b[1]"].options.attempts) == (2, "other", 4)


def test_what_is_no_list_is_refused(subtests: pytest.Subtests) -> None:
    for lists, why in NO_LISTS:
        with subtests.test(lists=lists), pytest.raises(InvalidFlow, match=why):
            nodes(call("b", expand=over(lists)))


def test_a_field_that_nodes_do_not_have_is_refused() -> None:
    with pytest.raises(InvalidFlow, match="expanded over 'retries', and nodes differ in queue_name, job"):
        nodes(task("b", expand=over([{"retries": 1}], "fields")))


def test_an_empty_list_skips_the_task_and_what_its_rule_skips_with_it() -> None:
    made = flow_of(
        "etl",
        [
            task("a"),
            call("b", "a", expand=over({"month": []})),
            task("c", "b"),
            task("d", "c", "a"),
            task("e", "c", "a", rule="none_failed"),
            task("f", "b", rule="all_done"),
        ],
    )
    assert made.skipped == ("b", "c", "d")
    assert {node.name: list(node.after) for node in made.spec.nodes} == {"a": [], "e": ["a"], "f": []}


def test_a_group_in_which_all_is_skipped_is_refused() -> None:
    with pytest.raises(InvalidFlow, match="every task is skipped"):
        flow_of("etl", [call("b", expand=over({"month": []}))])


def test_a_node_adds_the_others_once_the_result_is_there() -> None:
    found = nodes(
        task("a"),
        call("b", "a", expand=OVER_RESULT),
        task("c", "b"),
        call("d", "b", expand=over({"x": [1, 2]})),
    )
    expander: Any = found["b"]
    assert EXPAND_JOB == JOB_NAME == expander.job
    assert expander.after == ["a"]
    assert expander.data["before"] == ["c", "d[0]", "d[1]"]
    assert {key: expander.data[key] for key in OVER_RESULT} == OVER_RESULT
    template = expander.data["template"]
    assert (template["name"], template["job"], template["data"]) == ("b", "j", call("b")["data"])
    assert found["c"].after == ["b"]


def test_at_most_a_hundred_nodes_wait_for_what_a_node_adds() -> None:
    with pytest.raises(InvalidFlow, match="b: 101 nodes wait for it"):
        nodes(task("a"), call("b", "a", expand=OVER_RESULT), call("c", "b", expand=over({"x": range(101)})))


def test_an_expanded_task_may_become_an_array() -> None:
    expansion = over({"month": [7, 8], "day": [1]}) | {"array": True, "max_running": 3}
    found = nodes(task("a"), call("b", "a", expand=expansion, options={"attempts": 2}), task("c", "b", "a"))
    assert list(found) == ["a", "b[*]", "c"]
    array: Any = found["b[*]"]
    assert (array.after, array.options.attempts, array.max_running) == (["a"], 2, 3)
    assert (array.data, array.over) == (
        {"callable": "m:f", "arguments": {"rows": 1}}, [{"month": 7, "day": 1}, {"month": 8, "day": 1}],
    )  # fmt: skip
    assert found["c"].after == ["b[*]", "a"]
    made = flow_of("etl", [task("a"), call("b", expand=over({"x": []}) | {"array": True}), task("c", "b")])
    assert made.skipped == ("b", "c")


def test_elements_of_a_job_differ_in_data_only() -> None:
    array: Any = nodes(task("b", expand=over({"data": [1, "x"]}, "fields") | {"array": True}))["b[*]"]
    assert (array.data, array.over) == (None, [1, "x"])
    for items in ([{"data": 1, "options": {}}], [{"data": 1}, {}]):
        with pytest.raises(InvalidFlow, match="b: elements of an array differ in data"):
            nodes(task("b", expand=over(items, "fields") | {"array": True}))


def test_a_node_adds_an_array_once_the_result_is_there() -> None:
    found = nodes(task("a"), call("b", "a", expand={**OVER_RESULT, "array": True}), task("c", "b"))
    expander: Any = found["b"]
    assert (expander.data["array"], expander.data["before"]) == (True, ["c"])


def test_results_of_an_expanded_task_are_in_the_order_of_its_items() -> None:
    assert ordered({"b[10]": 10, "b[9]": 9, "b[0]": 0}) == [0, 9, 10]
    assert is_node_of("b[3]", "b")
    assert is_node_of("b", "b")
    assert not is_node_of("bc[3]", "b")
