"""Flows and nodes as they are shown and listed."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, FlowSpec, JobOptions, Rule
from tests.builders import node
from tests.server.cli.flow.conftest import Glidemq, fan

if TYPE_CHECKING:
    from tests.conftest import RunWorker


@pytest.mark.usefixtures("worker")
def test_a_submitted_flow_is_shown_as_a_tree(glidemq: Glidemq, file: str) -> None:
    done = glidemq("flow", "submit", file, "--id", "n1")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "nightly  n1  completed  14/14 completed" in lines[0]
    assert [line.split("  ")[0].rstrip() for line in lines[3:6]] == [
        "✔ extract ◆", "✔ clean[0..11] ◆", "✔ report ◆"
    ]  # fmt: skip
    assert "12 nodes: 12 completed" in lines[4]
    assert lines[-1].startswith("◆ critical path: extract → clean[")


@pytest.mark.usefixtures("worker")
def test_a_failed_flow_exits_with_1_and_says_why(glidemq: Glidemq, file: str) -> None:
    done = glidemq("flow", "submit", file, "--id", "bad-1", "--no-watch")
    assert done.exit_code == 1
    assert "✘ clean[3]" in done.stdout
    assert "upstream failed: clean[3]" in done.stdout
    shown = json.loads(glidemq("flow", "show", "bad-1", "--json").stdout)
    assert (shown["flow"]["failed"], shown["flow"]["completed"]) == (2, 12)


@pytest.mark.usefixtures("worker")
def test_a_node_is_shown_with_its_inputs_result_and_logs(glidemq: Glidemq, file: str) -> None:
    glidemq("flow", "submit", file, "--id", "n2")
    shown = glidemq("flow", "node", "n2", "extract").stdout
    for part in ("queue", "completed", "at extract", "characters; --full shows all)"):
        assert part in " ".join(shown.split())
    full = glidemq("flow", "node", "n2", "extract", "--full").stdout
    assert full.count("x") > 2000 > shown.count("x")
    one = json.loads(glidemq("flow", "node", "n2", "report", "--json").stdout)
    assert (one["result"], len(one["inputs"]), one["logs"]) == (12, 12, ["at report"])
    assert one["inputs"]["clean[3]"] == 1
    assert one["attempts"] == 1
    assert "input clean[11]" in glidemq("flow", "node", "n2", "report").stdout
    ((version,), served) = one["handler"]["code"], one["handler"]["served_by"]
    assert (one["code"], served, version["path"].partition(":")[0]) == (
        "",
        1,
        "tests.server.cli.flow.conftest",
    )
    assert f"{version['path']} ({version['file']})" in " ".join(shown.split())


@pytest.mark.usefixtures("worker")
def test_a_node_whose_job_was_removed_is_shown_without_it(glidemq: Glidemq, file: str) -> None:
    glidemq("flow", "submit", file, "--id", "bad-1", "--no-watch")
    for state in ("failed", "completed"):
        glidemq("queue", "clean", "etl", "--state", state, "--yes")
    shown = glidemq("flow", "node", "bad-1", "clean[3]")
    assert shown.exit_code == 0, shown.stderr
    assert "removed" in shown.stdout
    assert json.loads(glidemq("flow", "node", "bad-1", "clean[3]", "--json").stdout)["removed"]


def test_what_ran_because_of_a_failure_is_kept_and_its_inputs_are_those_it_had(
    glidemq: Glidemq, url: str, run_worker: RunWorker
) -> None:
    is_mended = threading.Event()

    def work(ctx: Any) -> Any:
        if ctx.node == "bad" and not is_mended.is_set():
            raise ValueError("no such day")
        if ctx.node == "good" and ctx.attempt == 1:
            raise ValueError("too early")
        return sum(ctx.inputs.values()) if ctx.node == "total" else 1

    run_worker(["etl"], {"work": work})
    with FlowProducer(url) as flows:
        spec = FlowSpec(
            "n",
            [
                node("good", options=JobOptions(attempts=2)),
                node("bad"),
                node("total", "good", "bad", rule=Rule.ALL_DONE),
            ],
        )
        flows.submit(spec, flow_id="stale").wait()
        time.sleep(1.1)  # the times of two workers are compared to the second
        is_mended.set()
        again = glidemq("flow", "retry", "stale")
        assert (again.exit_code, again.stdout.splitlines()[0]) == (0, "Run again: bad")
        kept = "Kept, although a node before them had failed: total. To run them again too: "
        assert f"{kept}glidemq flow rerun stale total" in again.stderr
        shown = " ".join(glidemq("flow", "node", "stale", "total").stdout.split())
        assert "input bad 1 (later than this run, which did not have it)" in shown
        one = json.loads(glidemq("flow", "node", "stale", "total", "--json").stdout)
        assert (one["result"], one["inputs"], one["later_inputs"]) == (1, {"good": 1}, {"bad": 1})
        shown = " ".join(glidemq("flow", "node", "stale", "good").stdout.split())
        assert "reason ValueError: too early (an earlier attempt)" in shown
        assert glidemq("flow", "rerun", "stale", "total").exit_code == 0
        one = json.loads(glidemq("flow", "node", "stale", "total", "--json").stdout)
        assert (one["result"], one["inputs"], one["later_inputs"]) == (2, {"good": 1, "bad": 1}, {})


@pytest.mark.usefixtures("worker")
def test_flows_are_listed_by_state_label_and_age(glidemq: Glidemq, file: str) -> None:
    assert "No flows yet." in glidemq("flow", "list").stdout
    glidemq("flow", "submit", file, "--id", "n3")
    glidemq("flow", "submit", file, "--id", "bad-3")

    def ids(*words: str) -> list[str]:
        return [one["id"] for one in json.loads(glidemq("flow", "list", "--json", *words).stdout)]

    assert ids() == ["bad-3", "n3"]
    assert ids("--state", "failed") == ["bad-3"]
    assert ids("--label", "dag=nightly", "--limit", "1") == ["bad-3"]
    assert ids("--label", "dag=other") == []
    assert ids("--since", "1h") == ["bad-3", "n3"]
    assert ids("--since", "2999-01-01") == []
    shown = glidemq("flow", "list").stdout
    assert "dag=nightly" not in shown
    assert "dag=nightly" in glidemq("flow", "list", "--full").stdout
    assert "clean[3]: ValueError: no such month" in shown.replace("\n", "")
    assert "No flows match all filters." in glidemq("flow", "list", "--since", "0s").stdout


@pytest.mark.usefixtures("worker")
def test_a_listed_flow_is_one_line_with_its_whole_id(glidemq: Glidemq, file: str) -> None:
    flow_id = "a-flow-of-a-dag-with-a-long-name-" + "x" * 100
    glidemq("flow", "submit", file, "--id", flow_id)
    for words in ([], ["--full"]):
        _, line = glidemq("flow", "list", *words).stdout.splitlines()
        assert line.split()[:4] == [flow_id, "nightly", "completed", "14/14"]


def test_a_wrong_request_gets_one_clear_sentence(glidemq: Glidemq) -> None:
    for words, code, expected in [
        (["watch", "nobody"], 1, "FlowNotFound: no flow nobody on this server"),
        (["node", "nobody", "a"], 1, "FlowNotFound: no flow nobody"),
        (["graph", "nobody"], 1, "FlowNotFound: no flow nobody"),
        (["graph", "missing.yaml"], 2, "cannot read flow file missing.yaml"),
        (["list", "--label", "dag"], 2, "--label must be KEY=VALUE"),
        (["list", "--since", "soon"], 2, "--since must be an age such as 90m, 2h or 7d"),
        (["list", "--limit", "0"], 2, "limit must be 1 to 10,000"),
    ]:
        done = glidemq("flow", *words)
        assert (done.exit_code, expected in done.stderr) == (code, True), done.output


def test_a_missing_node_and_a_foreign_position_are_reported(glidemq: Glidemq, flows: FlowProducer) -> None:
    flows.submit(fan(), flow_id="n1")
    done = glidemq("flow", "node", "n1", "x")
    assert (done.exit_code, "NodeNotFound: flow n1 has no node x" in done.stderr) == (1, True)
    done = glidemq("flow", "watch", "n1", "--after", "0-0")
    assert (done.exit_code, "'0-0' is not a position of a watched flow" in done.stderr) == (2, True)


def test_a_list_of_flows_says_that_there_are_more(glidemq: Glidemq, flows: FlowProducer) -> None:
    for at in range(3):
        flows.submit(FlowSpec("n", [node("a")]), flow_id=f"f{at}")
    *_, last, more = glidemq("flow", "list", "--limit", "2").stdout.splitlines()
    assert last.startswith("f1 ")
    assert more == "There are more flows; --limit shows more."
    assert [one["id"] for one in json.loads(glidemq("flow", "list", "--limit", "2", "--json").stdout)] == [
        "f2",
        "f1",
    ]
    assert "more" not in glidemq("flow", "list", "--limit", "3").stdout
    assert glidemq("flow", "list", "--limit", "0").exit_code == 2
