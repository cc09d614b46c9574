"""The servers of a round, and the ways to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.faults import BEHIND_A_PROXY, Fault
from tests.chaos.proxy import Proxy
from tests.server.connections.topologies import Server, running_primaries


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


GROUNDS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Ground]]]] = {
    "one": one, "everysec": partial(one, fsync="everysec"), "cluster": cluster,
}  # fmt: skip
