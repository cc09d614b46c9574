"""Sentinels and servers that all speak TLS only, each kind with passwords of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from glidemq_orchestrate import AsyncQueue, ConnectionSettings, FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.clients.servers import examine
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed, TransportError
from glidemq_orchestrate.server import findings
from tests.conftest import Eventually, RunWorker
from tests.ports import free_port
from tests.processes import spawned
from tests.server.connections.certificates import Certificates
from tests.server.lua.servers import _wait_for_answer, load_libraries, redis7_binary, running

LONG = timedelta(seconds=60)
USERS = {"worker": "hunter2", "replica": "hunter4", "watcher": "hunter6"}
RULES = {
    "worker": findings.rule(),
    "replica": "+psync +replconf +ping",
    # As the documentation of sentinels has it.
    "watcher": "&* -@all +multi +slaveof +replicaof +ping +exec +subscribe +config|rewrite +role +publish "
    "+info +client|setname +client|kill +script|kill",
}
SENTINEL_SECRET = "hunter8"


@dataclass
class Guarded:
    """Two servers and a sentinel; clients of an administrator by the ports without TLS."""

    settings: ConnectionSettings
    servers: dict[int, Any]
    sentinel: Any

    def primary(self) -> int:
        """The port of the primary."""
        return next(port for port, server in self.servers.items() if server.role()[0] == "master")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    files, binary = Certificates.in_directory(directory), redis7_binary(directory)
    with ExitStack() as stack:
        servers: dict[int, Any] = {}
        for number in range(2):
            home, port = directory / f"server-{number}", free_port()
            home.mkdir()
            options = ["--tls-port", str(port), "--tls-replication", "yes", *files.options(clients=True)]
            options += ["--repl-diskless-sync-delay", "0"]
            if servers:
                options += ["--replicaof", "127.0.0.1", str(next(iter(servers)))]
            options += ["--masteruser", "replica", "--masterauth", USERS["replica"]]
            plain = stack.enter_context(running(binary, home, *options))
            servers[port] = stack.enter_context(redis.Redis(port=plain, decode_responses=True))
            for name, rule in RULES.items():
                servers[port].execute_command("ACL", "SETUSER", name, "on", f">{USERS[name]}", *rule.split())
        first = next(iter(servers))
        load_libraries(servers[first].connection_pool.connection_kwargs["port"])
        sentinel, sentinel_port = _start_sentinel(stack, binary, directory, files, first)
        url = f"valkeys+sentinel://localhost:{sentinel_port}/main"
        settings = ConnectionSettings(
            url,
            user="worker",
            password=USERS["worker"],
            sentinel_user="seer",
            sentinel_password=SENTINEL_SECRET,
            ca=files.ca,
            cert=files.client,
        )
        yield Guarded(settings, servers, sentinel)


def _start_sentinel(
    stack: ExitStack, binary: Path, directory: Path, files: Certificates, primary: int
) -> tuple[Any, int]:
    port, plain, conf = free_port(), free_port(), directory / "sentinel.conf"
    conf.write_text(
        f"sentinel monitor main 127.0.0.1 {primary} 1\nsentinel failover-timeout main 5000\n"
        f"sentinel auth-user main watcher\nsentinel auth-pass main {USERS['watcher']}\n"
    )
    command = [str(binary), str(conf), "--sentinel", "--port", str(plain), "--tls-port", str(port)]
    command += ["--tls-replication", "yes", "--bind", "127.0.0.1", *files.options(clients=True)]
    log = stack.enter_context((directory / "sentinel.log").open("wb"))
    process = stack.enter_context(spawned(command, stdout=log, stderr=subprocess.STDOUT))
    client = stack.enter_context(redis.Redis(port=plain, decode_responses=True))
    _wait_for_answer(client, process)
    client.execute_command("SENTINEL", "DEBUG", "INFO-PERIOD", 500)
    client.execute_command(
        "ACL", "SETUSER", "seer", "on", f">{SENTINEL_SECRET}", "+sentinel|get-master-addr-by-name"
    )
    return client, port


def test_a_flow_runs_behind_sentinels_with_tls(guarded: Guarded, run_worker: RunWorker) -> None:
    run_worker(["etl"], {"work": lambda ctx: ctx.node}, url=guarded.settings)
    nodes = [FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl", job="work", after=["a"])]
    with FlowProducer(guarded.settings) as flows:
        assert flows.submit(FlowSpec("n", nodes), flow_id="f").result(timeout=LONG) == {"a": "a", "b": "b"}
    found = {finding.check: finding for finding in examine(guarded.settings)}
    assert found["connection"].server == f"valkeys://127.0.0.1:{guarded.primary()}"


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"sentinel_password": "hunter9"}, ConfigurationError, "refused the user or password"),
        ({"password": "hunter9"}, ConfigurationError, "refused the user or password"),
        ({"cert": None}, ConnectionFailed, "requires a client certificate"),
        ({"ca": None}, ConnectionFailed, "certificate is not trusted"),
    ],
)
async def test_a_wrong_secret_is_refused_and_not_shown(
    guarded: Guarded, changes: dict[str, Any], kind: type[Exception], expected: str
) -> None:
    wrong = replace(guarded.settings, **changes)
    with Queue("etl", wrong) as queue, pytest.raises(kind, match=expected) as raised:
        queue.add("work")
    async with AsyncQueue("etl", wrong) as again:
        with pytest.raises(kind, match=expected) as also:
            await again.add("work")
    assert "hunter" not in f"{raised.value!r} {also.value!r} {wrong!r}"


@pytest.mark.long
def test_clients_follow_a_failover_over_tls(guarded: Guarded, eventually: Eventually) -> None:
    before = guarded.primary()
    (replica,) = (server for port, server in guarded.servers.items() if port != before)
    eventually(lambda: replica.role()[3] == "connected", timeout=60)
    with Queue("etl", guarded.settings) as queue:
        queue.add("work")
        eventually(lambda: _fails_over(guarded.sentinel), timeout=30)
        eventually(lambda: guarded.servers[before].role()[0] == "slave", timeout=30)
        job_id = eventually(lambda: _added(queue), timeout=30)
    after = guarded.primary()
    assert after != before
    assert guarded.servers[after].exists(f"glide:{{etl}}:job:{job_id}")


def _fails_over(sentinel: Any) -> bool:
    try:
        return bool(sentinel.execute_command("SENTINEL", "FAILOVER", "main"))
    except redis.ResponseError:  # it does not know the replica yet
        return False


def _added(queue: Queue) -> str | None:
    try:
        return queue.add("work")
    except TransportError:
        return None
