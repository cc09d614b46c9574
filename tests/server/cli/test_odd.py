"""The command line shows what is stored, whatever bytes that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, Queue

ODD = b"caf\xe9\x01"
COMMANDS = [
    "queue list",
    "queue list --json",
    "queue show etl",
    "queue jobs etl",
    "scheduler list --queue etl",
    "flow list",
    "flow show x",
    "flow show x --json",
    "events --queue etl --from 0-0 --no-follow",
]


@pytest.fixture
def spoilt(queue: Queue, flows: FlowProducer, redis_client: Any) -> None:
    """A queue in which nothing can be read, beside one whose keys are of other types."""
    for _ in range(2):
        queue.add("work", 1)
    flows.submit(
        FlowSpec(
            "n", [FlowNode("a", queue="etl", job="w"), FlowNode("b", queue="etl", job="w", after=["a"])]
        ),
        flow_id="x",
    )
    job = {"name": ODD, "state": "here", "data": b"\xff", "failedReason": ODD, "progress": ODD}
    redis_client.hset("glide:{etl}:job:1", mapping=job)
    redis_client.hset("glide:{etl}:job:2", "name", ODD)
    redis_client.hset("glide:{etl}:gmo:flow:x", mapping={"name": ODD, "labels": "["})
    redis_client.hset("glide:{etl}:gmo:flow:x:nodes", ODD, b"[")
    redis_client.hset("glide:{etl}:schedulers", ODD, ODD)
    redis_client.xadd("glide:{etl}:events", {ODD: ODD, "event": ODD})
    redis_client.set("glide:{etl}:w:zz", ODD)
    redis_client.zadd("glide:{etl}:gmo:workers", {"zz": 9e15})
    redis_client.set(b"glide:{" + ODD + b"}:id", 1)
    redis_client.set("glide:{odd}:stream", "no stream")


RUN_ALL = """
import json, sys
from glidemq_orchestrate.cli import main

url, codes = sys.argv[1], []
for command in sys.argv[2:]:
    sys.argv[1:] = [*command.split(), "--url", url]
    try:
        main()
        codes.append(0)
    except SystemExit as end:
        codes.append(end.code)
print(json.dumps(codes))
"""


@pytest.mark.usefixtures("spoilt")
def test_every_command_shows_what_it_can(url: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    words = [sys.executable, "-c", RUN_ALL, url, *COMMANDS]
    ran = subprocess.run(words, capture_output=True, env=environment, timeout=60, check=False)
    assert ran.stderr == b""
    *shown, codes = ran.stdout.decode().splitlines()
    assert json.loads(codes) == [0] * len(COMMANDS)
    assert "WRONGTYPE" in shown[0] + shown[1] + shown[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("redirection", "code", "shown"),
    [(">&-", 0, ""), (">/dev/full", 1, "ConfigurationError: the output cannot be written: No space left")],
)
def test_an_output_that_cannot_be_written_is_no_traceback(redirection: str, code: int, shown: str) -> None:
    command = f"{sys.executable} -m glidemq_orchestrate flow schema {redirection}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert shown in done.stderr
