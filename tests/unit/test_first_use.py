"""A worker in a thread and a producer beside it may be the first to need the driver at the same moment."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import networkx as nx
import pytest

from glidemq_orchestrate.flows.forms.file import FlowFile, validated, write_graph
from glidemq_orchestrate.foundation.importing import _ONE_AT_A_TIME

RACE = """
import threading
from glidemq_orchestrate import AsyncFlowProducer, FlowProducer
from glidemq_orchestrate.errors import ConnectionFailed
import asyncio

outcomes = []
start = threading.Barrier(2)

def ask(call):
    start.wait()
    try:
        call()
    except ConnectionFailed:
        outcomes.append("no server")
    except BaseException as exc:
        outcomes.append(repr(exc))

url = "valkey://127.0.0.1:1"
threads = [
    threading.Thread(target=ask, args=(lambda: FlowProducer(url).get("f"),)),
    threading.Thread(target=ask, args=(lambda: asyncio.run(AsyncFlowProducer(url).get("f")),)),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(outcomes)
"""


def test_both_kinds_of_driver_can_be_imported_at_the_same_moment() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['no server', 'no server']", done.stdout


FORKS = """
import os, signal, sys, threading, time
import glidemq_orchestrate as g
from glidemq_orchestrate import clients
from glidemq_orchestrate.errors import ConnectionFailed, GlideMQError
import asyncio

url = "valkey://127.0.0.1:1"
spec = g.FlowSpec("n", [g.FlowNode("a", queue="etl", job="work")])
job = g.JobTemplate("a")
ways = {
    "client": lambda: g.Queue("etl", url).counts(),
    "async client": lambda: asyncio.run(g.AsyncQueue("etl", url).counts()),
    "worker": lambda: g.Worker(url, queues=["etl"]),
    "graph": lambda: spec.to_graph(),
    "schedule": lambda: clients.Schedules("etl", url).upsert("x", g.Schedule(cron="0 2 * * *"), job),
    "file": lambda: g.FlowSpec.from_file(sys.argv[2]),
}

def use():
    try:
        ways[sys.argv[1]]()
    except ConnectionFailed:
        pass

ready = threading.Event()
turn, begin = os.pipe()

def first():
    ready.set()
    use()

thread = threading.Thread(target=first)
thread.start()
ready.wait()
children = []
while thread.is_alive() and len(children) < 20:
    pid = os.fork()
    if pid == 0:
        os.read(turn, 1)
        signal.alarm(280)  # kills a child that hangs
        try:
            use()
        except BaseException as exc:
            print(repr(exc), flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
    time.sleep(0.004)
thread.join()
ends = []
for _ in children:  # each imports for itself; all at once would be slow
    os.write(begin, b".")
    ends.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(len(ends) > 0, [end for end in ends if end])
"""


@pytest.mark.parametrize("way", ["client", "async client", "worker", "graph", "schedule", "file"])
def test_a_fork_while_a_thread_imports_hangs_no_child(way: str, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("{name: n, nodes: [{name: a, queue: etl, job: work}]}")
    program = [sys.executable, "-W", "ignore", "-c", FORKS, way, str(file)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []", done.stdout


LATER = """
import asyncio, sys
import glidemq_orchestrate as g
from glidemq_orchestrate.errors import ConnectionFailed
import glidemq_orchestrate.io.aio, glidemq_orchestrate.io.sync
from glidemq_orchestrate import AsyncQueue, Queue
from glidemq_orchestrate._lua import library

def ask(call):
    before = set(sys.modules)
    try:
        call()
    except ConnectionFailed:
        pass
    print(sorted(set(sys.modules) - before))

url = "valkey://localhost:1"
ask(lambda: g.Queue("etl", url).counts())
ask(lambda: asyncio.run(g.AsyncQueue("etl", url).counts()))
ask(lambda: library("glidemq"))
"""


def test_nothing_is_imported_once_the_driver_is_there() -> None:
    program = [sys.executable, "-W", "ignore", "-c", LATER]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["[]"] * 3, done.stdout


def test_nobody_forks_while_a_library_is_used_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At their first use pydantic and networkx lock what they make: a child forked then waits for ever."""
    free: list[bool] = []

    def check(*_: object, **__: object) -> None:
        thread = threading.Thread(target=lambda: free.append(_ONE_AT_A_TIME.acquire(timeout=0.1)))
        thread.start()
        thread.join()

    monkeypatch.setattr(FlowFile, "model_validate", check)
    validated({"name": "n"})
    assert free == [False]

    monkeypatch.setattr(nx, "DiGraph", check)
    write_graph([], {})
    assert free == [False, False]
