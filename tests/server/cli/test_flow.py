"""``glidemq flow`` against a real server, as people and as programs use it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, Queue, RateLimit
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.cli.flow import flow_app, follow
from tests.builders import node
from tests.processes import end, spawn

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Dump

Glidemq = Callable[..., Any]


def fan(name: str = "nightly", **kw: Any) -> FlowSpec:
    items = [node(f"clean[{n}]", "extract", data={"month": n}) for n in range(12)]
    end = node("report", *(one.name for one in items))
    return FlowSpec(name, [node("extract", options=JobOptions(attempts=2)), *items, end], **kw)


@pytest.fixture
def glidemq(url: str) -> Glidemq:
    """Runs a command; the output of people and programs is ``.stdout``, errors are ``.stderr``."""
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [*words], env={"GLIDEMQ_URL": url})


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "nightly.json"
    path.write_text(json.dumps(fan(labels={"dag": "nightly"}).to_dict()))
    return str(path)


def work(ctx: Any) -> Any:
    ctx.log(f"at {ctx.node}")
    if ctx.node == "clean[3]" and ctx.flow_id.startswith("bad"):
        raise ValueError("no such month")
    return {"node": ctx.node, "long": "x" * 2000} if ctx.node == "extract" else len(ctx.inputs)


@pytest.fixture
def worker(run_worker: RunWorker) -> None:
    run_worker(["etl"], {"work": work})


FAULTS = {
    "after: [aa]": "UnknownDependency: {file}, line 5: unknown dependencies: b waits for aa; did you mean "
    "'a'?",
    "after: [c]": "CycleError: {file}, line 6: the flow has a cycle: c -> b -> c",
    "name: a": "DuplicateNode: {file}, line 5: node names must be unique; used more than once: a",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", ["submit", "graph"])
def test_an_error_of_the_whole_flow_names_file_and_line(
    glidemq: Glidemq, tmp_path: Path, fault: str, command: str
) -> None:
    file = tmp_path / "nightly.yaml"
    name = "" if "name" in fault else "name: b, "
    nodes = ["name: a", f"{name}{fault}", "name: c, after: [b]" if "b" in name else "name: c"]
    file.write_text("name: n\nqueue: etl\nnodes:\n" + "".join(f"  - {{{one}}}\n" for one in nodes))
    done = glidemq("flow", command, str(file))
    assert (done.exit_code, done.stderr.strip()) == (2, FAULTS[fault].format(file=file))


@pytest.mark.usefixtures("worker")
class TestEnded:
    def test_a_mended_file_runs_what_it_changed(self, glidemq: Glidemq, tmp_path: Path) -> None:
        path = tmp_path / "flow.json"

        def write(**data: Any) -> str:
            nodes = [node("clean[2]"), node("clean[3]", **data), node("end", "clean[3]")]
            path.write_text(json.dumps(FlowSpec("n", nodes).to_dict()))
            return str(path)

        assert (
            glidemq("flow", "submit", write(), "--id", "bad-1", "--idempotency-key", "first").exit_code == 1
        )
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

    def test_single_nodes_run_again_and_end_by_hand(self, glidemq: Glidemq, file: str) -> None:
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

    def test_every_change_may_be_fenced(self, glidemq: Glidemq, file: str) -> None:
        glidemq("flow", "submit", file, "--id", "bad-1")
        assert (
            glidemq("flow", "restart", "bad-1", "--generation", "0", "--idempotency-key", "r").exit_code == 1
        )
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

    def test_a_submitted_flow_is_shown_as_a_tree(self, glidemq: Glidemq, file: str) -> None:
        done = glidemq("flow", "submit", file, "--id", "n1")
        assert done.exit_code == 0, done.stderr
        lines = done.stdout.splitlines()
        assert "nightly  n1  completed  14/14 completed" in lines[0]
        assert [line.split("  ")[0].rstrip() for line in lines[3:6]] == [
            "✔ extract ◆", "✔ clean[0..11] ◆", "✔ report ◆"
        ]  # fmt: skip
        assert "12 nodes: 12 completed" in lines[4]
        assert lines[-1].startswith("◆ critical path: extract → clean[")

    def test_a_failed_flow_gives_1_and_says_why(self, glidemq: Glidemq, file: str) -> None:
        done = glidemq("flow", "submit", file, "--id", "bad-1", "--no-watch")
        assert done.exit_code == 1
        assert "✘ clean[3]" in done.stdout
        assert "upstream failed: clean[3]" in done.stdout
        shown = json.loads(glidemq("flow", "show", "bad-1", "--json").stdout)
        assert (shown["flow"]["failed"], shown["flow"]["completed"]) == (2, 12)

    def test_watching_an_ended_flow_reports_every_node_and_its_end(self, glidemq: Glidemq, file: str) -> None:
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
        assert [json.loads(line)["at"] for line in rest.stdout.splitlines()] == [
            c["at"] for c in changes[-2:]
        ]
        lines = glidemq("flow", "watch", "bad-2").stdout.splitlines()
        assert lines[4].split("  ")[1:] == ["clean[3]", "failed", "ValueError: no such month"]
        assert lines[-1].split("  ")[1:] == ["flow bad-2", "failed", "clean[3]: ValueError: no such month"]

    def test_lines_say_what_waits_why_and_until_when(self, glidemq: Glidemq, flows: FlowProducer) -> None:
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

    def test_lines_say_what_waits_for_its_turn_when_nothing_happens(
        self, glidemq: Glidemq, flows: FlowProducer, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.set_global_rate_limit(RateLimit(1, timedelta(minutes=1)))
        flows.submit(FlowSpec("n", [node("a"), node("b")]), flow_id="n1")
        watch = ("flow", "watch", "n1", "--lines", "--timeout")
        assert "rate limit" not in glidemq(*watch, "0.3").stdout
        monkeypatch.setattr(follow, "QUIET_SECONDS", 0.1)
        assert glidemq(*watch, "3").stdout.count("for the rate limit of queue etl") == 1
        flows.get("n1").cancel()

    def test_a_node_is_shown_with_all_there_is(self, glidemq: Glidemq, file: str) -> None:
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

    def test_flows_are_listed_by_state_label_and_age(self, glidemq: Glidemq, file: str) -> None:
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

    def test_a_listed_flow_is_one_line_with_its_whole_id(self, glidemq: Glidemq, file: str) -> None:
        flow_id = "a-flow-of-a-dag-with-a-long-name-" + "x" * 100
        glidemq("flow", "submit", file, "--id", flow_id)
        for words in ([], ["--full"]):
            _, line = glidemq("flow", "list", *words).stdout.splitlines()
            assert line.split()[:4] == [flow_id, "nightly", "completed", "14/14"]

    def test_a_flow_is_drawn_from_its_file_and_with_its_states(self, glidemq: Glidemq, file: str) -> None:
        drawn = glidemq("flow", "graph", file).stdout
        assert drawn.startswith("flowchart TD\n")
        assert "clean[0..11]<br/>12 nodes" in drawn
        assert drawn.count(" --> ") == 2
        assert glidemq("flow", "graph", file, "--fold", "0").stdout.count(" --> ") == 24
        assert glidemq("flow", "graph", file, "--format", "dot").stdout.startswith('digraph "nightly" {')
        glidemq("flow", "submit", file, "--id", "bad-4")
        assert "12 nodes: 11 completed, 1 failed" in glidemq("flow", "graph", "bad-4").stdout

    def test_a_flow_of_a_function(
        self, glidemq: Glidemq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(sys.modules, "cli_flows", raising=False)
        (tmp_path / "cli_flows.py").write_text(
            "from tests.server.cli.test_flow import fan\n"
            "def build(day, **labels):\n    return fan(labels={'day': day} | labels)\n"
            "def busy():\n    raise OSError('no table of months')\n"
        )
        drawn = glidemq("flow", "graph", "cli_flows:build", "--arg", "day=2026-01-01")
        assert "clean[0..11]<br/>12 nodes" in drawn.stdout, drawn.stderr
        words = ("flow", "submit", "cli_flows:build", "--arg", "day=2026-01-01", "--arg", 'team="etl"')
        assert glidemq(*words, "--id", "made", "--json").exit_code == 0
        shown = json.loads(glidemq("flow", "show", "made", "--json").stdout)["flow"]
        assert shown["labels"] == {"day": "2026-01-01", "team": "etl"}
        again = ("cli_flows:build", "--arg", "day=2026-01-01", "--arg", "team=etl", "--id", "made")
        assert glidemq("flow", "plan", *again).stdout == "0 to run in generation 0, 14 kept\n"
        unread = glidemq("flow", "plan", "missing.yaml", "--id", "made")
        assert (unread.exit_code, "cannot read flow file missing.yaml" in unread.stderr) == (2, True)
        for source, given, message in (
            ("cli_flows:busy", (), "InvalidFlow: flow cli_flows:busy raised OSError: no table of months"),
            ("cli_flows:build", ("--arg", "day"), "ConfigurationError: --arg 'day' is not NAME=VALUE"),
            ("cli_flows:build", (), "missing a required argument: 'day'"),
        ):
            refused = glidemq("flow", "submit", source, *given)
            assert (refused.exit_code, message in refused.stderr) == (2, True), refused.stderr

    def test_a_failed_flow_is_run_again(self, glidemq: Glidemq, file: str) -> None:
        failed = glidemq("flow", "submit", file, "--id", "bad-5")
        assert "To run the nodes again that did not complete: glidemq flow retry bad-5." in failed.stderr
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


class TestRunning:
    def test_waiting_for_a_queue_without_workers_says_so(self, glidemq: Glidemq, file: str) -> None:
        options = ("--no-require-workers", "--timeout", "1.5")
        done = glidemq("flow", "submit", file, "--id", "n1", *options)
        assert (done.exit_code, "no live worker serves queue etl" in done.stderr) == (3, True), done.output

    def test_patience_is_bounded_with_its_own_code(self, glidemq: Glidemq, file: str) -> None:
        assert (
            glidemq("flow", "submit", file, "--id", "n1", "--no-wait", "--no-require-workers").exit_code == 0
        )
        for command in ("watch", "retry"):
            done = glidemq("flow", command, "n1", "--timeout", "0.2")
            assert done.exit_code == 3, done.output
            assert "WaitTimeout" in done.stderr
        cancelled = glidemq("flow", "cancel", "n1", "--reason", "wrong day")
        assert cancelled.exit_code == 0
        assert "cancelled: wrong day" in cancelled.stdout
        assert glidemq("flow", "watch", "n1").exit_code == 1

    def test_in_a_terminal_the_tree_is_live(
        self, url: str, file: str, run_worker: RunWorker, tmp_path: Path
    ) -> None:
        go = threading.Event()
        run_worker(["etl"], {"work": lambda ctx: ctx.node != "report" or go.wait(30)})
        with terminal(url, "flow", "submit", file, "--id", "n1") as shown:
            for wanted in ("▶ report ◆", "13/14 completed", "clean[0..11]"):
                shown.until(wanted)
            go.set()
            shown.until("14/14 completed")
            assert shown.ended() == 0

    @pytest.mark.parametrize("words", [["--json"], ["--lines"], []])
    def test_a_broken_connection_is_mended(
        self, url: str, words: list[str], flows: FlowProducer, run_worker: RunWorker, redis_client: Any
    ) -> None:
        flows.submit(fan(), flow_id="n1")
        with terminal(url, "flow", "watch", "n1", *words) as shown:
            shown.until("extract")
            redis_client.client_kill_filter(_type="normal", skipme=True)
            run_worker(["etl"], {"work": work})
            assert shown.ended() == 0
        assert "report" in shown.text
        assert "Traceback" not in shown.text
        lines = [line for line in shown.text.splitlines() if '"extract"' in line and '"completed"' in line]
        assert len(lines) == (words == ["--json"])

    def test_an_interrupt_leaves_the_flow_alone(
        self, url: str, file: str, glidemq: Glidemq, flows: FlowProducer
    ) -> None:
        glidemq("flow", "submit", file, "--id", "n1", "--no-wait", "--no-require-workers")
        with terminal(url, "flow", "watch", "n1") as shown:
            shown.until("extract")
            shown.process.send_signal(signal.SIGINT)
            assert shown.ended() == 130
            assert "The flow continues. To watch it: glidemq flow watch n1" in shown.text
        assert flows.get("n1").status().state == "running"


class terminal:  # noqa: N801  reads as a with-block does
    """A command in a terminal of its own, and what it has written there."""

    def __init__(self, url: str, *words: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "GLIDEMQ_URL": url, "COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
        command = [sys.executable, "-m", "glidemq_orchestrate", *words]
        self.process = spawn(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.written = bytearray()

    @property
    def text(self) -> str:
        return self.written.decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)
        os.close(self.master)

    def parts(self) -> Iterator[bytes]:
        while True:
            try:
                part = os.read(self.master, 4096)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            yield part

    def until(self, wanted: str) -> None:
        parts = self.parts()
        while wanted not in self.plain():
            part = next(parts, None)
            if part is None:
                break
            self.written += part
        else:
            return
        raise AssertionError(f"{wanted!r} was never written:\n{self.text}")

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)

    def ended(self) -> int:
        for part in self.parts():
            self.written += part
        return self.process.wait(timeout=20)


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


def test_options_of_submit_that_mean_nothing_are_refused(
    glidemq: Glidemq, file: str, flows: FlowProducer, dump: Dump
) -> None:
    for words, expected in [
        (["--owner", ""], "owner '' is not valid"),
        (["--lease", "60"], "--lease: requires --owner"),
        (["--keep"], "--keep: requires --owner"),
        (["--owner", "me", "--lease", "1"], "lease must"),
        (
            ["--restart", "--retry-failed", "--id", "n1"],
            "--restart: is mutually exclusive with --retry-failed",
        ),
        (["--idempotency-key", "r"], "--idempotency-key: requires --id"),
        (["--id", ""], "flow id '' is not valid"),
        (["--id", "", "--dry-run"], "flow id '' is not valid"),
    ]:
        flows.list()  # the libraries are loaded
        before = dump()
        done = glidemq("flow", "submit", file, *words, "--no-require-workers", "--no-wait")
        told = " ".join(done.stderr.replace("│", " ").split())
        assert (done.exit_code, expected in told) == (2, True), done.output
        assert dump() == before


def test_a_node_that_is_not_there_and_a_foreign_position_are_reported(
    glidemq: Glidemq, flows: FlowProducer
) -> None:
    flows.submit(fan(), flow_id="n1")
    done = glidemq("flow", "node", "n1", "x")
    assert (done.exit_code, "NodeNotFound: flow n1 has no node x" in done.stderr) == (1, True)
    done = glidemq("flow", "watch", "n1", "--after", "0-0")
    assert (done.exit_code, "'0-0' is not a position of a watched flow" in done.stderr) == (2, True)


def test_the_schema_is_printed(glidemq: Glidemq) -> None:
    shown = json.loads(glidemq("flow", "schema").stdout)
    assert shown["title"] == "glidemq flow"
    assert set(shown["properties"]) >= {"name", "nodes", "labels", "retention"}


def test_every_command_explains_itself() -> None:
    for command in get_group(flow_app).commands:
        shown = CliRunner().invoke(app, ["flow", command, "--help"], terminal_width=200)
        assert shown.exit_code == 0
        assert len(shown.output) > 250
        assert f"flow {command}" in shown.output


def test_the_exit_codes_are_documented() -> None:
    for words in (["flow"], ["flow", "submit"], ["flow", "watch"], ["flow", "retry"]):
        shown = CliRunner().invoke(app, [*words, "--help"], terminal_width=200).output
        assert "3 the flow did not end within --timeout" in " ".join(shown.split())
