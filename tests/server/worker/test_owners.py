"""What a process has started does not outlive it, however it dies."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from glidemq_orchestrate import EmbeddedServer, Queue
from glidemq_orchestrate.lifeline import guard
from glidemq_orchestrate.lifeline.lifeline import Lifeline
from tests.processes import is_alive, is_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Eventually

OWNER = """
import sys, time
from glidemq_orchestrate import EmbeddedServer, Queue
with EmbeddedServer(data_dir=sys.argv[1]) as server:
    Queue("etl", server.url).add("a")
    print(server.pid, flush=True)
    time.sleep(600)
"""


def works_in(folder: Path) -> list[int]:
    """Processes whose working directory is the folder."""
    return [each.pid for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)]


def start(*command: Any, **kw: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, start_new_session=True, **kw
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_the_server_of_a_killed_process_ends_in_order(
    tmp_path: Path, eventually: Eventually, kill: Callable[[int, int], None]
) -> None:
    with start("-c", OWNER, tmp_path) as owner:
        server = int(first_line(owner))
        kill(owner.pid, signal.SIGKILL)
    eventually(partial(is_gone, server), 5)
    if kill is os.killpg:  # it was meant for the server as well
        return
    assert "bye bye" in (tmp_path / "valkey.log").read_text()
    with EmbeddedServer(data_dir=tmp_path) as again, Queue("etl", again.url) as queue:
        assert queue.get_job("1").name == "a"


@pytest.mark.long
def test_the_server_of_a_process_killed_while_it_starts_ends_too(
    tmp_path: Path, eventually: Eventually
) -> None:
    chance = random.Random(7)
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        with start("-c", OWNER, folder) as owner:
            eventually(lambda folder=folder: (folder / "valkey.log").exists(), 10)  # type: ignore[misc]
            time.sleep(chance.random() / 10)  # some have the server's answer by then, some not
            owner.kill()
        eventually(lambda folder=folder: not works_in(folder), 5)  # type: ignore[misc]


BETWEEN = """
import os, signal, sys, time
from glidemq_orchestrate.lifeline.lifeline import lifeline
environment = {**os.environ, **lifeline.mark}
child = os.fork()
if not child:
    time.sleep(1)
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], environment)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_starts_when_its_owner_is_killed_ends_too(eventually: Eventually) -> None:
    with start("-c", BETWEEN) as owner:
        child = int(first_line(owner))
    assert is_alive(child)
    eventually(partial(is_gone, child), 20)


@pytest.mark.long
def test_a_killed_server_command_leaves_its_port_free(tmp_path: Path, eventually: Eventually) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["-m", "glidemq_orchestrate", "server", "--data", tmp_path, "--port", port]
    for _ in range(2):
        with start(*command) as owner:
            assert str(port) in first_line(owner)
            owner.kill()
        eventually(lambda: not works_in(tmp_path), 5)


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedServer(data_dir=tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server, Queue("etl", server.url) as queue:
        queue.add("a")


def test_a_killed_guard_is_replaced(tmp_path: Path, eventually: Eventually) -> None:
    code = """
import subprocess, sys, time
from glidemq_orchestrate.lifeline.lifeline import lifeline
first = subprocess.Popen(["sleep", "601"])
lifeline.watch(first.pid)
print(first.pid, lifeline._guard._process.pid, flush=True)
sys.stdin.readline()
while lifeline._guard.is_alive:
    time.sleep(0.01)
second = subprocess.Popen(["sleep", "602"])
lifeline.watch(second.pid)
print(second.pid, flush=True)
time.sleep(600)
"""
    with start("-c", code, stdin=subprocess.PIPE) as owner:
        first, guard = map(int, first_line(owner).split())
        os.kill(guard, signal.SIGKILL)
        assert owner.stdin is not None
        owner.stdin.write("\n")
        owner.stdin.flush()
        second = int(first_line(owner))
        owner.kill()
    for pid in (first, second):
        eventually(partial(is_gone, pid), 5)


def test_what_detached_itself_ends_too(eventually: Eventually) -> None:
    code = """
import os, subprocess, sys, time
from glidemq_orchestrate.lifeline.lifeline import lifeline
script = "setsid sh -c 'sleep 603 & echo $!; exec sleep 604' & sleep 605"
child = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, env={**os.environ, **lifeline.mark})
print(child.pid, child.stdout.readline().decode().strip(), flush=True)
lifeline.watch(child.pid)
if sys.argv[1] == "orphan":
    child.kill()
    child.wait()
forked = os.fork()
if forked == 0:  # such a child keeps the guard from nothing
    time.sleep(60)
    os._exit(0)
print(forked, flush=True)
time.sleep(600)
"""
    for how in ("whole", "orphan"):
        with start("-c", code, how) as owner:
            pids = [int(pid) for pid in first_line(owner).split()]
            forked = int(first_line(owner))
            owner.kill()
            for pid in pids:
                eventually(partial(is_gone, pid), 5)
            os.kill(forked, signal.SIGKILL)


@pytest.mark.long
def test_what_is_forgotten_and_what_ended_well_is_left_alone() -> None:
    stranger = subprocess.Popen(["sleep", "606"])
    mine = Lifeline()
    mine.watch(stranger.pid)
    mine.forget(stranger.pid)
    mine.after_fork()  # lets the guard go, as the end of the process does
    time.sleep(0.5)
    assert is_alive(stranger.pid)
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize("mark", ["x", "", "PATH", "GLIDEMQ_OWNER_1_"])
def test_a_guard_with_a_mark_that_strangers_may_have_refuses_to_work(mark: str) -> None:
    program = Path(__file__).parents[3] / "glidemq_orchestrate" / "lifeline" / "guard.py"
    # Input that never ends: a guard that did not refuse would wait, and end nothing.
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-I", "-S", program, mark, str(os.getpid())],
        stdin=reading,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, f"{mark!r} is not a mark\n")


def test_processes_are_found_without_proc_too() -> None:
    child = subprocess.Popen(["sleep", "607"])
    try:
        by_proc, by_ps = guard._from_proc(), guard._from_ps()
        for pid in (os.getpid(), child.pid):
            assert by_ps[pid][:2] == by_proc[pid][:2]
            assert by_ps[pid].started
    finally:
        child.kill()
        child.wait()
    assert child.pid not in guard._from_ps()


@pytest.mark.parametrize("how", ["frozen", "executable"])
def test_without_a_python_to_run_it_there_is_no_guard_and_it_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(sys, how, how == "frozen" or "", raising=False)
    lifeline = Lifeline()
    lifeline.watch(os.getpid())
    lifeline.forget(os.getpid())
    assert "child processes may outlive this process: no Python interpreter" in caplog.text
