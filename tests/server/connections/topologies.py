"""Servers that can be killed and come back with their data: alone, watched by a sentinel, or as a cluster."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from tests.processes import end, lasting, spawn
from tests.server.lua.servers import (
    _form_cluster,
    _free_port,
    _wait_for_answer,
    owner_of,
    valkey_binary,
)


class Server:
    """A Valkey with an append-only file that writes every command to the disk."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.options, self.port = directory, options, _free_port()
        self.client: Any = redis.Redis(port=self.port, decode_responses=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [
            str(valkey_binary()),
            *self.first_options(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
        ]
        command += ["--dir", str(self.directory), *self.options]
        with (self.directory / "server.log").open("ab") as log:
            self.process = spawn(command, stdout=log, stderr=subprocess.STDOUT)
        lasting.add(self.process.pid)
        _wait_for_answer(self.client, self.process)

    def first_options(self) -> list[str]:
        kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return [*kept, "--repl-diskless-sync-delay", "0"]

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)

    def close(self) -> None:
        self.kill()
        self.client.close()


class SentinelServer(Server):
    """A sentinel for one service."""

    def __init__(self, directory: Path, primary: int) -> None:
        directory.mkdir()
        self.conf = directory / "sentinel.conf"
        self.conf.write_text(
            f"sentinel monitor main 127.0.0.1 {primary} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 5000\n"
        )
        super().__init__(directory, "--sentinel")
        self.client.execute_command("SENTINEL", "DEBUG", "INFO-PERIOD", 500)  # by default 10 s

    def first_options(self) -> list[str]:
        return [str(self.conf)]


@dataclass
class Pair:
    """A primary, its replica, and the sentinel that watches them as ``main``."""

    servers: tuple[Server, Server]
    sentinel: SentinelServer

    @property
    def primary(self) -> Server:
        return next(server for server in self.servers if server.client.role()[0] == "master")

    @property
    def replica(self) -> Server:
        return next(server for server in self.servers if server.client.role()[0] == "slave")

    @property
    def is_whole(self) -> bool:
        """Whether one follows the other."""
        roles = sorted((server.client.role() for server in self.servers), key=lambda role: str(role[0]))
        return [role[0] for role in roles] == ["master", "slave"] and roles[1][3] == "connected"

    @property
    def url(self) -> str:
        """With a sentinel that is down before the one that is up."""
        return f"valkey+sentinel://127.0.0.1:{_free_port()},127.0.0.1:{self.sentinel.port}/main"

    def replicated(self) -> None:
        """Wait until the replica has everything that was written before."""
        client = self.primary.client
        client.set("marker", "1")
        assert client.wait(1, 5000) == 1


@contextmanager
def running_pair(directory: Path, kind: type[Server] = Server) -> Iterator[Pair]:
    with ExitStack() as stack:

        def keep(server: Any) -> Any:
            stack.callback(server.close)
            return server

        primary = keep(kind(directory / "primary"))
        replica = keep(kind(directory / "replica", "--replicaof", "127.0.0.1", str(primary.port)))
        while replica.client.role()[3] != "connected":
            time.sleep(0.02)
        sentinel = keep(SentinelServer(directory / "sentinel", primary.port))
        yield Pair((primary, replica), sentinel)


@dataclass
class Primaries:
    """A cluster of three primaries."""

    servers: list[Server]

    @property
    def url(self) -> str:
        return f"valkey+cluster://127.0.0.1:{_free_port()},127.0.0.1:{self.servers[1].port}"

    def owner(self, queue: str) -> Server:
        port = owner_of(key_slot(queue.encode()), [server.port for server in self.servers])
        return next(server for server in self.servers if server.port == port)

    @contextmanager
    def replica_of(self, primary: Server, directory: Path) -> Iterator[Server]:
        """A fourth node that takes over when a primary dies."""
        replica = Server(directory / "replica", *_cluster_options())
        try:
            bus = primary.client.config_get("cluster-port")["cluster-port"]
            replica.client.execute_command("CLUSTER MEET", "127.0.0.1", primary.port, bus)
            identity = primary.client.execute_command("CLUSTER MYID")
            while not _replicates(replica.client, identity):
                time.sleep(0.1)
            while replica.client.role()[3] != "connected":
                time.sleep(0.02)
            yield replica
        finally:
            replica.close()


def _replicates(client: Any, primary: str) -> bool:
    try:
        return bool(client.execute_command("CLUSTER REPLICATE", primary))
    except redis.ResponseError:  # it does not know the primary yet
        return False


def _cluster_options() -> list[str]:
    bus = ["--cluster-enabled", "yes", "--cluster-port", str(_free_port())]
    return [*bus, "--cluster-node-timeout", "2000"]


@contextmanager
def running_primaries(directory: Path) -> Iterator[Primaries]:
    with ExitStack() as stack:
        servers = []
        for number in range(3):
            servers.append(Server(directory / str(number), *_cluster_options()))
            stack.callback(servers[-1].close)
        _form_cluster([server.client for server in servers], [server.port for server in servers])
        yield Primaries(servers)


@contextmanager
def stopped(replica: Server) -> Iterator[None]:
    """Stop a replica; it stays connected, and reads later what it was sent meanwhile."""
    assert replica.process is not None
    replica.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        replica.process.send_signal(signal.SIGCONT)


@contextmanager
def cut_off(replica: Server, primary: Server) -> Iterator[None]:
    """Keep a replica from receiving anything; it never learns what is written meanwhile, except in a copy."""
    with stopped(replica):
        # Else it would find in the buffers of its socket what was sent while it was stopped.
        primary.client.client_kill_filter(_type="replica")
        yield
