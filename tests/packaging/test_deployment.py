"""What the pages on deploying and upgrading print does what they say: units, manifests, scaling, backups."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from redis import Redis

from glidemq_orchestrate import (
    Context,
    EmbeddedServer,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    Queue,
    Worker,
)
from glidemq_orchestrate.cli.shell import seconds
from glidemq_orchestrate.errors import FlowNotFound
from tests.packaging.test_docs import blocks
from tests.server.lua.servers import installed, running, valkey_binary

if TYPE_CHECKING:
    from tests.conftest import Eventually

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ROOT / "docs" / "how-to"
DEPLOYMENT: Final = (PAGES / "deployment.md").read_text("utf-8")
UPGRADING: Final = (PAGES / "upgrading.md").read_text("utf-8")
BIN: Final = Path(sys.executable).parent
UNIT: Final = blocks("ini", DEPLOYMENT)[0]
KUBERNETES: Final = "1.30"

STEPS: Final = """
import time

from glidemq_orchestrate import Handlers

handlers = Handlers()

@handlers.handler
def load(ctx):
    ctx.progress(1)
    time.sleep(0.5)
    return 7
"""


def of_unit(key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def environment(url: str, folder: Path) -> dict[str, str]:
    return {**os.environ, "GLIDEMQ_URL": url, "PATH": f"{folder}:{BIN}:{os.environ['PATH']}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the worker runs: the package that the examples name."""
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "steps.py").write_text(STEPS)
    return tmp_path


def manifest() -> dict[str, Any]:
    (text,) = blocks("yaml", DEPLOYMENT)
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def container() -> dict[str, Any]:
    (only,) = manifest()["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def stops_cleanly(words: list[str], url: str, folder: Path, eventually: Eventually) -> None:
    """The command serves the queue; on SIGTERM it finishes its job, leaves none active, and ends with 0."""
    words = [str(BIN / Path(words[0]).name), *words[1:]]
    with (
        Queue("etl", url) as queue,
        subprocess.Popen(
            words, cwd=folder, env=environment(url, folder), stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            eventually(queue.workers, 60)
            job_id = queue.add("load")
            eventually(
                lambda: queue.get_job(job_id).progress == 1
            )  # it runs: what is only fetched is handed back
        finally:
            process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert all(line.startswith("{") for line in log.splitlines()), log
        job = queue.get_job(job_id)
        assert (job.state, job.result) == (JobState.COMPLETED, 7)
        assert queue.counts()[JobState.ACTIVE] == 0


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "etl.service"
    program = of_unit("ExecStart").split()[0]
    unit.write_text(UNIT.replace(program, str(BIN / "glidemq")))
    done = subprocess.run(
        [installed("systemd-analyze", package="systemd"), "verify", "--man=no", unit],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_the_command_of_the_unit_stops_cleanly(url: str, folder: Path, eventually: Eventually) -> None:
    assert of_unit("Environment").startswith("GLIDEMQ_URL=")
    stops_cleanly(shlex.split(of_unit("ExecStart")), url, folder, eventually)


def test_nobody_kills_a_worker_that_still_waits_for_its_jobs() -> None:
    unit, args = shlex.split(of_unit("ExecStart")), container()["args"]
    grace = manifest()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert int(of_unit("TimeoutStopSec")) > seconds()(unit[unit.index("--stop-after") + 1])
    assert grace > seconds()(args[args.index("--stop-after") + 1])


def test_kubernetes_accepts_the_manifest() -> None:
    import_module("kubernetes_validate").validate(manifest(), KUBERNETES, strict=True)
    spec = manifest()["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@pytest.mark.long
def test_the_command_of_the_container_stops_cleanly(url: str, folder: Path, eventually: Eventually) -> None:
    assert [each["name"] for each in container()["env"]] == ["GLIDEMQ_URL"]
    stops_cleanly(container()["args"], url, folder, eventually)


def test_the_probe_tells_whether_a_worker_serves_the_queue(url: str, folder: Path) -> None:
    image = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
    python, program, *queues = container()["readinessProbe"]["exec"]["command"]
    assert f"COPY docker/healthcheck.py {program}" in image
    command = [BIN / python, ROOT / "docker" / Path(program).name, *queues]

    def probe() -> int:
        return subprocess.run(
            command, env=environment(url, folder), capture_output=True, timeout=60, check=False
        ).returncode

    assert probe() == 1
    with Calls().worker(url, "etl").running():
        assert probe() == 0


@pytest.mark.long
def test_the_commands_that_scale_count_what_can_run_and_what_runs(url: str, folder: Path) -> None:
    (commands,) = blocks("bash", DEPLOYMENT)
    (folder / "kubectl").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "kubectl").chmod(0o755)

    def scaled() -> str:
        done = subprocess.run(
            ["bash", "-ec", commands], env=environment(url, folder), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    installed("jq", package="jq")
    name = manifest()["metadata"]["name"]
    with Queue("etl", url) as queue:
        assert scaled() == f"scale deployment/{name} --replicas=1"
        for number in range(12):
            queue.add("load", priority=number)
        queue.add("load", delay=3600)
        assert scaled() == f"scale deployment/{name} --replicas=2"


@pytest.mark.long
def test_the_supervisor_stops_cleanly(url: str, folder: Path) -> None:
    (line,) = re.findall(r"^\$ (glidemq supervise .*)$", DEPLOYMENT, re.MULTILINE)
    with subprocess.Popen(
        [BIN / "glidemq", *line.split()[1:]], env=environment(url, folder), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "etl" in process.stderr.readline()
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.long
def test_the_commands_of_an_upgrade_run(url: str, folder: Path) -> None:
    lines = re.findall(r"`(glidemq (?:library|doctor)[^`]*)`", UPGRADING)
    assert {line.split()[1] for line in lines} == {"library", "doctor"}
    for line in dict.fromkeys(lines):
        done = subprocess.run(
            [BIN / "glidemq", *line.split()[1:]], env=environment(url, folder), capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)


@contextmanager
def restored(data: Path, *arguments: str) -> Iterator[tuple[str, Any]]:
    """A server with these arguments whose data are in ``data``; its URL, and a plain client."""
    with running(valkey_binary(), data, *arguments) as port, Redis(port=port, decode_responses=True) as plain:
        yield f"valkey://127.0.0.1:{port}", plain


NIGHTLY: Final = FlowSpec(
    "nightly",
    nodes=[
        FlowNode("load", queue="first", job="load"),
        FlowNode("clean", queue="etl", job="clean", after=["load"]),
        FlowNode("report", queue="etl", job="report", after=["clean"]),
    ],
)


class Calls:
    """Workers that note what they run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def worker(self, url: str, *queues: str) -> Worker:
        worker = Worker(url, queues=queues)
        for name in ("load", "clean", "report"):
            worker.handler(name)(self._run)
        return worker

    def _run(self, ctx: Context) -> str:
        self.names.append(ctx.name)
        return ctx.name


@pytest.mark.parametrize("kind", ["dump.rdb", "appendonlydir"])
def test_flows_continue_from_a_backup(kind: str, tmp_path: Path, eventually: Eventually) -> None:
    data, backup, new = tmp_path / "data", tmp_path / "backup", tmp_path / "new"
    backup.mkdir()
    new.mkdir()
    saving = [commands for commands in blocks("console", UPGRADING) if f"{kind} /backup/" in commands]
    calls = Calls()
    with (
        EmbeddedServer(data_dir=data) as server,
        FlowProducer(server.url) as flows,
        Redis.from_url(server.url.replace("valkey:", "redis:"), decode_responses=True) as plain,
        Queue("etl", server.url) as queue,
    ):
        with calls.worker(server.url, "first").running():
            flow = flows.submit(NIGHTLY, flow_id="before")
            eventually(lambda: queue.counts()[JobState.WAITING])
        queue.add("load", delay=3600)

        for line in re.findall(r"^\$ (.*)$", saving[0], re.MULTILINE):
            words = line.split()
            if words[0] == "valkey-cli":
                plain.execute_command(*words[1:])
                continue
            eventually(lambda: _is_quiet(plain))
            copied = [
                word.replace("/var/lib/valkey", str(data)).replace("/backup", str(backup)) for word in words
            ]
            subprocess.run(copied, check=True)

        with calls.worker(server.url, "first", "etl").running():
            assert flow.result(timeout=timedelta(minutes=1))["report"] == "report"
            flows.submit(NIGHTLY, flow_id="after").wait(timeout=timedelta(minutes=1))
    assert calls.names == ["load", "clean", "report"] * 2

    calls.names.clear()
    shutil.copytree(backup, new, dirs_exist_ok=True)
    (restoring,) = [commands for commands in blocks("console", UPGRADING) if "valkey-server" in commands]
    (arguments,) = re.findall(r"^\$ valkey-server \S+ (.*)$", restoring, re.MULTILINE)
    start = arguments.split() if kind == "dump.rdb" else ["--appendonly", "yes"]
    with restored(new, *start) as (url, plain), FlowProducer(url) as flows, Queue("etl", url) as queue:
        for line in re.findall(r"^\$ valkey-cli (.*)$", restoring, re.MULTILINE):
            plain.execute_command(*line.split())
        assert queue.counts()[JobState.DELAYED] == 1
        with pytest.raises(FlowNotFound):
            flows.get("after").status()
        with calls.worker(url, "first", "etl").running():
            flow = flows.get("before")
            assert flow.wait(timeout=timedelta(minutes=1)).state is FlowState.COMPLETED
            assert calls.names == ["clean", "report"]
            again = flows.submit(NIGHTLY, flow_id="after")
            assert again.wait(timeout=timedelta(minutes=1)).state is FlowState.COMPLETED
        assert (new / "appendonlydir").is_dir()


def test_a_server_with_an_append_only_file_ignores_a_snapshot(tmp_path: Path) -> None:
    with restored(tmp_path, "--appendonly", "no", "--save", "") as (_, plain):
        plain.set("a", 1)
        plain.save()
    with restored(tmp_path, "--appendonly", "yes") as (_, plain):
        assert plain.exists("a") == 0


def _is_quiet(plain: Redis) -> bool:
    """Neither a snapshot nor a new append-only file is being written."""
    about = plain.info("persistence")
    return not about["rdb_bgsave_in_progress"] and not about["aof_rewrite_in_progress"]
