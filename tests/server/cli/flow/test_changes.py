"""Flows that have ended run again, and single nodes run again or end manually."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import FlowSpec
from tests.builders import node
from tests.server.cli.flow.conftest import Glidemq


@pytest.mark.usefixtures("worker")
def test_a_changed_file_runs_what_has_changed(glidemq: Glidemq, tmp_path: Path) -> None:
    path = tmp_path / "flow.json"

    def write(**data: Any) -> str:
        nodes = [node("clean[2]"), node("clean[3]", **data), node("end", "clean[3]")]
        path.write_text(json.dumps(FlowSpec("n", nodes).to_dict()))
        return str(path)

    assert glidemq("flow", "submit", write(), "--id", "bad-1", "--idempotency-key", "first").exit_code == 1
    refused = glidemq("flow", "submit", write(data=1), "--id", "bad-1")
    assert "nodes that differ: clean[3] (data)" in refused.stderr
    plan = glidemq("flow", "submit", str(path), "--id", "bad-1", "--dry-run")
    assert plan.stdout.splitlines() == [
        "run   clean[3]  (changed: data)",
        "run   end  (was failed)",
        "2 to run in generation 1, 1 kept",
    ]
    assert glidemq("flow", "plan", str(path), "--id", "bad-1").stdout == plan.stdout
    found = json.loads(glidemq("flow", "plan", str(path), "--id", "bad-1", "--json").stdout)
    assert (found["keeps"], found["generation"]) == (["clean[2]"], 1)
    assert glidemq("flow", "submit", str(path), "--dry-run").exit_code == 2
    assert glidemq("flow", "submit", str(path), "--id", "bad-1", "--retry-failed").exit_code == 1
    assert glidemq("flow", "restart", "bad-1", "--idempotency-key", "again").exit_code == 1
    assert "generation 2" in glidemq("flow", "restart", "bad-1", "--idempotency-key", "again").stdout
    history = json.loads(glidemq("flow", "history", "bad-1", "--json").stdout)
    shown = [(one["generation"], one["state"], one["idempotency_key"]) for one in history]
    assert shown == [(0, "failed", "first"), (1, "failed", ""), (2, "failed", "again")]
    assert "stored_as" not in history[0]
    told = glidemq("events", "-q", "etl", "--from", "0-0", "--no-follow", "--flow", "bad-1").stdout
    ends = [line.split(maxsplit=1)[1] for line in told.splitlines()]
    assert ends == [f"flow.failed  bad-1{more}" for more in ("", " generation 1", " generation 2")]
    assert "failed" in glidemq("flow", "history", "bad-1").stdout
    stale = glidemq("flow", "cancel", "bad-1", "--generation", "1")
    assert (stale.exit_code, "generation 1 of flow bad-1 was superseded" in stale.stderr) == (1, True)


@pytest.mark.usefixtures("worker")
def test_single_nodes_run_again_and_end_manually(glidemq: Glidemq, file: str) -> None:
    glidemq("flow", "submit", file, "--id", "bad-1", "--no-watch")
    asked = ("flow", "rerun", "bad-1", "--error", "*", "--pattern", "clean[*]")
    again = json.loads(glidemq(*asked, "--json").stdout)
    assert (again["changed"], again["flow"]["failed"], len(again["nodes"])) == (["clean[3]"], 2, 14)
    again = glidemq("flow", "rerun", "bad-1", "clean[3]", "--json", "--no-wait")
    assert json.loads(again.stdout)["changed"] == ["clean[3]"]
    assert glidemq("flow", "watch", "bad-1").exit_code == 1
    again = glidemq("flow", "rerun", "bad-1", "--error", "*", "--pattern", "clean*", "--no-watch")
    assert (again.exit_code, again.stdout.splitlines()[0]) == (1, "Run again: clean[3]")
    mended = glidemq("flow", "complete-node", "bad-1", "clean[3]", "--result", '{"rows": 3}')
    assert (mended.exit_code, mended.stdout) == (0, "Completed: clean[3]\n"), mended.stderr
    assert glidemq("flow", "watch", "bad-1").exit_code == 0
    assert glidemq("flow", "complete-node", "bad-1", "clean[3]", "--result", '{"rows": 3}').stdout == (
        "Nothing was changed.\n"
    )
    anew = glidemq("flow", "restart", "bad-1", "report", "--no-watch")  # and keeps what was given by hand
    assert (anew.exit_code, "generation 1" in anew.stdout) == (0, True), anew.stderr
    unknown = glidemq("flow", "restart", "bad-1", "nope")
    assert (unknown.exit_code, "without a node nope" in unknown.stderr) == (1, True)
    skipped = glidemq("flow", "skip-node", "bad-1", "--pattern", "clean*", "--json")
    assert json.loads(skipped.stdout)["changed"] == [f"clean[{i}]" for i in range(12)]
    assert glidemq("flow", "cancel-node", "bad-1", "extract").stdout == "Nothing was changed.\n"
    bad = glidemq("flow", "complete-node", "bad-1", "extract", "--result", "{")
    assert (bad.exit_code, "--result is not valid JSON" in bad.stderr) == (2, True)
    unknown = glidemq("flow", "rerun", "bad-1", "nope")
    assert (unknown.exit_code, "the flow has no node nope" in unknown.stderr) == (1, True)


@pytest.mark.usefixtures("worker")
def test_a_change_of_an_older_generation_is_refused(glidemq: Glidemq, file: str) -> None:
    glidemq("flow", "submit", file, "--id", "bad-1")
    assert glidemq("flow", "restart", "bad-1", "--generation", "0", "--idempotency-key", "r").exit_code == 1
    assert "generation 1" in glidemq("flow", "show", "bad-1").stdout
    shown = glidemq("flow", "show", "bad-1", "--json").stdout
    for command in (
        ("retry",),
        ("restart",),
        ("restart", "extract"),
        ("rerun", "extract"),
        ("cancel-node", "extract"),
        ("complete-node", "clean[3]"),
        ("skip-node", "clean[3]"),
    ):
        done = glidemq("flow", command[0], "bad-1", *command[1:], "--generation", "0")
        assert (done.exit_code, "generation 0 of flow bad-1 was superseded" in done.stderr) == (1, True)
    assert glidemq("flow", "show", "bad-1", "--json").stdout == shown
    repeat = glidemq("flow", "restart", "bad-1", "--generation", "0", "--idempotency-key", "r")
    assert (repeat.exit_code, "generation 1" in repeat.stdout) == (1, True)
    done = glidemq("flow", "skip-node", "bad-1", "clean[3]", "--generation", "1")
    assert (done.exit_code, done.stdout) == (0, "Skipped: clean[3]\n")


@pytest.mark.usefixtures("worker")
def test_a_failed_flow_is_run_again(glidemq: Glidemq, file: str) -> None:
    failed = glidemq("flow", "submit", file, "--id", "bad-5")
    assert "To run the nodes again that did not complete: glidemq flow retry bad-5." in failed.stderr
    assert "glidemq flow submit FILE --id bad-5 --retry-failed" in failed.stderr.replace("\n", " ")
    again = glidemq("flow", "retry", "bad-5", "--json")
    assert again.exit_code == 1
    shown = json.loads(again.stdout)
    assert (shown["flow"]["completed"], shown["changed"]) == (12, ["clean[3]", "report"])
    again = glidemq("flow", "retry", "bad-5").stdout
    assert again.splitlines()[0] == "Run again: clean[3], report"
    glidemq("flow", "submit", file, "--id", "good-5")
    again = glidemq("flow", "retry", "good-5")
    said = "Nothing was changed: the flow has completed. To run it again: glidemq flow restart good-5"
    assert (again.exit_code, again.stdout.splitlines()[0]) == (0, said)
    assert glidemq("flow", "submit", file, "--id", "bad-5", "--retry-failed").exit_code == 1


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        (
            {"orchestrator": "airflow", "dag_id": "nightly", "task_id": "etl", "run_id": "manual"},
            "The Airflow task stays failed: now clear nightly/etl of run manual",
        ),
        (
            {"dagster_run": "r-1", "dagster_step": "etl"},
            "The Dagster run stays failed: now re-execute step etl of run r-1",
        ),
    ],
)
def test_a_retry_names_the_task_that_stays_failed(
    glidemq: Glidemq, tmp_path: Path, labels: dict[str, str], advice: str
) -> None:
    path = tmp_path / "flow.json"
    path.write_text(json.dumps(FlowSpec("n", [node("clean[3]")], labels=labels).to_dict()))
    glidemq("flow", "submit", str(path), "--id", "bad-6")
    again = glidemq("flow", "retry", "bad-6")
    assert advice in again.stderr
    assert "stays failed" not in glidemq("flow", "retry", "bad-6", "--json").stderr


@pytest.mark.usefixtures("worker")
def test_the_time_of_a_node_may_include_a_wait_in_its_worker(glidemq: Glidemq, file: str) -> None:
    glidemq("flow", "submit", file, "--id", "good-6")
    shown = glidemq("flow", "node", "good-6", "extract").stdout
    assert any(line.startswith("seconds") and "≤ " in line for line in shown.splitlines())


@pytest.mark.usefixtures("worker")
def test_the_beginning_of_an_id_suggests_whole_ids_and_changes_nothing(glidemq: Glidemq, file: str) -> None:
    glidemq("flow", "submit", file, "--id", "af-518519-long")
    for command in (("show", "af-518519"), ("node", "af-518519", "extract"), ("restart", "af-518519")):
        done = glidemq("flow", *command)
        said = "no flow af-518519 on this server. Ids that begin with it: af-518519-long"
        assert (done.exit_code, said in done.stderr) == (1, True)
    assert "generation 1" not in glidemq("flow", "show", "af-518519-long").stdout
