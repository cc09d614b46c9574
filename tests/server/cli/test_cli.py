"""The command line against a real server, as a user types it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli import app
from tests.processes import spawned

HANDLERS = """
from glidemq_orchestrate import Handlers, Unrecoverable

handlers = Handlers()

@handlers.handler("clean")
def clean(ctx):
    if ctx.data.get("broken"):
        raise Unrecoverable("no such month")
    return {"rows": ctx.data["month"]}

@handlers.handler("report")
async def report(ctx):
    return sum(result["rows"] for result in ctx.inputs.values())
"""
GLIDEMQ = [sys.executable, "-m", "glidemq_orchestrate"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "steps.py").write_text(HANDLERS)
    (tmp_path / "nightly.yaml").write_text(
        textwrap.dedent(
            """
            name: nightly
            nodes:
              - {name: clean-1, queue: etl, job: clean, data: {month: 1}}
              - {name: clean-2, queue: etl, job: clean, data: {month: 2}}
              - {name: report, queue: etl, job: report, after: [clean-1, clean-2]}
            """
        )
    )
    return tmp_path


@pytest.fixture
def worker(
    project: Path, url: str, eventually: Callable[..., object], redis_client: redis.Redis
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*GLIDEMQ, "worker", "--app", "steps", "--queue", "etl", "--url", url]
    with spawned(command, cwd=project, stderr=subprocess.PIPE) as process:
        eventually(lambda: redis_client.zcard("glide:{etl}:gmo:workers") == 1, timeout=60)
        yield process


def run(url: str, project: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*GLIDEMQ, *words],
        env={**os.environ, "GLIDEMQ_URL": url},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("worker")
def test_a_flow_file_is_submitted_watched_and_shown_again(url: str, project: Path) -> None:
    code, shown, _ = run(url, project, "flow", "submit", "nightly.yaml", "--id", "n1", "--json")
    outcome = json.loads(shown)

    assert code == 0
    assert outcome["flow"]["state"] == "completed"
    assert outcome["results"]["report"] == 3
    assert [node["name"] for node in outcome["nodes"]] == ["clean-1", "clean-2", "report"]

    code, shown, _ = run(url, project, "flow", "show", "n1")
    assert code == 0
    assert "3/3 completed" in shown


@pytest.mark.usefixtures("worker")
def test_a_failed_flow_gives_exit_code_1_and_its_reason(url: str, project: Path) -> None:
    text = (project / "nightly.yaml").read_text().replace("{month: 2}", "{month: 2, broken: true}")
    (project / "nightly.yaml").write_text(text)

    code, shown, _ = run(url, project, "flow", "submit", "nightly.yaml")

    assert code == 1
    assert "clean-2: no such month" in shown
    assert "upstream failed: clean-2" in shown


@pytest.mark.long
def test_a_flow_is_cancelled_and_run_again(
    url: str, project: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("GLIDEMQ_URL", url)

    def flow(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["flow", *words])
        return done.exit_code, done.stdout

    code, _ = flow("submit", "nightly.yaml", "--id", "n2", "--no-wait", "--no-require-workers")
    assert code == 0
    code, shown = flow("cancel", "n2", "--reason", "wrong day", "--json")
    assert (code, json.loads(shown)["flow"]["state"]) == (0, "cancelled")
    code, shown = flow("watch", "n2")
    assert code == 1
    assert "wrong day" in shown

    request.getfixturevalue("worker")
    code, shown = flow("retry", "n2", "--json")
    assert (code, json.loads(shown)["results"]["report"]) == (0, 3)


def test_a_worker_ends_with_0_on_sigterm(worker: subprocess.Popen[bytes], redis_client: redis.Redis) -> None:
    worker.send_signal(signal.SIGTERM)
    _, stderr = worker.communicate(timeout=20)

    assert worker.returncode == 0
    assert b"has stopped" in stderr
    assert redis_client.zcard("glide:{etl}:gmo:workers") == 0


WORKER = ["worker", "--app", "steps", "--queue", "etl"]


def test_a_wrong_request_gets_one_clear_sentence(
    url: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("GLIDEMQ_URL", url)
    for words, code, expected in [
        (["flow", "show", "nobody"], 1, "FlowNotFound: no flow nobody on this server"),
        (
            ["flow", "submit", "nightly.yaml"],
            1,
            "QueueNotServed: no worker serves queue etl. Fix: glidemq worker",
        ),
        (["flow", "submit", "missing.yaml"], 2, "ConfigurationError: cannot read flow file missing.yaml"),
        (["flow", "submit", "steps.py"], 2, "InvalidFlow: steps.py"),
        (["worker", "--app", "nothing", "--queue", "q"], 2, "there is no module nothing"),
        (["worker", "--app", "json", "--queue", "q"], 2, "json has no handlers"),
        (["worker", "--app", "steps", "--queue", "a:b"], 2, "queue name 'a:b' is not valid"),
        ([*WORKER, "--processes", "0"], 2, "Invalid value for '--processes'"),
        ([*WORKER, "--processes", "11"], 2, "--processes 11 is more than --concurrency 10, which the"),
        ([*WORKER, "--processes", "1000000", "--concurrency", "1000000"], 2, "are available. Fix: at most"),
        ([*WORKER, "--max-jobs", "0"], 2, "Invalid value for '--max-jobs'"),
        ([*WORKER, "--max-memory", "much"], 2, "must be a size such as 800MB or 1GiB"),
        ([*WORKER, "--max-memory", "1MB"], 2, "max_memory is 1 MiB, but a process uses"),
        (["flow", "show", "x", "--url", "http://here"], 2, "does not name a server"),
        (["demo", "--orchestrator", "cron"], 2, "must be airflow or dagster"),
        (["demo", "--project", "/nowhere"], 2, "has no dags/airflow"),
    ]:
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, expected in done.stderr) == (code, True), done.output


@pytest.mark.long
def test_what_goes_wrong_is_no_traceback(url: str, project: Path) -> None:
    code, _, stderr = run(url, project, "flow", "show", "x", "--url", "valkey://127.0.0.1:1")

    assert code == 4
    assert "ConnectionFailed: cannot connect" in stderr
    assert "Traceback" not in stderr


def test_a_taken_port_is_named_with_what_to_do(project: Path, url: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, _, stderr = run(url, project, "server", "--port", str(other.getsockname()[1]))

    assert code == 2
    assert "is taken; stop what listens there or choose another with --port" in stderr


@pytest.mark.long
def test_a_data_directory_in_use_is_named_with_what_to_do(project: Path, url: str) -> None:
    with EmbeddedServer(data_dir=project / "data") as first:
        code, _, stderr = run(url, project, "server", "--data", "data")
        assert code == 2
        assert f"is in use by another server ({first.url}, pid {first.pid}, " in " ".join(stderr.split())


def test_the_server_command_keeps_its_data(project: Path, eventually: Callable[..., object]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = redis.Redis(port=port, decode_responses=True)

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    for found in (None, "kept"):
        command = [*GLIDEMQ, "server", "--port", str(port)]
        with spawned(command, cwd=project, stdout=subprocess.PIPE) as server:
            eventually(answers, timeout=60)
            assert client.get("key") == found
            client.set("key", "kept")
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
            assert server.returncode == 0
    client.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGKILL, "was killed by signal 9 (Killed)"), (signal.SIGTERM, "ended with exit code 0")],
)
def test_the_server_command_ends_with_its_server(project: Path, number: int, expected: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pid_file = project / "data" / "valkey.pid"
    command = [*GLIDEMQ, "server", "--data", "data", "--port", str(port)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with spawned(command, cwd=project, **pipes) as server:
        assert server.stdout
        assert str(port) in server.stdout.readline()
        os.kill(int(pid_file.read_text()), number)
        _, stderr = server.communicate(timeout=10)
        assert server.returncode == 1
        assert f"Valkey {expected}. Its log: {pid_file.with_name('valkey.log')}" in stderr


def test_help_is_worth_reading() -> None:
    for words in ([], ["flow"], ["flow", "submit"], ["worker"], ["server"], ["demo"]):
        shown = CliRunner().invoke(app, [*words, "--help"], terminal_width=200)
        assert shown.exit_code == 0
        assert len(shown.output) > 300
