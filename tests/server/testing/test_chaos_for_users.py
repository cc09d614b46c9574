"""Chaos for flows of users: every way of not being safe is found, and safe steps are not accused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.cli import app as command_line
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows import FlowOutcome
from glidemq_orchestrate.testing.chaos import Act, ChaosReport, FindingKind, effect, run_chaos
from glidemq_orchestrate.testing.chaos.stage import Stage
from tests.processes import runs, spawned
from tests.server.testing.outside import FOLDER

if TYPE_CHECKING:
    from tests.conftest import Eventually

APP: Final = "tests.server.testing.chaos_steps"
OUTSIDE: Final = "tests.server.testing.outside"
ROOT: Final = Path(__file__).parents[3]
TWICE: Final = FindingKind.EFFECT_REPEATED
LEASE: Final = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.chdir(ROOT)
    return folder


def flow_of(*jobs: str, **data: Any) -> FlowSpec:
    return FlowSpec("nightly", [FlowNode(job, queue="etl", job=job, data=data.get(job)) for job in jobs])


def kinds_of(report: ChaosReport) -> dict[str, set[FindingKind]]:
    kinds: dict[str, set[FindingKind]] = defaultdict(set)
    for finding in report.findings:
        kinds[finding.step].add(finding.kind)
    return kinds


@pytest.mark.long
def test_every_step_that_is_not_safe_is_found_and_no_other() -> None:
    unsafe = ["charge", "crunch", "pay", "claimed", "stamp", "exclusive", "pool", "new key"]
    jobs = ["pure", "once", "grow", *unsafe]
    report = run_chaos(
        flow_of(*jobs, charge="order 7"), app=APP, runs=5, lease=LEASE, at_once=5, queues=["more"],
        effects=[f"{OUTSIDE}:{name}" for name in ("Bank.pay", "Bank.close", "Bank.audit", "send")],
        acts=[Act.KILL],
    )  # fmt: skip
    kinds = kinds_of(report)
    assert kinds.pop("charge") >= {TWICE}
    assert kinds.pop("crunch") >= {TWICE}
    assert kinds.pop("pay") >= {TWICE}
    assert kinds.pop("pool") >= {TWICE}
    assert kinds.pop("new key") == {FindingKind.KEY_CHANGES}
    assert kinds.pop("claimed") == {FindingKind.EFFECT_MISSING}
    assert kinds.pop("stamp") == {FindingKind.RESULT_DIFFERS}
    assert kinds.pop("exclusive") == {FindingKind.ENDS_DIFFERENTLY}
    assert not kinds, report.findings
    by_name = {step.step: step for step in report.steps}
    assert {by_name[name].verdict for name in ("pure", "once", "grow")} == {"safe"}
    assert by_name["pure"].nodes == 2  # one that a handler has added
    assert {by_name[name].verdict for name in ("charge", "stamp")} == {"not safe"}
    assert by_name["charge"].strikes == dict.fromkeys(
        ("start", "midway", "after an effect", "after the return"), 1
    )
    differing = next(one for one in report.findings if one.kind is FindingKind.RESULT_DIFFERS)
    assert differing.detail == "at $.at[0]"
    shown = str(report)
    assert "charge order 7" in shown
    assert "secret" not in shown


@pytest.mark.long
def test_the_marks_of_batches_count_when_they_name_their_job() -> None:
    spec = FlowSpec("batched", [FlowNode(f"b{at}", queue="etl", job="batch") for at in range(3)])
    report = run_chaos(
        spec, app=APP, runs=2, lease=LEASE, acts=[Act.PAUSE], workers=2,
        effects=[f"{OUTSIDE}:Bank.pay", f"{OUTSIDE}:claim"],
    )  # fmt: skip
    assert {TWICE} <= kinds_of(report)["batch"] <= {TWICE, FindingKind.STALE_EFFECT}
    assert any("marks of Bank.pay were made outside a handler" in note for note in report.notes)
    assert f"{OUTSIDE}:claim was never called" in report.notes


@pytest.mark.long
def test_a_flow_that_an_interrupted_attempt_holds_up_does_not_end() -> None:
    report = run_chaos(
        flow_of("stuck"), app=APP, runs=3, lease=LEASE, acts=[Act.KILL], timeout=timedelta(seconds=8)
    )
    assert kinds_of(report) == {"": {FindingKind.NOT_ENDED}}


@pytest.mark.long
def test_a_run_is_seen_again_by_its_number_and_a_check_sees_its_outcome() -> None:
    seen: list[str] = []

    def check(outcome: FlowOutcome) -> None:
        seen.append(outcome.status.id)
        assert outcome.results == {"allowed": ["json"]}
        assert "-calm-" in outcome.status.id, "two rows"

    def campaign() -> ChaosReport:
        return run_chaos(
            flow_of("allowed"), app=APP, runs=40, seed=3, only=[17], check=check, lease=LEASE, workers=1,
            allow_import=["json"],
        )  # fmt: skip

    both = [campaign() for _ in range(2)]
    assert [flow_id.split("-")[2] for flow_id in seen] == ["calm", "17"] * 2
    assert len(set(seen)) == 4  # what an earlier campaign has left behind is not met again
    assert both[0].runs == 1
    assert both[0].strikes == both[1].strikes != {}
    assert [step.strikes for step in both[0].steps] == [step.strikes for step in both[1].steps]
    [finding] = both[0].findings
    assert (finding.kind, finding.run) == (FindingKind.CHECK_FAILED, 17)
    assert "two rows" in finding.detail


@pytest.mark.long
def test_a_check_sees_what_a_paused_attempt_does_when_it_continues(outside: Path) -> None:
    seen: list[int] = []

    def check(outcome: FlowOutcome) -> bool:
        seen.append(len((outside / f"late {outcome.status.id}").read_text()))
        return seen[-1] == 1

    report = run_chaos(
        flow_of("late"), app=APP, runs=2, only=[1], lease=LEASE, acts=[Act.PAUSE], workers=2, check=check
    )
    assert seen == [1, 2]
    [finding] = report.findings
    assert (finding.kind, finding.detail) == (FindingKind.CHECK_FAILED, "returned False")


def test_a_pause_lasts_until_another_worker_has_taken_over(tmp_path: Path, eventually: Eventually) -> None:
    with Stage(tmp_path / "stage", 0) as stage, spawned(["sleep", "60"]) as process:

        def is_stopped() -> bool:
            stage.tend()
            return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED

        stage.pause_seconds = 0.5
        process.send_signal(signal.SIGSTOP)
        job = {"flow": "f", "node": "a"}
        stage.ledger.write("strike", moment="midway", act=str(Act.PAUSE), pids=[process.pid], **job)
        eventually(is_stopped)
        time.sleep(0.7)
        assert is_stopped()
        stage.ledger.write("begin", **job)
        eventually(lambda: not is_stopped())
        assert not stage.is_calm


@pytest.mark.long
def test_a_step_that_fails_in_peace_is_refused_or_allowed() -> None:
    with pytest.raises(ConfigurationError, match=r"node fails failed: KeyError\. Fix: correct that"):
        run_chaos(flow_of("fails"), app=APP, runs=1, lease=LEASE)
    with pytest.raises(ConfigurationError, match="node unheard failed: no worker can run it"):
        run_chaos(flow_of("unheard"), app=APP, runs=1, lease=LEASE)
    report = run_chaos(flow_of("fails"), app=APP, runs=1, lease=LEASE, may_fail=True, acts=[Act.DISCONNECT])
    assert report.is_safe


def test_a_check_that_would_never_be_awaited_is_refused() -> None:
    async def check(outcome: FlowOutcome) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="check must not be async"):
        run_chaos(flow_of("pure"), app=APP, check=check)


def test_a_mark_outside_of_a_campaign_does_nothing() -> None:
    effect("charge", 7)


@pytest.mark.long
def test_steps_that_are_called_by_import_path_are_told_apart() -> None:
    """Those of Spark. A path that no worker may import is no step's name: it may be anything."""
    paths = [f"{APP}:nightly", f"{APP}:other", "secret:word"]
    nodes = [
        FlowNode(f"n{at}", queue="etl", job="pure", data={"callable": path}) for at, path in enumerate(paths)
    ]
    report = run_chaos(FlowSpec("n", nodes), app=APP, runs=1, lease=LEASE, acts=[Act.DISCONNECT])
    assert [step.step for step in report.steps] == [*paths[:2], "pure"]


@pytest.mark.long
def test_a_part_that_may_differ_is_no_finding() -> None:
    chaos = {"app": APP, "runs": 3, "lease": LEASE, "acts": [Act.PAUSE], "may_differ": ["$.at"]}
    report = run_chaos(flow_of("stamp"), **chaos)  # type: ignore[arg-type]
    assert report.steps[0].repeats
    report.assert_safe()
    with pytest.raises(ConfigurationError, match=r"may_differ must be a list of paths such as \$.path"):
        run_chaos(flow_of("stamp"), app=APP, may_differ=["at"])


class TestTheCommand:
    def test_it_reports_and_ends_with_1(self, tmp_path: Path) -> None:
        file = tmp_path / "flow.json"
        file.write_text(json.dumps({"name": "n", "nodes": [{"name": "a", "queue": "etl", "job": "stamp"}]}))
        options = ["--app", APP, "--runs", "2", "--lease", "1", "--strike", "pause"]
        found = CliRunner().invoke(command_line, ["chaos", "run", str(file), *options])
        assert found.exit_code == 1, found.output
        assert "stamp: result differs: at $.at[0]" in found.stdout
        assert "--run " in found.stdout

    @pytest.mark.long
    def test_json_and_0_when_all_is_safe(self, tmp_path: Path) -> None:
        file = tmp_path / "flow.json"
        file.write_text(json.dumps({"name": "n", "nodes": [{"name": "a", "queue": "etl", "job": "pure"}]}))
        options = ["--app", APP, "--runs", "8", "--at-once", "8", "--lease", "1", "--json"]
        found = CliRunner().invoke(command_line, ["chaos", "run", str(file), *options])
        assert found.exit_code == 0, found.output
        report = json.loads(found.stdout)
        assert report["safe"] is True
        assert set(report["strikes"]) == set(Act)
        assert report["steps"][0]["repeats"] >= 1

    @pytest.mark.long
    def test_a_flow_of_a_function_as_an_operator_of_airflow_has_it(self) -> None:
        source, given = f"{APP}:nightly", ["--arg", "jobs=[1, 2]", "--arg", "name=2026-01-01"]
        options = ["--app", APP, "--runs", "2", "--lease", "1", "--strike", "kill", "--json"]
        found = CliRunner().invoke(command_line, ["chaos", "run", source, *given, *options])
        assert found.exit_code == 0, found.output
        report = json.loads(found.stdout)
        assert (report["flow"], [step["nodes"] for step in report["steps"]]) == ("2026-01-01", [2])

    @pytest.mark.long
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted_it_reports_what_has_ended(
        self, number: signal.Signals, tmp_path: Path, eventually: Eventually
    ) -> None:
        file = tmp_path / "flow.json"
        file.write_text(json.dumps({"name": "n", "nodes": [{"name": "a", "queue": "etl", "job": "pure"}]}))
        command = [sys.executable, "-m", "glidemq_orchestrate", "chaos", "run", str(file), "--app", APP]
        command += ["--runs", "1000", "--lease", "1", "--strike", "kill", "--json"]
        command += ["--keep", str(tmp_path / "kept")]
        log, ledger = tmp_path / "log", tmp_path / "kept" / "ledger.jsonl"
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT)
            eventually(lambda: ledger.exists() and ledger.read_text().count('"kind":"completed"') > 8, 60)
            process.send_signal(number)
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, log.read_text()
        report = json.loads(said)
        assert 0 < report["runs"] < report["planned"] == 1000
        assert report["notes"] == [
            f"stopped after {report['runs']} of 1000 runs: the others were not completed"
        ]

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--app", "no_such_module"], "there is no module no_such_module"),
            (["--app", APP, "--effect", "os:nothing"], "effect 'os:nothing': os has no function nothing"),
            (["--app", APP, "--check", "os:environ"], "check 'os:environ' is not a function"),
            (["--app", APP, "--runs", "3", "--run", "4"], "there is no run 4"),
            (["--app", APP, "--arg", "day=1"], "--arg is only valid for package.module:function"),
        ],
    )
    def test_what_is_wrong_is_named_and_ends_with_2(
        self, tmp_path: Path, options: list[str], message: str
    ) -> None:
        file = tmp_path / "flow.json"
        file.write_text(json.dumps({"name": "n", "nodes": [{"name": "a", "queue": "etl", "job": "pure"}]}))
        found = CliRunner().invoke(command_line, ["chaos", "run", str(file), *options])
        assert found.exit_code == 2, found.output
        assert message in found.stderr


@pytest.mark.long
def test_a_flow_that_does_not_end_by_itself_is_refused() -> None:
    nodes = [FlowNode(name, queue="etl", job=name[:-1]) for name in ("stuck1", "stuck2", "suspended1")]
    with pytest.raises(
        ConfigurationError, match=r"did not end within 30 s without any strike.*; suspended: suspended1, and"
    ):
        run_chaos(FlowSpec("n", nodes), app=APP, runs=1, lease=LEASE, timeout=timedelta(seconds=30))


CAMPAIGN: Final = f"""
from glidemq_orchestrate.testing.chaos import run_chaos
from glidemq_orchestrate import FlowNode, FlowSpec
spec = FlowSpec("n", [FlowNode("a", queue="etl", job="crunch"), FlowNode("b", queue="etl", job="charge")])
run_chaos(spec, app="{APP}", runs=1000, progress=lambda text: print(text, flush=True))
"""


@pytest.mark.long
def test_nothing_is_left_of_a_campaign_that_is_killed(eventually: Eventually) -> None:
    process = subprocess.Popen([sys.executable, "-c", CAMPAIGN], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        while b"3 strikes" not in process.stdout.readline():
            pass
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 4
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    eventually(lambda: not any(map(runs, below)), 30)
