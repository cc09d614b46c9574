"""Flow files and functions: what is read, drawn and refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import FlowProducer
from tests.server.cli.flow.conftest import Glidemq

if TYPE_CHECKING:
    from tests.server.conftest import Dump


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
def test_a_flow_is_drawn_from_its_file_and_with_its_states(glidemq: Glidemq, file: str) -> None:
    drawn = glidemq("flow", "graph", file).stdout
    assert drawn.startswith("flowchart TD\n")
    assert "clean[0..11]<br/>12 nodes" in drawn
    assert drawn.count(" --> ") == 2
    assert glidemq("flow", "graph", file, "--fold", "0").stdout.count(" --> ") == 24
    assert glidemq("flow", "graph", file, "--format", "dot").stdout.startswith('digraph "nightly" {')
    glidemq("flow", "submit", file, "--id", "bad-4")
    assert "12 nodes: 11 completed, 1 failed" in glidemq("flow", "graph", "bad-4").stdout


@pytest.mark.usefixtures("worker")
def test_a_flow_is_made_by_a_function_with_arguments(
    glidemq: Glidemq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_flows", raising=False)
    (tmp_path / "cli_flows.py").write_text(
        "from tests.server.cli.flow.conftest import fan\n"
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


def test_options_of_submit_that_have_no_effect_are_refused(
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
