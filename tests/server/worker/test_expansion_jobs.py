"""Nodes that add a node for each item of a list that another node has returned."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.python.expand import JOB_NAME, run_expansion
from tests.conftest import RunWorker

MINUTE = timedelta(minutes=1)


def returns(name: str, value: Any, *after: str) -> FlowNode:
    return FlowNode(name, queue="etl", job="returns", data=value, after=after)


def expansion(over: Any, *after: str, **more: Any) -> FlowNode:
    data = {
        "template": {"name": "clean", "queue": "etl", "job": "sees"},
        "over": over,
        "into": "fields",
        "inputs": [{"node": "list", "to": ["over", *over] if over else ["over"]}],
        "before": ["report"],
        **more,
    }
    return FlowNode("clean", queue="etl", job="python.expand", data=data, after=after)


def gives(ctx: Context) -> Any:
    return ctx.data


def sees(ctx: Context) -> Any:
    return [ctx.data, sorted(ctx.inputs)]


def outcome(flows: FlowProducer, run_worker: RunWorker, *nodes: FlowNode) -> Any:
    run_worker(["etl"], {"returns": gives, "sees": sees, JOB_NAME: run_expansion})
    return flows.submit(FlowSpec("f", nodes)).wait(timeout=MINUTE)


def test_each_item_becomes_a_node_and_who_waits_gets_all_results(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    ended = outcome(
        flows,
        run_worker,
        returns("list", [7, 8]),
        returns("other", 1),
        expansion({"data": None}, "list", "other"),
        FlowNode("report", queue="etl", job="sees", after=["clean"]),
    )
    assert ended.results == {
        "list": [7, 8],
        "other": 1,
        "clean": {"nodes": 2},
        "clean[0]": [7, ["list", "other"]],
        "clean[1]": [8, ["list", "other"]],
        "report": [None, ["clean", "clean[0]", "clean[1]"]],
    }


def test_the_items_may_become_an_array(flows: FlowProducer, run_worker: RunWorker) -> None:
    ended = outcome(
        flows,
        run_worker,
        returns("list", [7, 8]),
        expansion({"data": None}, "list", array=True, max_running=1),
        FlowNode("report", queue="etl", job="sees", after=["clean"]),
    )
    counts = {"elements": 2, "completed": 2, "failed": 0, "skipped": 0}
    assert ended.results == {
        "list": [7, 8],
        "clean": {"nodes": 2},
        "clean[*]": counts,
        "report": [None, ["clean", "clean[*]"]],
    }
    assert flows.get(ended.status.id).array("clean[*]").results() == {0: [7, ["list"]], 1: [8, ["list"]]}


def test_nodes_of_a_function_get_only_the_results_that_they_name(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    call = {"callable": "m:f", "arguments": {"rows": None}, "inputs": [{"node": "part[*]", "to": ["rows"]}]}
    template = {"name": "clean", "queue": "etl", "job": "sees", "data": call}
    ended = outcome(
        flows,
        run_worker,
        returns("list", [{"month": 1}]),
        returns("part[0]", 1),
        returns("part[1]", 1),
        expansion(None, "list", "part[0]", "part[1]", template=template, into="arguments"),
        FlowNode("report", queue="etl", job="sees", after=["clean"]),
    )
    data, inputs = ended.results["clean[0]"]
    assert data["arguments"] == {"rows": None, "month": 1}
    assert inputs == ["part[0]", "part[1]"]


def test_an_empty_list_skips_the_node_and_what_follows(flows: FlowProducer, run_worker: RunWorker) -> None:
    nodes = [returns("list", []), expansion({"data": None}, "list"), returns("report", 1, "clean")]
    ended = outcome(flows, run_worker, *nodes)
    assert (ended.status.state, ended.status.skipped, ended.results) == ("completed", 2, {"list": []})


def test_what_is_no_list_and_what_is_no_expansion_fail_for_good(
    flows: FlowProducer, run_worker: RunWorker
) -> None:
    options: Any = {"template": {"job": "clean"}}
    nodes = [
        returns("list", 5),
        expansion({"data": None}, "list"),
        returns("report", 1, "clean"),
        FlowNode("no", queue="etl", job="python.expand", data={"over": 1, "other": 2}),
        FlowNode("bad", queue="etl", job="python.expand", data={**options, "over": [], "into": "fields"}),
    ]
    ended = outcome(flows, run_worker, *nodes)
    reasons = {one.name: one.reason for one in ended.failed}
    assert (
        "expansion clean: clean: it is expanded over data, which must be a list, got int" in reasons["clean"]
    )
    assert "needs template, over and into, and to be in a flow" in reasons["no"]
    assert "expansion bad: not a valid flow" in reasons["bad"]
