"""A flow is watched as lines or JSON, to its end or for some time."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, Queue, RateLimit
from glidemq_orchestrate.cli.flow import follow
from tests.builders import node
from tests.server.cli.flow.conftest import Glidemq


@pytest.mark.usefixtures("worker")
def test_watching_an_ended_flow_reports_every_node_and_its_end(glidemq: Glidemq, file: str) -> None:
    glidemq("flow", "submit", file, "--id", "bad-2")
    done = glidemq("flow", "watch", "bad-2", "--json")
    changes = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 1
    assert [one["node"] for one in changes[:-1]] == [
        "extract", *(f"clean[{n}]" for n in range(12)), "report"
    ]  # fmt: skip
    assert (changes[-1]["flow"], changes[-1]["state"]) == ("bad-2", "failed")
    rest = glidemq("flow", "watch", "bad-2", "--json", "--after", changes[-3]["position"])
    assert [json.loads(line)["state"] for line in rest.stdout.splitlines()] == ["failed", "failed"]
    assert [json.loads(line)["at"] for line in rest.stdout.splitlines()] == [c["at"] for c in changes[-2:]]
    lines = glidemq("flow", "watch", "bad-2").stdout.splitlines()
    assert lines[4].split("  ")[1:] == ["clean[3]", "failed", "ValueError: no such month"]
    assert lines[-1].split("  ")[1:] == ["flow bad-2", "failed", "clean[3]: ValueError: no such month"]


@pytest.mark.usefixtures("worker")
def test_lines_say_what_waits_why_and_until_when(glidemq: Glidemq, flows: FlowProducer) -> None:
    later = JobOptions(delay=timedelta(minutes=5))
    nodes = [FlowNode(f"late-{i}", queue="etl", job="work", options=later) for i in range(4)]
    flows.submit(FlowSpec("n", [*nodes, FlowNode("lost", queue="nobody", job="work")]), flow_id="n1")
    lines = glidemq("flow", "watch", "n1", "--lines", "--timeout", "0.3").stdout.splitlines()
    waits = [line.split("  ")[1:] for line in lines if "  waits: " in line]
    (first, why), lost = waits
    assert first == "late-0, late-1, late-2 and 1 more"
    assert why.startswith("waits: until ")
    assert why.endswith(": its delay")
    assert lost == ["lost", "waits: no live worker serves queue nobody"]
    watched = glidemq("flow", "watch", "n1", "--json", "--timeout", "0.3").stdout.splitlines()
    *changes, late, lost = map(json.loads, watched)
    assert late["nodes"] == [f"late-{i}" for i in range(4)]
    assert (late["wait"]["reason"], late["wait"]["is_turn"]) == ("its delay", False)
    assert late["wait"]["until"] > late["at"]
    assert (lost["nodes"], lost["wait"]["until"]) == (["lost"], None)
    assert lost["position"] == changes[-1]["position"]
    flows.get("n1").cancel()
    for how in ("--lines", "--json"):
        assert "wait" not in glidemq("flow", "watch", "n1", how).stdout


@pytest.mark.usefixtures("worker")
def test_lines_say_what_waits_for_its_turn_when_nothing_happens(
    glidemq: Glidemq, flows: FlowProducer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.set_global_rate_limit(RateLimit(1, timedelta(minutes=1)))
    flows.submit(FlowSpec("n", [node("a"), node("b")]), flow_id="n1")
    watch = ("flow", "watch", "n1", "--lines", "--timeout")
    assert "rate limit" not in glidemq(*watch, "0.3").stdout
    monkeypatch.setattr(follow, "QUIET_SECONDS", 0.1)
    assert glidemq(*watch, "3").stdout.count("for the rate limit of queue etl") == 1
    flows.get("n1").cancel()


def test_a_queue_without_workers_is_reported(glidemq: Glidemq, file: str) -> None:
    options = ("--no-require-workers", "--timeout", "1.5")
    done = glidemq("flow", "submit", file, "--id", "n1", *options)
    assert (done.exit_code, "no live worker serves queue etl" in done.stderr) == (3, True), done.output


def test_a_timeout_has_an_exit_code_of_its_own(glidemq: Glidemq, file: str) -> None:
    assert glidemq("flow", "submit", file, "--id", "n1", "--no-wait", "--no-require-workers").exit_code == 0
    for command in ("watch", "retry"):
        done = glidemq("flow", command, "n1", "--timeout", "0.2")
        assert done.exit_code == 3, done.output
        assert "WaitTimeout" in done.stderr
    cancelled = glidemq("flow", "cancel", "n1", "--reason", "wrong day")
    assert cancelled.exit_code == 0
    assert "cancelled: wrong day" in cancelled.stdout
    assert glidemq("flow", "watch", "n1").exit_code == 1
