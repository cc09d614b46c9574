"""The embedded server on a free port, which another process may take before the server does."""

from __future__ import annotations

import socket

import pytest
import redis

from glidemq_orchestrate import EmbeddedServer, embedded
from glidemq_orchestrate.errors import ConfigurationError
from tests.ports import free_port


def test_another_port_is_tried_instead_of_one_that_was_just_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports = [other.getsockname()[1], free_port()]
        wanted = iter(ports)
        monkeypatch.setattr(embedded, "_free_port", lambda: next(wanted))
        with (
            EmbeddedServer() as server,
            redis.Redis.from_url(server.url.replace("valkey", "redis")) as client,
        ):
            assert client.ping()
        monkeypatch.setattr(embedded, "_free_port", lambda: ports[0])
        with pytest.raises(ConfigurationError, match=f"{ports[0]} is already in use"):
            EmbeddedServer().start()
