"""The cluster that tests use instead of one server with ``GLIDEMQ_TEST_PROFILE=cluster``.

The fixture ``url`` is then its URL, and ``redis_client`` a client for all its primaries. With ``shards`` and
``cluster-shards`` the queues of the tests have shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.shards import declare
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import NEAR
from tests.guard import refuse_connected
from tests.server.connections.topologies import Primaries, Server, running_primaries

QUEUES: Final = ("etl", "spark", NEAR)


class Forgetful(Server):
    """A server that writes nothing to the disk."""

    def first_options(self) -> list[str]:
        return ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]


@dataclass
class Cluster:
    """Three primaries, each with a replica."""

    primaries: Primaries

    @contextmanager
    def emptied(self) -> Iterator[str]:
        """The URL of the cluster without any key; the libraries stay loaded. Nobody may stay connected."""
        clients = [server.client for server in self.primaries.servers]
        for client in clients:
            client.flushall()
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.primaries.servers)
        yield f"valkey+cluster://{hosts}"
        try:
            refuse_connected(*clients)
        finally:
            for client in clients:
                client.client_kill_filter(_type="normal", skipme=True)


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    with running_primaries(folder, Forgetful) as primaries, ExitStack() as stack:
        for number, primary in enumerate(primaries.servers):
            home = folder / f"of-{number}"
            home.mkdir()
            stack.enter_context(primaries.replica_of(primary, home))
        yield Cluster(primaries)


def share_out(url: str) -> None:
    """Give the queues of the tests four shards each, as ``Queue(name, shards=4)`` does."""
    driver = SyncDriver(ConnectionSettings.resolve(url))
    for name in QUEUES:
        driver.run(declare(QueueKeys("glide", name), 4))
    driver.close()
