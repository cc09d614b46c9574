"""What ``glidemq doctor`` reports about writes that may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_orchestrate import ConnectionSettings, Queue
from glidemq_orchestrate.clients.servers import Finding, Verdict, examine
from glidemq_orchestrate.server.findings import rule
from tests.server.connections.topologies import Server

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    primary = Server(tmp_path_factory.mktemp("primary") / "p")
    replica = Server(tmp_path_factory.mktemp("replica") / "r")
    yield primary, replica
    replica.close()
    primary.close()


@pytest.fixture
def primary(servers: tuple[Server, Server]) -> Server:
    server = servers[0]
    server.client.config_set("appendonly", "yes")
    server.client.config_set("appendfsync", "always")
    server.client.config_set("min-replicas-to-write", 0)
    servers[1].client.replicaof("NO", "ONE")
    while server.client.info("replication")["connected_slaves"]:
        pass
    return server


def checked(server: Server, confirm: str | None = None, **options: Any) -> dict[str, Finding]:
    url = f"valkey://127.0.0.1:{server.port}"
    settings = ConnectionSettings(url, confirm=confirm, confirm_timeout=0.2, **options)
    return {finding.check: finding for finding in examine(settings)}


@pytest.mark.parametrize(
    ("fsync", "confirm", "verdict", "found"),
    [
        ("always", None, OK, "appendfsync always: nothing that was acknowledged is lost"),
        ("always", "disk", OK, "appendfsync always: nothing that was acknowledged is lost"),
        ("everysec", None, OK, "appendfsync everysec: about the last second of acknowledged writes is lost"),
        ("everysec", "disk", WARNING, "appendfsync everysec: about the last second"),
        ("no", None, WARNING, "appendfsync no: what the operating system has not written yet is lost"),
    ],
)
def test_what_a_power_failure_loses(
    primary: Server, fsync: str, confirm: str | None, verdict: Verdict, found: str
) -> None:
    primary.client.config_set("appendfsync", fsync)
    machine = checked(primary, confirm)["lost with the machine"]
    assert (machine.verdict, machine.found.startswith(found)) == (verdict, True)
    assert bool(machine.advice) is (verdict is WARNING)


def test_what_a_failover_loses(primary: Server, servers: tuple[Server, Server]) -> None:
    alone = checked(primary)["lost by a failover"]
    assert (alone.verdict, alone.found) == (OK, "no replica can take over")
    missing = checked(primary, "replicas:1")
    assert missing["lost by a failover"].verdict is missing["confirm"].verdict is FAILED
    assert missing["lost by a failover"].found == "0 of 1 replicas: every write is reported as NotConfirmed"
    servers[1].client.replicaof("127.0.0.1", primary.port)
    while servers[1].client.role()[3] != "connected" or not primary.client.wait(1, 100):
        pass
    both = checked(primary)
    assert (
        both["lost by a failover"].found == "writes that no replica has yet; confirm=replicas:1 waits for one"
    )
    assert both["lost when cut off"].found.endswith("min-replicas-to-write is 0")
    primary.client.config_set("min-replicas-to-write", 1)
    sure = checked(primary, "disk,replicas:1")
    assert sure["lost by a failover"].found.startswith("nothing that was confirmed")
    assert sure["lost when cut off"].found.endswith("min-replicas-max-lag")
    assert sure["confirm"] == Finding("confirm", OK, "disk,replicas:1 holds", "", sure["role"].server)


def test_whether_confirm_holds(primary: Server) -> None:
    assert checked(primary, "disk")["confirm"].verdict is OK
    primary.client.config_set("appendonly", "no")
    off = checked(primary, "disk")
    assert (off["confirm"].verdict, "set appendonly yes" in off["confirm"].advice) == (FAILED, True)
    assert off["persistence"].verdict is WARNING
    assert "lost with the machine" not in off


def test_a_user_who_may_not_ask_gets_no_false_answer(primary: Server) -> None:
    with Queue("etl", f"valkey://127.0.0.1:{primary.port}") as queue:
        queue.counts()
    primary.client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">do", *rule().split())
    mine = {"user": "worker", "password": "do"}
    plain = checked(primary, **mine)
    assert "CONFIG GET" in plain["lost with the machine"].found
    assert {finding.verdict for finding in plain.values()} == {OK}
    assert checked(primary, "disk", **mine)["confirm"].verdict is FAILED
    primary.client.execute_command("ACL", "SETUSER", "worker", "+waitaof")
    assert checked(primary, "disk", **mine)["confirm"].verdict is OK
