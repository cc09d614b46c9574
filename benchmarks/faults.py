"""The faults of ``recovery``: what happens, where, and what bounds the time to recover."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.crew import Member
from benchmarks.processes import QUEUE
from tests.server.connections.topologies import Server, running_pair, running_primaries

FREEZE_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.01
LIMIT_SECONDS: Final = 60.0
LEADER: Final = f"glide:{{{QUEUE}}}:gmo:supervisor"


@dataclass
class Scene:
    """Where a fault happens.

    Attributes:
        url: For clients.
        primary: The server that has the queue.
        replica: Its replica, where there is one.
        lease: The ``lease`` of the workers, in seconds.
        workers: Each with as many places.
        supervisor: It leads; a worker takes over.
        ended: How many workers have ended, and are not started again.
    """

    url: str
    primary: Server
    replica: Server | None = None
    lease: float = 5.0
    workers: list[Member] = field(default_factory=list)
    supervisor: Member | None = None
    ended: int = 0


@contextmanager
def one(folder: Path) -> Iterator[Scene]:
    """One server, with an append-only file."""
    server = Server(folder / "server", "--appendfsync", "everysec")
    try:
        yield Scene(f"valkey://127.0.0.1:{server.port}", server)
    finally:
        server.close()


@contextmanager
def pair(folder: Path, confirm: str = "") -> Iterator[Scene]:
    """A primary, its replica and a sentinel."""
    with running_pair(folder) as found:
        while not found.sentinel.client.sentinel_slaves("main"):
            time.sleep(0.05)
        url = f"valkey+sentinel://127.0.0.1:{found.sentinel.port}/main{confirm}"
        yield Scene(url, _written_each_second(found.primary), _written_each_second(found.replica))


def confirmed_pair(folder: Path) -> AbstractContextManager[Scene]:
    """The same; every write and result waits for the replica."""
    return pair(folder, "?confirm=replicas:1")


@contextmanager
def cluster(folder: Path) -> Iterator[Scene]:
    """Three primaries, and a replica of the one that has the queue."""
    with running_primaries(folder) as primaries:
        primary = primaries.owner(QUEUE)
        with primaries.replica_of(primary, folder) as replica:
            urls = ",".join(f"127.0.0.1:{server.port}" for server in primaries.servers)
            yield Scene(
                f"valkey+cluster://{urls}", _written_each_second(primary), _written_each_second(replica)
            )


def _written_each_second(server: Server) -> Server:
    server.client.config_set("appendfsync", "everysec")
    return server


# --- faults: each returns when what it broke is whole again, but for the jobs ---


def kill_worker(at: Scene) -> None:
    """SIGKILL a worker; nobody starts it again."""
    at.workers[0].kill()
    at.ended = 1


def stop_worker(at: Scene) -> None:
    """Stop a worker for twice its lease; then it goes on."""
    at.workers[0].signal(signal.SIGSTOP)
    time.sleep(2 * at.lease)
    at.workers[0].signal(signal.SIGCONT)


def kill_leader(at: Scene) -> None:
    """SIGKILL the leading supervisor, and wait for another one to lead."""
    assert at.supervisor is not None
    before = at.primary.client.get(LEADER)
    at.supervisor.kill()
    until(lambda: at.primary.client.get(LEADER) not in (before, None))


def restart_server(at: Scene) -> None:
    """SIGTERM the server, and start it again with its file."""
    assert at.primary.process is not None
    at.primary.process.terminate()
    at.primary.process.wait(LIMIT_SECONDS)
    at.primary.start()


def kill_server(at: Scene) -> None:
    """SIGKILL the server, and start it again with its file."""
    at.primary.kill()
    at.primary.start()


def freeze_server(at: Scene) -> None:
    """Stop the server for two seconds."""
    assert at.primary.process is not None
    os.kill(at.primary.process.pid, signal.SIGSTOP)
    time.sleep(FREEZE_SECONDS)
    os.kill(at.primary.process.pid, signal.SIGCONT)


def flush_functions(at: Scene) -> None:
    """Remove both libraries."""
    at.primary.client.execute_command("FUNCTION", "FLUSH", "SYNC")


def drop_connections(at: Scene) -> None:
    """Close every connection."""
    at.primary.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def fill_memory(at: Scene) -> None:
    """Allow no more memory for two seconds."""
    at.primary.client.config_set("maxmemory", "1mb")
    time.sleep(FREEZE_SECONDS)
    at.primary.client.config_set("maxmemory", "0")


def fail_over(at: Scene) -> None:
    """SIGKILL the primary, wait for the replica to be promoted, and start the old one again."""
    assert at.replica is not None
    replica: Any = at.replica.client
    at.primary.kill()
    until(lambda: replica.role()[0] == "master")
    at.primary.start()


def until(holds: Callable[[], bool]) -> None:
    """Wait.

    Raises:
        RuntimeError: Not within a minute.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened within {LIMIT_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: In the tables.
        harm: Does it, and returns when it is over.
        bound: What bounds the time to recover: settings and their defaults.
        ground: Where it happens.
        backlog_seconds: How much work waits.
    """

    name: str
    harm: Callable[[Scene], None]
    bound: str
    ground: Callable[[Path], AbstractContextManager[Scene]] = one
    backlog_seconds: float = 0.5


_LEASE: Final = "lease ({lease:g} s here, by default 30), checked each half of it"
_PAUSES: Final = "pauses between attempts to connect: 0.1 s, doubled up to 2"
FAULTS: Final[Sequence[Fault]] = (
    Fault("kill -9 of a worker", kill_worker, _LEASE),
    Fault("SIGSTOP of a worker for two leases", stop_worker, _LEASE),
    Fault("kill -9 of the leading supervisor", kill_leader, "its lock (6 s), and the next pass (2 s)"),
    Fault("restart of the server", restart_server, f"its start; {_PAUSES}"),
    Fault("kill -9 of the server", kill_server, f"its start; {_PAUSES}"),
    Fault("server frozen for 2 s", freeze_server, "the freeze: it is within socket_timeout (30)"),
    Fault("FUNCTION FLUSH", flush_functions, "the next call, which loads the libraries"),
    Fault("all connections dropped", drop_connections, _PAUSES),
    Fault("memory full for 2 s", fill_memory, "nothing: ending and fetching jobs goes on", backlog_seconds=6),
    Fault(
        "Sentinel failover", fail_over,
        "down-after-milliseconds (0.5 s here, by default 30)", pair,
    ),
    Fault(
        "Sentinel failover, confirm=replicas:1", fail_over,
        "the same; then some 10 s until Sentinel has made the old primary a replica, which confirms",
        confirmed_pair,
    ),
    Fault(
        "failover in a cluster", fail_over,
        "cluster-node-timeout (2 s here, by default 15), and the vote", cluster,
    ),
)  # fmt: skip
