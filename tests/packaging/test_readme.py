"""The commands and examples of the README work."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from glidemq_orchestrate import (
    ConnectionSettings,
    Context,
    EmbeddedServer,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobState,
    Queue,
    Worker,
    check_flow,
)
from glidemq_orchestrate.cli import app

ROOT = Path(__file__).parents[2]
MINUTE = timedelta(minutes=1)
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_quick_start_runs_as_printed() -> None:
    code = next(block for block in blocks("python") if "EmbeddedServer()" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 22

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (0, "7800"), done.stderr


def block_with(word: str) -> str:
    return next(block for block in blocks("python") if word in block)


def test_the_calls_of_a_queue_run_as_printed() -> None:
    with EmbeddedServer() as server:
        exec(block_with("add_many"), {"server": server})
        with Queue("etl", server.url) as queue:
            assert sum(queue.counts().values()) == 14


def test_the_middleware_runs_as_printed() -> None:
    with EmbeddedServer() as server:
        names: dict[str, Any] = {"server": server, "Worker": Worker, "timedelta": timedelta}
        exec(block_with("Middleware"), names)
        worker: Worker = names["worker"]

        @worker.handler("load")
        def load(_: Context) -> None:
            raise ConnectionRefusedError

        with worker.running(), Queue("etl", server.url) as queue:
            job_id = queue.add("load")
            end = time.monotonic() + 60
            while queue.get_job(job_id).state is not JobState.DELAYED:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert queue.get_job(job_id).attempts_made == 0


def test_every_call_that_is_listed_exists() -> None:
    rows = re.findall(r"^\| [a-z ]+ \|(.*)\|$", README, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(names) > 40
    options = set(inspect.signature(Queue.search).parameters)
    assert {name for name in names - options if not callable(getattr(Queue, name, None))} == set()


def test_every_way_to_name_a_server_is_understood_as_printed() -> None:
    exec(code := block_with("ConnectionSettings("), {"secret": "hunter2"})
    urls = re.findall(r"^\| `([a-z+]+://[^`]+)`", README, re.MULTILINE)
    assert "+cluster://" in code
    assert {ConnectionSettings(url).kind for url in urls} == {"single", "cluster", "sentinel"}


def test_the_growing_flow_runs_as_printed() -> None:
    with EmbeddedServer() as server:
        worker = Worker(server.url, queues=["etl"])
        names: dict[str, Any] = {"worker": worker, "find_items": lambda: [1, 2, 3]}
        exec(block_with("months = map_over("), names)
        for job in ("extract", "clean", "report", "item", "total"):
            worker.handler(job)(lambda ctx: sorted(ctx.inputs))
        thread = threading.Thread(target=worker.run)
        thread.start()
        with FlowProducer(server.url) as flows:
            assert len(flows.submit(names["spec"], flow_id="a").result(timeout=MINUTE)) == 14
            split, total = (
                FlowNode("split", queue="etl", job="split"),
                FlowNode("total", queue="etl", job="total", after=["split"]),
            )
            results = flows.submit(FlowSpec("growing", [split, total]), flow_id="b").result(timeout=MINUTE)
        assert results["total"] == ["item[0]", "item[1]", "item[2]", "split"]
        worker.stop()
        thread.join(30)


def test_the_flow_file_is_a_valid_flow() -> None:
    flow = check_flow(FlowSpec.from_dict(yaml.safe_load(blocks("yaml")[0])))

    assert [node.name for node in flow.nodes] == ["clean", "report"]


def test_every_command_line_exists() -> None:
    commands = [line[2:].split("#")[0].split() for block in blocks("console") for line in block.splitlines()]
    root = get_command(app)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in commands:
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        elif words[0] == "glidemq":
            command = root
            rest = words[1:]
            while rest and hasattr(command, "commands"):
                command = command.commands[rest.pop(0)]
            known = {name for parameter in command.params for name in parameter.opts}
            assert {word for word in rest if word.startswith("--")} <= known


def test_every_link_to_a_file_leads_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README)

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
