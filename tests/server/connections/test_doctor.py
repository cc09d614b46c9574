"""What ``glidemq doctor`` reports about healthy servers, and about others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from glidemq_orchestrate import Queue
from glidemq_orchestrate._lua import ORCHESTRATE, library
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients.servers import Finding, Verdict, examine
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, ServerBusy
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.server.findings import COMMANDS, rule, trial
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import ask_each
from tests.server.connections.topologies import running_primaries
from tests.server.lua.servers import load_libraries, running, valkey_binary

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED


def by_check(url: Any, **options: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(url, **options)}


def verdicts(url: Any, **options: Any) -> dict[str, Verdict]:
    return {check: finding.verdict for check, finding in by_check(url, **options).items()}


def test_a_healthy_server_gets_no_advice_and_is_left_as_it_was(url: str, redis_client: Any) -> None:
    with Queue("etl", url) as queue:
        queue.add("work")
    before = sorted(redis_client.keys("*"))
    found = examine(url)
    assert {(finding.verdict, finding.advice, finding.server) for finding in found} == {(OK, "", url)}
    assert [finding.check for finding in found] == [
        "connection", "version", "role", "persistence", "eviction", "memory",
        "lost with the machine", "lost by a failover", "rights",
        "library glidemq", "library glidemq_orchestrate", "clock", "supervision",
    ]  # fmt: skip
    assert sorted(redis_client.keys("*")) == before


def test_every_trial_is_a_call_that_the_server_understands(url: str) -> None:
    driver = SyncDriver(ConnectionSettings(url))
    replies = driver.run(ask_each([trial(name, "glide:gmo:doctor") for name in ("set", *COMMANDS)]))
    errors = [str(reply) for reply in replies if isinstance(reply, GlideMQError)]
    assert [text for text in errors if "arguments" in text or "syntax" in text or "unknown" in text] == []
    driver.close()


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[Any]:
    """A client of a server without an append-only file."""
    with running(valkey_binary(), tmp_path) as port, redis.Redis(port=port, decode_responses=True) as client:
        client.url = f"valkey://127.0.0.1:{port}"
        yield client


def test_a_server_that_forgets_is_reported(sick: Any) -> None:
    found = by_check(sick.url)
    assert found["persistence"].verdict is WARNING
    assert found["persistence"].advice == "set appendonly yes"
    assert found["library glidemq"].verdict is found["library glidemq_orchestrate"].verdict is WARNING
    sick.config_set("maxmemory-policy", "allkeys-lru")
    assert by_check(sick.url)["eviction"].verdict is WARNING
    sick.config_set("maxmemory", "1gb")
    evicting = by_check(sick.url)["eviction"]
    assert (evicting.verdict, evicting.advice) == (FAILED, "set maxmemory-policy noeviction")


@pytest.mark.parametrize(("share", "verdict"), [(2.0, OK), (1.12, WARNING), (0.9, FAILED)])
def test_memory_that_runs_out_is_reported(sick: Any, share: float, verdict: Verdict) -> None:
    sick.set("ballast", "x" * 30_000_000)
    sick.config_set("maxmemory", int(sick.info("memory")["used_memory"] * share))
    assert by_check(sick.url)["memory"].verdict is verdict


def test_a_replica_and_a_lone_primary_are_reported(sick: Any, tmp_path: Path) -> None:
    (tmp_path / "replica").mkdir()
    port = sick.connection_pool.connection_kwargs["port"]
    with running(valkey_binary(), tmp_path / "replica", "--replicaof", "127.0.0.1", str(port)) as replica:
        load_libraries(port)
        with redis.Redis(port=replica) as client:
            while len(client.function_list()) < 2:  # after a failover it has them
                time.sleep(0.02)
        found = by_check(f"valkey://127.0.0.1:{replica}")
        assert (found["role"].verdict, found["role"].advice) == (FAILED, "use its primary or its sentinels")
        assert found["connection"].verdict is OK
        assert "supervision" not in found
        with (
            Queue("etl", f"valkey://127.0.0.1:{replica}") as queue,
            pytest.raises(ServerBusy, match=r"READONLY .*Fix: use the address of the primary"),
        ):
            queue.pause()


def test_a_server_that_refuses_all_writes_is_reported(sick: Any) -> None:
    load_libraries(sick.connection_pool.connection_kwargs["port"])
    sick.config_set("min-replicas-to-write", 1)
    found = by_check(sick.url)
    assert found["connection"].verdict is found["library glidemq"].verdict is OK
    assert (found["writes"].verdict, found["writes"].found) == (
        FAILED,
        "NOREPLICAS Not enough good replicas to write",
    )
    assert found["writes"].advice == "start the missing replicas, or lower min-replicas-to-write"


def test_a_server_that_hangs_is_reported_soon(sick: Any) -> None:
    sick.execute_command("CLIENT", "PAUSE", "15000", "ALL")
    began = time.monotonic()
    (connection,) = examine(sick.url)
    assert (connection.verdict, connection.advice) == (
        FAILED,
        "check whether the server, its machine or the network hangs",
    )
    assert "no answer in time" in connection.found
    assert time.monotonic() - began < 14


class Shifted(SystemClock):
    """A clock that is wrong."""

    def __init__(self, by_ms: int) -> None:
        self.by_ms = by_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.by_ms


@pytest.mark.parametrize(
    ("by_ms", "verdict"), [(0, OK), (-5_000, WARNING), (5_000, WARNING), (60_000, FAILED)]
)
def test_clocks_that_differ_are_reported(url: str, by_ms: int, verdict: Verdict) -> None:
    assert by_check(url, clock=Shifted(by_ms))["clock"].verdict is verdict


def test_libraries_of_other_versions_are_reported(sick: Any) -> None:
    ours = library(ORCHESTRATE)
    name = "L.version, L.sha256 ="
    sick.function_load(ours.source.replace(f"{name} '{ours.version}'", f"{name} '99.0.0'"))
    sick.function_load(
        "#!lua name=glidemq\nredis.register_function{function_name='glidemq_version', "
        "callback=function() return '92' end, flags={'no-writes'}}\n"
    )
    found = by_check(sick.url)
    assert found["library glidemq"].verdict is found["library glidemq_orchestrate"].verdict is FAILED
    assert found["library glidemq"].advice == "glidemq library load --replace"
    assert "99.0.0 is newer" in found["library glidemq_orchestrate"].found


def test_a_user_s_missing_rights_are_named(sick: Any) -> None:
    load_libraries(sick.connection_pool.connection_kwargs["port"])
    words = rule().replace(" +zadd", "").replace(" +xadd", "").split()
    sick.execute_command("ACL", "SETUSER", "worker", "on", ">hunter2", *words)
    settings = ConnectionSettings(sick.url, user="worker", password="hunter2")
    rights = by_check(settings)["rights"]
    assert (rights.verdict, rights.found) == (FAILED, "missing: zadd xadd")
    assert rights.advice == "ACL SETUSER ... ~glide:* +zadd +xadd"
    sick.execute_command("ACL", "SETUSER", "worker", "+zadd", "+xadd")
    sound = verdicts(settings)
    assert (sound.pop("persistence"), set(sound.values())) == (WARNING, {OK})
    other = by_check(settings, prefix="other")["rights"]
    assert (other.verdict, "zadd" in other.found) == (FAILED, True)
    sick.execute_command("ACL", "SETUSER", "worker", "-info")
    assert by_check(settings)["connection"].verdict is FAILED
    wrong = ConnectionSettings(sick.url, user="worker", password="hunter3")
    assert verdicts(wrong) == {"connection": FAILED}


def test_every_primary_of_a_cluster_is_looked_at(tmp_path: Path) -> None:
    with running_primaries(tmp_path) as primaries:
        with Queue("etl", primaries.url) as queue:
            queue.add("work")
        found = examine(primaries.url)
        assert {finding.server for finding in found} == {
            f"valkey://127.0.0.1:{server.port}" for server in primaries.servers
        }
        assert {finding.check for finding in found if finding.verdict is WARNING} == {"role"}  # no replicas
        assert [finding.verdict for finding in found if finding.check == "slots"] == [OK] * 3
        assert by_check(f"valkey://127.0.0.1:{primaries.servers[0].port}")["role"].verdict is FAILED
        for server in primaries.servers:
            server.client.execute_command("CLUSTER DELSLOTS", 1)
        assert [one.found for one in examine(primaries.url) if one.check == "slots"] == [
            "16,383 of 16,384 served"
        ] * 3


def test_the_command_prints_a_table_or_json_and_fails_with_a_check(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        queue = stack.enter_context(Queue("etl", url))
        queue.add("work")
    runner = CliRunner()
    fine = runner.invoke(app, ["doctor", "--url", url])
    assert fine.exit_code == 0
    assert "append-only file" in fine.output
    rows = json.loads(runner.invoke(app, ["doctor", "--url", url, "--json"]).output)
    assert rows[0] == {
        "check": "connection", "verdict": "ok", "found": "connected as default", "advice": "", "server": url
    }  # fmt: skip
    down = runner.invoke(app, ["doctor", "--url", "valkey://u:hunter2@127.0.0.1:1", "--json"])
    assert (down.exit_code, "hunter2" in down.output) == (1, False)
    (row,) = json.loads(down.output)
    advice = "start the server; on this machine: glidemq server"
    assert (row["verdict"], row["advice"]) == ("failed", advice)
    assert "127.0.0.1:1. Connect" in row["found"], "the first full stop may be within what is found"
    assert runner.invoke(app, ["doctor", "--url", "http://h"]).exit_code == 2
    with pytest.raises(ConfigurationError):
        examine("http://h")
