"""The hook: its clients, and what its Test button says and leaves alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from airflow.sdk._shared.secrets_masker import redact
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook

from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.clients.servers import Libraries
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.server.findings import rule
from tests.ports import free_port
from tests.providers.airflow.builders import Valkey
from tests.server.connections.certificates import Certificates
from tests.server.connections.topologies import running_pair, running_primaries
from tests.server.lua.keyspace import dump
from tests.server.lua.servers import redis7_binary, running

Connect = Callable[..., GlideMQHook]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Define the connection by its fields."""

    def define(**given: Any) -> GlideMQHook:
        monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", json.dumps({"conn_type": "glidemq", **given}))
        return GlideMQHook()

    return define


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An administrator's client of a server without libraries."""
    with EmbeddedServer() as server:
        place = server.url.removeprefix("valkey://")
        with redis.Redis.from_url(f"redis://{place}", decode_responses=True) as client:
            client.place = place
            yield client


def state(server: Any) -> Any:
    """What the server holds, and how often it was changed."""
    return dump(server), server.function_list(), server.info("persistence")["rdb_changes_since_last_save"]


def test_the_test_button_succeeds(valkey: Valkey) -> None:
    with GlideMQHook().get_producer() as producer:
        producer.list()
    ok, message = GlideMQHook().test_connection()
    assert ok, message
    assert f"A single server; prefix {valkey.prefix}, no TLS." in message
    assert "connected as default to valkey " in message
    assert "library glidemq: version 93; library glidemq_orchestrate: version " in message
    assert "rights: all required rights" in message


def test_the_test_button_changes_nothing_on_a_server_without_libraries(bare: Any, connect: Connect) -> None:
    before = state(bare)
    ok, message = connect(host=bare.place, extra={"confirm": "disk"}).test_connection()
    assert ok, message
    assert "library glidemq: not loaded, the first use loads it" in message
    assert "library glidemq_orchestrate: not loaded, the first use loads it" in message
    assert state(bare) == before
    assert before[:2] == ({}, [])


def test_the_test_button_names_missing_rights(bare: Any, connect: Connect) -> None:
    bare.execute_command("ACL", "SETUSER", "worker", "on", ">hunter2", *rule().split())
    hook = connect(host=bare.place, login="worker", password="hunter2")
    ok, message = hook.test_connection()
    assert (ok, "loading: the user may not load libraries (glidemq library load" in message) == (False, True)
    Libraries(f"valkey://{bare.place}").load()
    assert hook.test_connection()[0]
    bare.execute_command("ACL", "SETUSER", "worker", "-zadd")
    ok, message = hook.test_connection()
    assert (ok, "rights: missing: zadd (ACL SETUSER" in message, "hunter" in message) == (False, True, False)


def test_the_test_button_refuses_another_version_of_the_library(bare: Any, connect: Connect) -> None:
    bare.function_load(
        "#!lua name=glidemq\nredis.register_function{function_name='glidemq_version', "
        "callback=function() return '92' end, flags={'no-writes'}}\n"
    )
    ok, message = connect(host=bare.place).test_connection()
    assert (ok, "library glidemq: version 92, 93 is needed" in message) == (False, True)


def test_the_test_button_passes_on_advice(bare: Any, connect: Connect) -> None:
    bare.config_set("maxmemory-policy", "allkeys-lru")
    ok, message = connect(host=bare.place).test_connection()
    assert ok
    assert "Note: eviction: allkeys-lru: jobs are lost when memory is full (set maxmemory-policy" in message


def test_the_test_button_knows_clusters(tmp_path: Path, connect: Connect) -> None:
    with running_primaries(tmp_path) as primaries:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in primaries.servers)
        ok, message = connect(host=hosts, extra={"kind": "cluster"}).test_connection()
        assert ok, message
        assert "A cluster of 3 primaries; prefix glide, no TLS." in message
        assert [state(server.client)[:2] for server in primaries.servers] == [({}, [])] * 3
        ok, message = connect(host=hosts.partition(",")[0]).test_connection()
        assert (ok, "role: a node of a cluster (use valkey+cluster://HOST:PORT)" in message) == (False, True)


def test_the_test_button_knows_sentinels(tmp_path: Path, connect: Connect) -> None:
    with running_pair(tmp_path) as pair:
        extra = {"kind": "sentinel", "service": "main"}
        ok, message = connect(host="127.0.0.1", port=pair.sentinel.port, extra=extra).test_connection()
        assert ok, message
        assert "The primary of main, by its sentinels; prefix glide, no TLS." in message
        assert f"valkey://127.0.0.1:{pair.primary.port}: connected as default" in message
        hook = connect(host="127.0.0.1", port=pair.sentinel.port, extra={**extra, "service": "other"})
        assert not hook.test_connection()[0]


@pytest.mark.parametrize("is_url", [False, True])
def test_tls_is_used_whether_the_host_is_a_url_or_not(
    tmp_path: Path, connect: Connect, *, is_url: bool
) -> None:
    files, port = Certificates.in_directory(tmp_path), free_port()
    options = ["--tls-port", str(port), *files.options(clients=True)]
    with running(redis7_binary(tmp_path), tmp_path, *options):
        host = f"valkeys://localhost:{port}" if is_url else f"localhost:{port}"
        extra = {"tls": True, "ca": files.ca, "cert": files.client}
        hook = connect(host=host, extra=extra)
        ok, message = hook.test_connection()
        assert ok, message
        assert "A single server; prefix glide, TLS." in message
        with hook.get_queue("etl") as queue:
            assert queue.add("work")
        unknown = connect(host=host, extra={"tls": True, "cert": files.client}).test_connection()
        assert (unknown[0], "certificate is not trusted" in unknown[1]) == (False, True)
        lenient = connect(host=host, extra={"tls": True, "cert": files.client, "verify": False})
        assert lenient.test_connection()[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"host": "127.0.0.1", "port": 1}, "cannot connect"),
        ({"host": "valkey://127.0.0.1:1"}, "cannot connect"),
        ({"host": "127.0.0.1", "extra": {"tsl": True}}, "extra 'tsl' is unknown: use tls"),
    ],
)
def test_the_test_button_fails_without_showing_the_secret(
    connect: Connect, given: dict[str, Any], expected: str
) -> None:
    ok, message = connect(login="u", password="hunter2", **given).test_connection()
    assert (ok, expected in message, "hunter2" in message) == (False, True, False)


def test_a_wrong_password_is_refused_without_showing_it(bare: Any, connect: Connect) -> None:
    ok, message = connect(host=f"valkey://u:hunter2@{bare.place}").test_connection()
    assert (ok, "refused the user or password" in message, "hunter2" in message) == (False, True, False)


async def test_airflow_masks_the_secrets_of_a_url_too(connect: Connect) -> None:
    connect(host="valkey://u:secret-of-sync@h").get_settings()
    hook = connect(
        host="valkey+sentinel://u:secret-of-async@h/main", extra={"sentinel_password": "of-sentinels"}
    )
    await hook.aget_settings()
    assert redact("secret-of-sync secret-of-async of-sentinels") == "*** *** ***"


def test_a_connection_that_is_wrong_is_refused_before_anything_is_sent(connect: Connect) -> None:
    hook = connect(host="h", extra={"ca": "/etc/ca.pem"})
    for make in (hook.get_conn, hook.get_producer, lambda: hook.get_queue("etl")):
        with pytest.raises(ConfigurationError, match="connection glidemq_default: extra ca needs TLS"):
            make()


def test_a_queue_has_the_connection_s_server_and_prefix(valkey: Valkey, bare: Any) -> None:
    with GlideMQHook().get_queue("etl") as queue, GlideMQHook().get_conn() as flows:
        job_id = queue.add("work", {"n": 1})
        assert flows.list() == []
    with redis.Redis.from_url(valkey.url.replace("valkey", "redis")) as client:
        assert client.exists(f"{valkey.prefix}:{{etl}}:job:{job_id}")


async def test_triggers_look_the_connection_up_without_blocking(valkey: Valkey) -> None:
    settings = await GlideMQHook().aget_settings()
    assert settings.prefix == valkey.prefix
    async with (
        await GlideMQHook().aget_producer() as producer,
        await GlideMQHook().aget_queue("etl") as queue,
    ):
        job_id = await queue.add("work")
        assert (await queue.get_job(job_id)).name == "work"
        assert await producer.list() == []
