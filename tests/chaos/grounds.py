"""The servers of a round, and the ways to them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.faults import BEHIND_A_PROXY, Fault, empty_server, fill_memory
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
    """

    servers: tuple[Server, ...]
    url: str
    proxied: str
    proxy: Proxy | None = None
    is_one_slot: bool = True
    spared: Collection[Fault] = ()


@contextmanager
def one(folder: Path, fsync: str = "always") -> Iterator[Ground]:
    """One server; its append-only file is on the disk before every reply, or as ``fsync`` says."""
    server = Server(folder / "server", "--appendfsync", fsync)
    proxy = Proxy(server.port)
    try:
        yield Ground(
            (server,), f"valkey://127.0.0.1:{server.port}", f"valkey://127.0.0.1:{proxy.port}", proxy
        )
    finally:
        proxy.close()
        server.close()


@contextmanager
def cluster(folder: Path) -> Iterator[Ground]:
    """Three primaries; the queues are in slots of different ones, so flows over both are portable."""
    with running_primaries(folder) as primaries:
        yield Ground(
            tuple(primaries.servers), primaries.url, primaries.url, is_one_slot=False, spared=BEHIND_A_PROXY
        )


@contextmanager
def sentinel(folder: Path, confirm: str = "") -> Iterator[Ground]:
    """A primary and its replica, which Sentinel promotes when the primary is killed or frozen.

    Without ``confirm`` what was acknowledged may be lost: then the violations say what was.
    """
    with running_pair(folder, Member) as pair:
        url = f"valkey+sentinel://127.0.0.1:{pair.sentinel.port}/main{confirm}"
        yield Ground(pair.servers, url, url, spared=BEHIND_A_PROXY | {empty_server, fill_memory})


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
    "one": one, "everysec": partial(one, fsync="everysec"), "cluster": cluster, "sentinel": sentinel,
    "sentinel-confirmed": partial(sentinel, confirm="?confirm=replicas:1"),
}  # fmt: skip
