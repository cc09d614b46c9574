"""No password and no payload in logs, errors, tracebacks, ``repr`` or the list of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from glidemq_orchestrate import (
    AsyncFlowProducer,
    AsyncQueue,
    ConnectionSettings,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Queue,
    Worker,
)
from glidemq_orchestrate.errors import GlideMQError, JobFailed
from glidemq_orchestrate.server.findings import rule
from tests.conftest import Eventually
from tests.processes import run, spawned
from tests.server.connections.guarded import SECRET, Guarded, running_guarded

LONG = timedelta(seconds=30)
OTHER = "hunter3"
PAYLOAD, RESULT = "payload-4711", "result-4712"
ROOT = Path(__file__).parents[3]

APP = f"""
from glidemq_orchestrate import Handlers
handlers = Handlers()

def good(ctx):
    ctx.progress({{"half": ctx.data}})
    return "{RESULT}"

def bad(ctx):
    raise ValueError("there is no such row")

handlers.handler("good")(good)
handlers.handler("good-apart", process=True)(good)
handlers.handler("bad")(bad)
handlers.handler("bad-apart", process=True)(bad)
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_guarded("valkey", tmp_path_factory.mktemp("guarded")) as server:
        server.set_user("worker", rule())
        yield server


def environment(directory: Path, url: str) -> dict[str, str]:
    path = os.pathsep.join([str(directory), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "GLIDEMQ_URL": url, "COLUMNS": "200"}


@pytest.mark.parametrize("options", [[], pytest.param(["--log-json"], marks=pytest.mark.long)])
def test_a_worker_shows_no_password_and_no_payload(
    guarded: Guarded, tmp_path: Path, options: list[str], eventually: Eventually
) -> None:
    (tmp_path / "secret_app.py").write_text(APP)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "secret_app", "--queue", "etl"]
    command += ["--log-level", "debug", *options]
    guarded.set_user("worker", rule())
    with (
        log.open("wb") as output,
        spawned(
            command,
            env=environment(tmp_path, guarded.url),
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
        Queue("etl", guarded.url) as queue,
        FlowProducer(guarded.url) as flows,
    ):
        for name in ("good", "good-apart"):
            assert queue.add_and_wait(name, PAYLOAD, timeout=LONG) == RESULT
        for name in ("bad", "bad-apart"):
            with pytest.raises(JobFailed, match="no such row"):
                queue.add_and_wait(name, {PAYLOAD: [PAYLOAD]}, options=JobOptions(attempts=2), timeout=LONG)
        queue.add("nobody-knows", PAYLOAD)
        guarded.admin.rpush("glide:{etl}:log:1", PAYLOAD)
        guarded.admin.hset("glide:{etl}:job:broken", mapping={"data": f"{{{PAYLOAD}", "name": "good"})
        guarded.admin.xadd("glide:{etl}:stream", {"jobId": "broken"})
        nodes = [
            FlowNode("a", queue="etl", job="good", data=PAYLOAD),
            FlowNode("b", queue="etl", job="bad", after=["a"]),
        ]
        flows.submit(FlowSpec("n", nodes), flow_id=f"f{len(options)}").wait(timeout=LONG)

        running = [
            process.pid,
            *(child.pid for child in psutil.Process(process.pid).children(recursive=True)),
        ]
        assert len(running) > 1  # with the process of handlers and the guard
        for pid in running:
            with suppress(psutil.NoSuchProcess):
                assert "hunter" not in " ".join(psutil.Process(pid).cmdline())

        guarded.admin.execute_command("ACL", "SETUSER", "worker", "resetpass", f">{OTHER}")
        guarded.admin.execute_command("CLIENT", "KILL", "USER", "worker")
        eventually(lambda: "refused the user or password" in log.read_text(), timeout=30)
        guarded.set_user("worker", rule())
        eventually(lambda: "works again" in log.read_text(), timeout=60)
        process.terminate()
        process.wait(60)
    text = log.read_text()
    assert "no such row" in text
    for secret in ("hunter", PAYLOAD, RESULT):
        assert secret not in text


def test_no_command_shows_the_password(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("name: n\nnodes: [{name: a, queue: etl, job: nobody-knows}]\n")
    guarded.set_user("worker", rule())
    wrong = guarded.url.replace(SECRET, OTHER)
    torn = wrong.replace("127.0.0.1:", "[:")
    submit = ["flow", "submit", "flow.yaml", "--id", "f", "--no-wait"]
    for url, words in ((guarded.url, ["doctor"]), (guarded.url, submit), (wrong, submit), (torn, submit)):
        command = [sys.executable, "-m", "glidemq_orchestrate", *words]
        done = run(command, timeout=120, cwd=tmp_path, env=environment(tmp_path, url))
        assert done.stdout + done.stderr
        assert "hunter" not in done.stdout + done.stderr


async def test_a_traceback_with_locals_shows_no_password(guarded: Guarded, tmp_path: Path) -> None:
    """As error trackers, ``pytest -l`` and rich print it."""
    right = ConnectionSettings(f"valkey://127.0.0.1:{guarded.port}", user="worker", password=SECRET)
    settings = [
        replace(right, password=OTHER),
        replace(right, url=f"valkeys://127.0.0.1:{guarded.port}", connect_timeout=0.3, socket_timeout=0.3),
        replace(right, url="valkeys://127.0.0.1:1", ca=str(tmp_path / "none.pem")),
        replace(right, url="valkey://127.0.0.1:1"),
        replace(right, prefix="elsewhere"),
        replace(right, url="valkey+sentinel://127.0.0.1:1/main", sentinel_password=OTHER),
    ]
    for one in settings:
        with Queue("etl", one) as queue:
            _check(lambda queue=queue: queue.add("work"))
        async with AsyncQueue("etl", one) as again:
            try:
                await again.add("work")
            except GlideMQError as exc:
                _has_no_secret(exc)
            else:
                pytest.fail("it was added")


def _check(ask: Any) -> None:
    with pytest.raises(GlideMQError) as raised:
        ask()
    _has_no_secret(raised.value)


def _has_no_secret(exc: GlideMQError) -> None:
    shown = "".join(traceback.TracebackException.from_exception(exc, capture_locals=True).format())
    assert "    self = <" in shown
    lines = [line for line in shown.splitlines() if "hunter" in line]
    assert lines == []


async def test_no_repr_shows_the_password(guarded: Guarded) -> None:
    guarded.set_user("worker", rule())
    worker = Worker(guarded.url, queues=["etl"])
    with Queue("etl", guarded.url) as queue, FlowProducer(guarded.url) as flows:
        async with AsyncQueue("etl", guarded.url) as again, AsyncFlowProducer(guarded.url) as also:
            await again.counts()
            queue.counts()
            for thing in (worker, queue, flows, again, also):
                shown = [repr(thing), str(thing), *map(repr, vars(thing).values())]
                assert "hunter" not in " ".join(shown)
