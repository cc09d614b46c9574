"""The servers of a round, and the ways to them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.faults import (
    BEHIND_A_PROXY,
    IN_A_CLUSTER,
    Fault,
    empty_server,
    fail_over,
    fill_memory,
    lose_power,
    move_keys,
    move_slot,
)
from tests.chaos.proxy import Proxy
from tests.processes import lasting, spawn
from tests.server.connections.topologies import Server, running_pair, running_primaries
from tests.server.lua.servers import _wait_for_answer, valkey_binary


@dataclass(frozen=True)
class Ground:
    """Where a round takes place.

    Attributes:
        servers: All of them.
        url: The way of half of the processes; ``proxied`` is that of the others.
        proxy: None where there is none.
        is_one_slot: Every flow is on one server, so that it can grow.
        spared: The faults that cannot happen here.
        down_seconds: The longest that a killed server is down.
        may_lose: What was acknowledged last may be lost.
        keeps_leases: Also what nobody waits for is kept, such as who holds a job: not by a failover.
        moves_keys: Slots move key by key; no Node workers, whose calls that may interrupt.
        shards: How many shards the queues have; no Node workers, who know no shards.
    """

    servers: tuple[Server, ...]
    url: str
    proxied: str
    proxy: Proxy | None = None
    is_one_slot: bool = True
    spared: Collection[Fault] = ()
    down_seconds: float = 1.5
    may_lose: bool = False
    keeps_leases: bool = True
    moves_keys: bool = False
    shards: int = 0

    @property
    def has_node_workers(self) -> bool:
        """Whether Node workers run jobs."""
        return self.keeps_leases and not self.moves_keys and not self.shards


@contextmanager
def one(folder: Path, fsync: str = "always", *, may_lose: bool = False) -> Iterator[Ground]:
    """One server; its append-only file is on the disk before every reply, or as ``fsync`` says.

    With ``may_lose`` the power fails: what was written in the last second is gone.
    """
    server = Server(folder / "server", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0")
    spared = IN_A_CLUSTER | {empty_server if may_lose else lose_power}
    proxy = Proxy(server.port)
    try:
        yield Ground(
            (server,), f"valkey://127.0.0.1:{server.port}", f"valkey://127.0.0.1:{proxy.port}", proxy,
            spared=spared, may_lose=may_lose, keeps_leases=not may_lose,
        )  # fmt: skip
    finally:
        proxy.close()
        server.close()


@contextmanager
def cluster(folder: Path) -> Iterator[Ground]:
    """Three primaries; the queues are in slots of different ones, so flows over both are portable.

    None is emptied: the rest of a portable flow would end as its lost half makes it.
    """
    with running_primaries(folder) as primaries:
        yield Ground(
            tuple(primaries.servers), primaries.url, primaries.url, is_one_slot=False,
            spared=BEHIND_A_PROXY | {empty_server, fail_over, lose_power, move_keys},
        )  # fmt: skip


@contextmanager
def cluster_shards(folder: Path) -> Iterator[Ground]:
    """Three primaries, and queues with shards: each flow is in one slot. Slots move, too."""
    with running_primaries(folder) as primaries:
        yield Ground(
            tuple(primaries.servers), primaries.url, primaries.url,
            spared=BEHIND_A_PROXY | {empty_server, fail_over, lose_power, move_keys}, shards=6,
        )  # fmt: skip


@contextmanager
def cluster_moving(folder: Path) -> Iterator[Ground]:
    """Three primaries, and one without slots and libraries; slots move at once and key by key."""
    with running_primaries(folder) as primaries, primaries.empty_primary(folder) as empty:
        yield Ground(
            (*primaries.servers, empty), primaries.url, primaries.url, is_one_slot=False,
            spared=BEHIND_A_PROXY | {empty_server, fail_over, lose_power}, moves_keys=True,
        )  # fmt: skip


@contextmanager
def cluster_failover(folder: Path, shards: int = 0) -> Iterator[Ground]:
    """Three primaries, each with a replica that takes over when it is dead for two seconds, or is told to.

    Slots do not move here: a server that takes one over does not wait for its own replica. With ``shards``,
    each flow is in one slot.
    """
    with running_primaries(folder) as primaries, ExitStack() as stack:
        servers = list(primaries.servers)
        for number, primary in enumerate(primaries.servers):
            home = folder / f"of-{number}"
            home.mkdir()
            servers.append(stack.enter_context(primaries.replica_of(primary, home)))
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        url = f"valkey+cluster://{hosts}?confirm=replicas:1"
        spared = BEHIND_A_PROXY | {empty_server, fill_memory, lose_power, move_slot, move_keys}
        yield Ground(
            tuple(servers), url, url, is_one_slot=bool(shards), spared=spared, down_seconds=6.0,
            keeps_leases=False, shards=shards,
        )  # fmt: skip


@contextmanager
def sentinel(folder: Path, confirm: str = "") -> Iterator[Ground]:
    """A primary and its replica, which Sentinel promotes when the primary is killed or frozen.

    Without ``confirm`` what was acknowledged may be lost.
    """
    with running_pair(folder, Member) as pair:
        url = f"valkey+sentinel://127.0.0.1:{pair.sentinel.port}/main{confirm}"
        spared = BEHIND_A_PROXY | IN_A_CLUSTER | {empty_server, fill_memory, lose_power}
        yield Ground(pair.servers, url, url, spared=spared, may_lose=not confirm, keeps_leases=False)


class Member(Server):
    """A server that knows whom it follows when it comes back: its options are in a file that it rewrites."""

    def start(self) -> None:
        """Start it, from its file."""
        file = self.directory / "server.conf"
        if not file.exists():
            options = [*self.first_options(), "--port", str(self.port), "--bind", "127.0.0.1"]
            options += ["--dir", str(self.directory), *self.options]
            lines = " ".join(f'"{word}"' if not word.startswith("--") else word for word in options)
            file.write_text("\n".join(lines.split("--")).strip() + "\n")
        with (self.directory / "server.log").open("ab") as log:
            self.process = spawn([str(valkey_binary()), str(file)], stdout=log, stderr=subprocess.STDOUT)
        lasting.add(self.process.pid)
        _wait_for_answer(self.client, self.process)


GROUNDS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Ground]]]] = {
    "one": one, "everysec": partial(one, fsync="everysec"),
    "power": partial(one, fsync="everysec", may_lose=True), "cluster": cluster,
    "cluster-moving": cluster_moving, "cluster-shards": cluster_shards,
    "cluster-failover": cluster_failover, "sentinel": sentinel,
    "cluster-shards-failover": partial(cluster_failover, shards=6),
    "sentinel-confirmed": partial(sentinel, confirm="?confirm=replicas:1"),
}  # fmt: skip
