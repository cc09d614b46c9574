"""``glidemq library``: what is on the server, loading it, and never replacing a foreign one unasked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from typer.testing import CliRunner, Result

from glidemq_orchestrate.cli import app
from tests.server.lua.servers import LIBRARIES, load_libraries

FOREIGN = "#!lua name=glidemq\nredis.register_function('glidemq_version', function() return '90' end)\n"
NAMES = ("glidemq", "glidemq_orchestrate")
pytestmark = pytest.mark.standalone


@pytest.fixture
def bare(valkey: redis.Redis, server_port: int) -> Iterator[redis.Redis]:
    """A client of a server without libraries; they are back afterwards."""
    valkey.function_flush()
    yield valkey
    valkey.function_flush()
    load_libraries(server_port)


def _glidemq(client: redis.Redis, *words: str) -> Result:
    port = client.get_connection_kwargs()["port"]
    return CliRunner().invoke(app, ["library", *words, "--url", f"valkey://127.0.0.1:{port}"])


def _status(client: redis.Redis) -> list[dict[str, Any]]:
    """The rows of the server that the client talks to."""
    done = _glidemq(client, "status", "--json")
    assert done.exit_code == 0, done.output
    port = str(client.get_connection_kwargs()["port"])
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return [row for row in rows if row.pop("server").endswith(port)]


def _source(name: str) -> str:
    return (LIBRARIES / f"{name}.lua").read_text(encoding="utf-8")


def test_status_shows_that_nothing_is_loaded_and_loads_nothing(bare: redis.Redis) -> None:
    for row in _status(bare):
        assert (row["loaded"], row["ours"], row["version"], row["sha256"]) == (False, False, None, None)
    assert bare.function_list() == []
    assert "glidemq: not loaded" in _glidemq(bare, "status").stdout


def test_load_brings_both_and_status_shows_version_and_sum(bare: redis.Redis) -> None:
    assert _glidemq(bare, "load").exit_code == 0
    rows = _status(bare)
    assert [row["name"] for row in rows] == list(NAMES)
    assert all(row["loaded"] and row["ours"] for row in rows)
    assert [row["sha256"] for row in rows] == [hashlib.sha256(_source(n).encode()).hexdigest() for n in NAMES]
    assert rows[0]["version"] == "93"


def test_load_again_changes_nothing(valkey: redis.Redis) -> None:
    before = valkey.function_list()
    assert _glidemq(valkey, "load").exit_code == 0
    assert valkey.function_list() == before


def test_foreign_library_is_left_alone_unless_forced(bare: redis.Redis) -> None:
    client: Any = bare
    client.function_load(FOREIGN)
    done = _glidemq(bare, "load")
    assert done.exit_code == 1
    assert "--replace" in done.output
    assert client.fcall("glidemq_version", 0) == "90"
    foreign, own = _status(bare)
    assert (foreign["loaded"], foreign["ours"], foreign["version"]) == (True, False, "90")
    assert own["ours"], "what was missing is loaded all the same"
    assert _glidemq(bare, "load", "--replace").exit_code == 0
    assert client.fcall("glidemq_version", 0) == "93"
    assert _status(bare)[0]["ours"]


def test_foreign_library_without_a_version_is_shown(bare: redis.Redis) -> None:
    bare.function_load("#!lua name=glidemq\nredis.register_function('other', function() return 1 end)\n")
    row = _status(bare)[0]
    assert (row["loaded"], row["ours"], row["version"]) == (True, False, None)


@pytest.mark.parametrize(("version", "code"), [("0.0.1", 0), ("99.0.0", 1)])
def test_our_own_library_is_brought_up_to_date_but_never_back(
    bare: redis.Redis, version: str, code: int
) -> None:
    other = f"redis.register_function('gmo_version', function() return {{'{version}', 'x'}} end)\n"
    bare.function_load(f"#!lua name=glidemq_orchestrate\n{other}")
    assert _glidemq(bare, "load").exit_code == code
    row = _status(bare)[1]
    assert row["ours"] == (code == 0)
    assert _glidemq(bare, "load", "--replace").exit_code == 0
    assert _status(bare)[1]["ours"]


@pytest.mark.parametrize("name", NAMES)
def test_print_writes_the_source(name: str) -> None:
    done = CliRunner().invoke(app, ["library", "print", name])
    assert (done.exit_code, done.stdout) == (0, _source(name))


def test_print_of_an_unknown_library_is_refused() -> None:
    done = CliRunner().invoke(app, ["library", "print", "other"])
    assert done.exit_code == 2
    assert "no library 'other'" in done.output


def test_every_primary_of_a_cluster_gets_what_it_lacks(cluster_ports: list[int]) -> None:
    clients = [redis.Redis(port=port, decode_responses=True) for port in cluster_ports]
    try:
        for client in clients[1:]:
            client.function_flush()
        assert _glidemq(clients[0], "load").exit_code == 0
        for client in clients:
            assert [row["ours"] for row in _status(client)] == [True, True]
    finally:
        for client, port in zip(clients, cluster_ports, strict=True):
            load_libraries(port)
            client.close()
