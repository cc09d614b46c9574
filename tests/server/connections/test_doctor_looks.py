"""A doctor who only looks: nothing is written, nothing is loaded, and what can be seen is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from glidemq_orchestrate import ConnectionSettings, Queue
from glidemq_orchestrate.clients.servers import Finding, Verdict, examine
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.server.findings import ALWAYS_WRITE, COMMANDS, harmless_trial, rule
from glidemq_orchestrate.wire.call import ask_each
from glidemq_orchestrate.wire.keys import absent_key
from tests.server.lua.keyspace import dump
from tests.server.lua.servers import load_libraries, redis7_binary, running, valkey_binary

OK, FAILED = Verdict.OK, Verdict.FAILED


@pytest.fixture(params=["valkey", "redis 7"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A client of the administrator of a server without libraries."""
    binary = valkey_binary() if request.param == "valkey" else redis7_binary(tmp_path)
    with running(binary, tmp_path) as port, redis.Redis(port=port, decode_responses=True) as client:
        client.port, client.url = port, f"valkey://127.0.0.1:{port}"
        yield client


def looked(url: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(url, read_only=True)}


def state(server: Any) -> Any:
    """What the server holds, and how often it was changed."""
    return dump(server), server.function_list(), server.info("persistence")["rdb_changes_since_last_save"]


def settings_of(server: Any, *words: str) -> ConnectionSettings:
    server.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">hunter2", *words)
    return ConnectionSettings(server.url, user="worker", password="hunter2")


def test_a_server_without_libraries_is_left_as_it_was(server: Any) -> None:
    before = state(server)
    found = looked(ConnectionSettings(server.url, confirm="replicas:1"))
    assert (found["rights"].verdict, found["loading"].verdict, found["confirm"].verdict) == (OK, OK, OK)
    assert state(server) == before
    assert before[:2] == ({}, [])


def test_a_server_in_use_is_left_as_it_was(server: Any) -> None:
    with Queue("etl", server.url) as queue:
        queue.add("work")
    before = state(server)
    found = looked(server.url)
    assert (found["rights"].verdict, "loading" in found) == (OK, False)
    assert state(server) == before


def test_every_harmless_trial_is_understood_and_changes_nothing(server: Any) -> None:
    driver, before = SyncDriver(ConnectionSettings(server.url)), state(server)
    names = [name for name in COMMANDS if name not in ALWAYS_WRITE]
    replies = driver.run(ask_each([harmless_trial(name, absent_key("glide")) for name in names]))
    texts = {name: str(reply) for name, reply in zip(names, replies, strict=True) if _is_error(reply)}
    odd = {
        name for name, text in texts.items() if "arguments" in text or "syntax" in text or "unknown" in text
    }
    assert odd == {"hset"}  # a field without a value is refused after the check of rights
    assert state(server) == before
    driver.close()


def _is_error(reply: object) -> bool:
    return isinstance(reply, GlideMQError)


@pytest.mark.parametrize("name", ["zadd", "hset", "hincrby", "set", "xadd", "fcall", "xreadgroup"])
def test_a_missing_right_is_named_without_writing(server: Any, name: str) -> None:
    load_libraries(server.port)
    settings = settings_of(server, *rule().split(), f"-{name}")
    before = state(server)
    rights = looked(settings)["rights"]
    assert (rights.verdict, rights.found) == (FAILED, f"missing: {name}")
    assert state(server) == before


def test_the_rights_of_the_readme_suffice(server: Any) -> None:
    load_libraries(server.port)
    assert looked(settings_of(server, *rule().split()))["rights"].verdict is OK


def test_a_user_who_may_not_load_the_missing_libraries_is_told(server: Any) -> None:
    settings = settings_of(server, *rule().split())
    loading = looked(settings)["loading"]
    assert (loading.verdict, loading.advice) == (FAILED, "glidemq library load, as a user who may")
    server.execute_command("ACL", "SETUSER", "worker", "+function|load")
    assert looked(settings)["loading"].verdict is OK
    assert server.function_list() == []
