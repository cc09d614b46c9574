"""The allocator of the embedded server."""

from __future__ import annotations

import os
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from glidemq_orchestrate import EmbeddedServer, embedded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux preloads libraries by name")
OTHER = "libutil.so.1"  # of the C library, and not used by the server


def loaded(server: EmbeddedServer) -> str:
    return Path(f"/proc/{server.pid}/maps").read_text()


def test_the_server_uses_jemalloc_where_the_system_has_it() -> None:
    with EmbeddedServer() as server:
        assert ("libjemalloc" in loaded(server)) == (find_library("jemalloc") is not None)
    assert "LD_PRELOAD" not in os.environ


def test_a_library_that_the_user_preloads_stays_and_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", OTHER)
    monkeypatch.setattr(embedded, "_jemalloc", lambda: "libanl.so.1")
    with EmbeddedServer() as server:
        assert "libutil" in loaded(server)
        assert "libanl" in loaded(server)
        started = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    assert f"LD_PRELOAD={OTHER} libanl.so.1".encode() in started
    assert os.environ["LD_PRELOAD"] == OTHER


def test_a_server_starts_where_there_is_no_jemalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_jemalloc", lambda: None)
    with EmbeddedServer() as server:
        assert "libjemalloc" not in loaded(server)
