"""Processes with the real package; without ``make test-chasquimq`` there are no tests here."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.processes import spawned
from tests.server.chasquimq.conftest import Raw, Serve, images, raw, serve

__all__ = ["Raw", "Serve", "images", "raw", "serve"]

PYTHON = os.environ.get("GLIDEMQ_TEST_CHASQUIMQ", "")
if not PYTHON:
    collect_ignore_glob = ["test_*.py"]


class Peer:
    """A process with the real package; its methods are those of ``peer.Peer``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def __getattr__(self, name: str) -> Any:
        def call(**options: Any) -> Any:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(f"{json.dumps([name, options])}\n")
            self.process.stdin.flush()
            reply = json.loads(self.process.stdout.readline())
            if "error" in reply:
                raise PeerError(reply["error"])
            return reply["value"]

        return call


class PeerError(Exception):
    """What a call of the package raised."""


class StartPeer(Protocol):
    def __call__(self, queue: str = "images") -> Peer: ...


@pytest.fixture
def start_peer(url: str, tmp_path: Path) -> Iterator[StartPeer]:
    """Starts processes with the real package, which end with the test."""
    with ExitStack() as stack:
        errors = stack.enter_context((tmp_path / "peers.log").open("wb"))

        def start(queue: str = "images") -> Peer:
            words = [
                PYTHON,
                str(Path(__file__).with_name("peer.py")),
                url.replace("valkey://", "redis://"),
                queue,
            ]
            process = stack.enter_context(
                spawned(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
            )
            return Peer(process)

        yield start


@pytest.fixture
def peer(start_peer: StartPeer) -> Peer:
    """One such process for the queue ``images``."""
    return start_peer()
