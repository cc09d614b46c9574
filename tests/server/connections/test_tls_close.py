"""What is left of connections with TLS once their client is closed: nothing, whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from glidemq_orchestrate import AsyncQueue, ConnectionSettings, Queue
from glidemq_orchestrate.errors import ConnectionFailed, TransportError
from tests.server.connections.certificates import Certificates

PATIENCE = 0.3


class Listener:
    """Speaks TLS and reads what it is sent. Says no word, and goodbye only if it is polite."""

    def __init__(self, files: Certificates, *, is_polite: bool, waits: float = 0) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(files.server)
        self._is_polite, self._waits, self._ended = is_polite, waits, threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self.socket.accept()
                threading.Thread(target=self._listen, args=(plain,), daemon=True).start()

    def _listen(self, plain: socket.socket) -> None:
        time.sleep(self._waits)
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
            while connection.recv(4096):
                pass
            if not self._is_polite:
                self._ended.wait()
            connection.unwrap()


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates.in_directory(tmp_path)


@pytest.mark.parametrize("is_polite", [True, False])
async def test_a_failed_connection_is_closed_when_its_client_is(
    files: Certificates, *, is_polite: bool
) -> None:
    with closing(Listener(files, is_polite=is_polite)) as listener:
        async with AsyncQueue("etl", _settings(listener, files)) as queue:
            with pytest.raises(TransportError):
                await queue.add("work")
        await _closed(listener.port)


async def test_a_connection_that_is_made_as_its_time_is_over_is_closed(files: Certificates) -> None:
    """The handshake and the time limit end in one turn of the event loop, which somebody had blocked."""
    with closing(Listener(files, is_polite=False, waits=0.15)) as listener:
        async with AsyncQueue("etl", _settings(listener, files)) as queue:
            asyncio.get_running_loop().call_later(0.1, time.sleep, 2 * PATIENCE)
            with pytest.raises(TransportError):
                await queue.add("work")
        await _closed(listener.port)


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_a_server_that_does_not_finish_the_handshake_is_given_up_in_time(
    files: Certificates, *, speaks_tls: bool
) -> None:
    """``connect_timeout`` counts for the handshake; ``socket_timeout`` for what comes after it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as plain,
        closing(Listener(files, is_polite=True)) as listener,
    ):
        port = listener.port if speaks_tls else plain.getsockname()[1]
        times = {"connect_timeout": 60, "socket_timeout": 0.3} if speaks_tls else {"connect_timeout": 0.3}
        settings = ConnectionSettings(f"valkeys://localhost:{port}", ca=files.ca, **times)  # type: ignore[arg-type]
        with Queue("etl", settings) as queue:
            for _ in range(2):
                started = time.monotonic()
                with pytest.raises(ConnectionFailed, match="Timeout"):
                    queue.add("work")
                assert time.monotonic() - started < 10  # 30 s is the default socket_timeout


def _settings(listener: Listener, files: Certificates) -> ConnectionSettings:
    url = f"valkeys://localhost:{listener.port}"
    return ConnectionSettings(url, ca=files.ca, connect_timeout=PATIENCE, socket_timeout=PATIENCE)


async def _closed(port: int) -> None:
    """Soon this process has no connection to the port: an aborted one is closed by the event loop."""
    for _ in range(100):
        if not _sockets_to(port):
            return
        await asyncio.sleep(0.03)
    assert not _sockets_to(port)


def _sockets_to(port: int) -> int:
    """How many sockets of this process are connected to a port, by the clients' ends."""
    connections = psutil.Process().net_connections("tcp")
    return sum(bool(found.raddr) and found.raddr.port == port for found in connections)
