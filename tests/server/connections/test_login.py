"""What a server says at a login: it is told with what to do, and never with what the server was sent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from glidemq_orchestrate import AsyncQueue, ConnectionSettings, Queue
from glidemq_orchestrate.clients.servers import Verdict, examine
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed, GlideMQError, ProtocolError
from tests.server.connections.certificates import Certificates
from tests.server.lua.servers import running, valkey_binary

SECRET = "hunter2"


@contextmanager
def _answering(line: str) -> Iterator[int]:
    """A server that answers each thing it reads with one line, in which ``%s`` is what it read."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                while data := connection.recv(4096):
                    said = data.decode(errors="replace").replace("\r\n", " ")
                    connection.sendall((line.replace("%s", said) + "\r\n").encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _refused(kind: type[Exception], match: str, settings: str | ConnectionSettings) -> Exception:
    with Queue("etl", settings) as queue, pytest.raises(kind, match=match) as raised:
        queue.add("work", SECRET)
    return raised.value


QUOTES = ("-ERR unknown command 'AUTH', with args beginning with: %s", "-ERR you said %s", "-%s", "-ODD %s")


@pytest.mark.parametrize("scheme", ["valkey", "valkey+cluster", "valkey+sentinel"])
async def test_what_a_server_quotes_of_a_login_is_not_shown(scheme: str) -> None:
    for line in QUOTES:
        await _is_not_shown(line, scheme)


async def _is_not_shown(line: str, scheme: str) -> None:
    with _answering(line) as port:
        sentinels: dict[str, Any] = {"sentinel_password": SECRET} if scheme.endswith("sentinel") else {}
        path = "/main" if sentinels else ""
        settings = ConnectionSettings(f"{scheme}://127.0.0.1:{port}{path}", password=SECRET, **sentinels)
        with Queue("etl", settings) as queue, pytest.raises(GlideMQError) as raised:
            queue.add("work")
        async with AsyncQueue("etl", settings) as again:
            with pytest.raises(GlideMQError) as also:
                await again.add("work")
        shown = f"{raised.value} {also.value} {examine(settings)}"
    assert SECRET not in shown
    assert f"127.0.0.1:{port}" in str(raised.value)


def test_an_unknown_error_of_a_login_and_a_long_one_of_a_call() -> None:
    with _answering("-ODD thing") as port:
        settings = ConnectionSettings(f"valkey://127.0.0.1:{port}", password=SECRET)
        with Queue("etl", settings) as queue, pytest.raises(ProtocolError, match="with an unknown error"):
            queue.add("work")
    with _answering("-ODD " + "x" * 100_000) as port, Queue("etl", f"valkey://127.0.0.1:{port}") as queue:
        with pytest.raises(ProtocolError) as raised:
            queue.add("work")
        assert len(str(raised.value)) < 2_000


def test_what_a_server_quotes_of_a_call_is_not_shown() -> None:
    line = "-ERR unknown command 'EVALSHA', with args beginning with: %s"
    with _answering(line) as port:
        assert SECRET not in str(_refused(GlideMQError, "unknown command", f"valkey://127.0.0.1:{port}"))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server with a password."""
    folder = tmp_path_factory.mktemp("login")
    with running(valkey_binary(), folder) as port, redis.Redis(port=port) as client:
        client.config_set("requirepass", SECRET)
        client.config_set("maxclients", 4)
        yield port
        client.config_set("requirepass", "")


async def test_a_password_that_is_missing_is_asked_for(port: int) -> None:
    """Nothing was executed, and trying again does not help: it is no connection that broke."""
    expected = "requires a password. Fix: pass user and password"
    _refused(ConfigurationError, expected, f"valkey://127.0.0.1:{port}")
    async with AsyncQueue("etl", f"valkey://127.0.0.1:{port}/3") as again:
        with pytest.raises(ConfigurationError, match=expected):
            await again.add("work")


def test_a_password_that_is_newly_wanted_is_asked_for_by_long_calls_too() -> None:
    with _answering("-ERR Protocol error: unauthenticated multibulk length") as port:
        _refused(ConfigurationError, "requires a password", f"valkey://127.0.0.1:{port}")


def test_a_database_that_is_not_there_is_named(port: int) -> None:
    url = f"valkey://:{SECRET}@127.0.0.1:{port}/99"
    _refused(ConfigurationError, "has no database 99. Fix: use another db", url)


def test_a_server_that_is_full_is_told(port: int) -> None:
    clients = [redis.Redis(port=port, password=SECRET) for _ in range(3)]
    try:
        for client in clients:
            client.ping()
        url = f"valkey://:{SECRET}@127.0.0.1:{port}"
        _refused(ConnectionFailed, "has reached maxclients", url)
    finally:
        for client in clients:
            client.close()


def test_a_port_where_something_else_answers_is_told() -> None:
    with _answering("HTTP/1.1 400 Bad Request") as port:
        for user in ("", ":secret@"):  # the first reply is to a call, or to the login
            with (
                Queue("etl", f"valkey://{user}127.0.0.1:{port}") as queue,
                pytest.raises(GlideMQError) as told,
            ):
                queue.counts()
            assert (
                "another program answers there, not a Valkey. Fix: check the port; that of Valkey is 6379"
                in str(told.value)
            )


@pytest.mark.parametrize("scheme", ["valkey", "valkeys"])
async def test_an_unknown_name_of_a_host_is_told(scheme: str) -> None:
    url = f"{scheme}://no-such-host.invalid:6379"
    with Queue("etl", url) as queue, pytest.raises(ConnectionFailed) as told:
        queue.counts()
    async with AsyncQueue("etl", url) as again:
        with pytest.raises(ConnectionFailed) as also:
            await again.counts()
    for error in (told, also):
        assert str(error.value).endswith(
            "Fix: check the name of the host; this machine finds no address for it"
        )


def test_a_server_that_is_no_sentinel_says_so(port: int) -> None:
    settings = ConnectionSettings(f"valkey+sentinel://127.0.0.1:{port}/main", sentinel_password=SECRET)
    with (
        Queue("etl", settings) as queue,
        pytest.raises(ConfigurationError, match="the server is not a sentinel"),
    ):
        queue.add("work")
    assert "not a sentinel" in examine(settings)[0].found
    bare = ConnectionSettings(f"valkey+sentinel://127.0.0.1:{port}/main")
    _refused(ConfigurationError, "pass sentinel_user and sentinel_password", bare)


def test_files_for_tls_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    good, bad = Certificates.in_directory(tmp_path), tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for options, expected in (
        ({"ca": str(bad)}, r"ca: .*bad\.pem contains no certificates in PEM form"),
        ({"ca": "a\0b"}, "ca must be the path of a file"),
        ({"cert": str(bad)}, r"cert: .*bad\.pem must contain a certificate and its key"),
        ({"cert": good.ca}, r"cert: .*ca\.pem must contain a certificate and its key"),
        ({"cert": good.client, "key": str(bad)}, r"cert: .*client\.pem and .*bad\.pem must contain"),
    ):
        settings = ConnectionSettings("valkeys://localhost:1", **options)  # type: ignore[arg-type]
        _refused(ConfigurationError, expected, settings)


def test_a_look_of_the_doctor_harms_no_key_whatever_its_name(tmp_path: Path) -> None:
    with running(valkey_binary(), tmp_path) as port, redis.Redis(port=port) as client:
        client.set("glide:gmo:absent", "precious")
        examine(f"valkey://127.0.0.1:{port}", read_only=True)
        assert client.get("glide:gmo:absent") == b"precious"
        assert client.dbsize() == 1


@pytest.mark.parametrize("reply", [b"+", b"$1000000000\r\n"])
@pytest.mark.parametrize("in_loop", [False, True])
async def test_a_server_that_never_stops_sending_holds_no_look(reply: bytes, *, in_loop: bool) -> None:
    """Each read of a blocking client would come in time."""
    with _dripping(reply) as port:
        settings = ConnectionSettings(f"valkey://127.0.0.1:{port}", connect_timeout=0.3, socket_timeout=0.5)
        async with asyncio.timeout(20):
            if in_loop:
                (found,) = examine(settings)
            else:
                (found,) = await asyncio.to_thread(examine, settings)
    assert (found.check, found.verdict) == ("connection", Verdict.FAILED)


@contextmanager
def _dripping(reply: bytes) -> Iterator[int]:
    """A server that answers with the beginning of a reply, and a byte of it each tenth of a second."""
    ended = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=drip, args=(connection,), daemon=True).start()

        def drip(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                connection.recv(4096)
                connection.sendall(reply)
                while not ended.wait(0.1):
                    connection.sendall(b"a")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
