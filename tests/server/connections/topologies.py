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

from tests.ports import free_port
from tests.processes import end, lasting, spawn
from tests.server.lua.servers import (
    _form_cluster,
    _wait_for_answer,
    owner_of,
    redis7_binary,
    valkey_binary,
)


class Server:
    """A Valkey with an append-only file that writes every command to the disk."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.options, self.port = directory, options, free_port()
        self.client: Any = redis.Redis(port=self.port, decode_responses=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [
            str(self.program()),
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

    def program(self) -> Path:
        return valkey_binary()

    def first_options(self) -> list[str]:
        kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return [*kept, "--repl-diskless-sync-delay", "0"]

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)

    def keys_in(self, queue: str) -> dict[str, bytes]:
        """The keys that the server has of a queue, with their contents; also while their slot is moving."""
        names = self.client.execute_command("CLUSTER GETKEYSINSLOT", key_slot(queue.encode()), 100_000)
        with redis.Redis(port=self.port, single_connection_client=True) as client:
            found = {}
            for name in names:
                client.execute_command("ASKING")
                found[name] = client.dump(name)
            return found

    def close(self) -> None:
        self.kill()
        self.client.close()


class Redis7(Server):
    """The Redis 7 of the system, which moves slots only key by key."""

    def program(self) -> Path:
        return redis7_binary(self.directory)


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
        return f"valkey+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.sentinel.port}/main"

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
        return f"valkey+cluster://127.0.0.1:{free_port()},127.0.0.1:{self.servers[1].port}"

    def owner(self, queue: str) -> Server:
        port = owner_of(key_slot(queue.encode()), [server.port for server in self.servers])
        return next(server for server in self.servers if server.port == port)

    @contextmanager
    def replica_of(self, primary: Server, directory: Path) -> Iterator[Server]:
        """A fourth node that takes over when a primary dies."""
        with self._joined(primary, directory / "replica") as replica:
            identity = primary.client.execute_command("CLUSTER MYID")
            while not _replicates(replica.client, identity):
                time.sleep(0.1)
            while replica.client.role()[3] != "connected":
                time.sleep(0.02)
            yield replica

    @contextmanager
    def empty_primary(self, directory: Path) -> Iterator[Server]:
        """A fourth node that has no slots yet, and no libraries; all of its slots must have left it again."""
        stays = ("--cluster-allow-replica-migration", "no")  # it follows nobody when its last slot leaves
        with self._joined(self.servers[0], directory / "empty", *stays) as added:
            identity = added.client.execute_command("CLUSTER MYID")
            while not all(_knows(server.client, identity) for server in self.servers):
                time.sleep(0.05)
            while added.client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                time.sleep(0.05)
            yield added
            for server in self.servers:
                server.client.execute_command("CLUSTER FORGET", identity)

    @contextmanager
    def _joined(self, member: Server, directory: Path, *options: str) -> Iterator[Server]:
        """A node that is being introduced to the others."""
        added = type(member)(directory, *_cluster_options(), *options)
        try:
            bus = member.client.config_get("cluster-port")["cluster-port"]
            added.client.execute_command("CLUSTER MEET", "127.0.0.1", member.port, bus)
            yield added
        finally:
            added.close()


def _knows(client: Any, identity: str) -> bool:
    nodes = client.execute_command("CLUSTER NODES").values()
    return any(node["node_id"] == identity and node["connected"] for node in nodes)


def _replicates(client: Any, primary: str) -> bool:
    try:
        return bool(client.execute_command("CLUSTER REPLICATE", primary))
    except redis.ResponseError:  # it does not know the primary yet
        return False


def _cluster_options() -> list[str]:
    bus = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    return [*bus, "--cluster-node-timeout", "2000"]


@contextmanager
def running_primaries(directory: Path, kind: type[Server] = Server) -> Iterator[Primaries]:
    with ExitStack() as stack:
        servers = []
        for number in range(3):
            servers.append(kind(directory / str(number), *_cluster_options()))
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


def _serves(server: Server, queue: str) -> bool:
    try:
        return bool(server.client.exists(f"{{{queue}}}") == 0)
    except redis.exceptions.MovedError:
        return False


class Move:
    """Takes the slot of a queue from its primary to the next one, step by step."""

    def __init__(self, primaries: Primaries, queue: str, target: Server | None = None) -> None:
        self.queue, self.slot = queue, key_slot(queue.encode())
        self.source = primaries.owner(queue)
        others = (server for server in primaries.servers if server is not self.source)
        self.target = target or next(others)
        self.all = [*primaries.servers, self.target]
        self.ids = {server.port: server.client.execute_command("CLUSTER MYID") for server in self.all}

    def begin(self) -> None:
        name = "CLUSTER SETSLOT"
        self.target.client.execute_command(name, self.slot, "IMPORTING", self.ids[self.source.port])
        self.source.client.execute_command(name, self.slot, "MIGRATING", self.ids[self.target.port])

    def carry(self, most: int) -> bool:
        keys = self.source.client.execute_command("CLUSTER GETKEYSINSLOT", self.slot, most)
        if keys:
            words = ("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)
            self.source.client.execute_command(*words)
        return bool(keys)

    def at_once(self) -> None:
        """By the atomic migration of Valkey 9: no call sees half of the keys."""
        words = ("SLOTSRANGE", self.slot, self.slot, "NODE", self.ids[self.target.port])
        self.source.client.execute_command("CLUSTER MIGRATESLOTS", *words)
        while not _serves(self.target, self.queue):
            time.sleep(0.02)

    def turn(self) -> None:
        """The next steps lead back."""
        self.source, self.target = self.target, self.source

    def back(self) -> None:
        self.turn()
        self.begin()
        self.carry(1000)
        self.end()

    def end(self) -> None:
        for server in (self.target, self.source, *self.all):
            server.client.execute_command("CLUSTER SETSLOT", self.slot, "NODE", self.ids[self.target.port])
