"""A data directory, and a socket, has one server at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.embedded import PID_FILE
from glidemq_orchestrate.errors import ConfigurationError
from tests.processes import is_alive, spawned

OWNER = """
import sys, time
from glidemq_orchestrate import EmbeddedServer
server = EmbeddedServer(data_dir=sys.argv[1]).start()
print(server.url, flush=True)
time.sleep(600)
"""


def test_a_second_server_on_a_data_directory_is_told_of_the_first(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    with EmbeddedServer(data_dir=data) as first:
        other.symlink_to(data)
        for directory in (data, other):
            with pytest.raises(ConfigurationError) as caught, EmbeddedServer(data_dir=directory):
                pass
            assert f"is in use by another server ({first.url}, pid {first.pid}, " in str(caught.value)
        assert int((data / PID_FILE).read_text()) == first.pid
    with EmbeddedServer(data_dir=data) as again:
        assert again.pid


@pytest.mark.parametrize("shared", ["data_dir", "unix_socket"])
def test_of_two_that_start_at_once_one_is_refused(tmp_path: Path, shared: str) -> None:
    place: Any = {shared: tmp_path / "shared"}
    servers, refused = [EmbeddedServer(**place) for _ in range(2)], list[ConfigurationError]()

    def start(server: EmbeddedServer) -> None:
        try:
            server.start()
        except ConfigurationError as exc:
            refused.append(exc)

    threads = [threading.Thread(target=start, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["in use by another server" in str(exc) for exc in refused] == [True]
    for server in servers:
        server.stop()
    assert not list(tmp_path.glob("*.lock"))
    with EmbeddedServer(**place) as again:
        assert again.pid


def test_a_start_waits_for_the_server_of_a_killed_owner(tmp_path: Path) -> None:
    with spawned([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        port = int(owner.stdout.readline().rpartition(":")[2])
        with redis.Redis(port=port) as client:
            client.set("key", "kept")
        pid = int((tmp_path / PID_FILE).read_text())
        os.kill(pid, signal.SIGSTOP)  # the guard asks it to end, and it takes its time
        owner.kill()
        owner.wait()
        threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
        with EmbeddedServer(data_dir=tmp_path) as server:
            assert not is_alive(pid)
            with redis.Redis.from_url(
                server.url.replace("valkey:", "redis:"), decode_responses=True
            ) as client:
                assert client.get("key") == "kept"


def test_a_forked_child_does_not_keep_the_directory_of_a_killed_owner(tmp_path: Path) -> None:
    forking = "import os; child = os.fork() or time.sleep(600)\nprint(child, "
    code = OWNER.replace("print(", forking)
    with spawned([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        child = int(owner.stdout.readline().split()[0])
        owner.kill()
        owner.wait()
        try:
            with EmbeddedServer(data_dir=tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)
