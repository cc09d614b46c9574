"""TLS with a CA of our own: who is trusted, who is accepted, and what error others get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from glidemq_orchestrate import AsyncQueue, ConnectionSettings, FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.clients.servers import Verdict, examine
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed
from tests.conftest import RunWorker
from tests.ports import free_port
from tests.server.lua.servers import redis7_binary, running

LONG = timedelta(seconds=30)


@dataclass
class Guarded:
    """A server with TLS on one port and without on another, that wants certificates of its clients."""

    url: str
    plain: str
    files: dict[str, str]
    stranger: str
    options: list[str]

    def settings(self, **changes: Any) -> ConnectionSettings:
        return ConnectionSettings(**({"url": self.url} | self.files | changes))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("tls")
    files = {name: str(directory / f"{name}.pem") for name in ("ca", "server", "cert", "key", "stranger")}
    ca = trustme.CA()
    ca.cert_pem.write_to_path(files["ca"])
    trustme.CA().cert_pem.write_to_path(files["stranger"])
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(files["server"])
    client = ca.issue_cert("worker@example.org")
    client.cert_chain_pems[0].write_to_path(files["cert"])
    client.private_key_pem.write_to_path(files["key"])
    port = free_port()
    options = ["--tls-cert-file", files["server"], "--tls-key-file", files["server"]]
    options += ["--tls-ca-cert-file", files["ca"], "--tls-auth-clients", "yes"]
    # The bundled Valkey is built without TLS.
    with running(redis7_binary(directory), directory, "--tls-port", str(port), *options) as plain:
        kept = {name: files[name] for name in ("ca", "cert", "key")}
        yield Guarded(
            f"valkeys://localhost:{port}", f"valkeys://localhost:{plain}", kept, files["stranger"], options
        )


@pytest.mark.parametrize("way", ["keywords", "query"])
def test_a_client_with_the_certificates_is_accepted(
    guarded: Guarded, way: str, run_worker: RunWorker
) -> None:
    settings: Any = guarded.settings()
    if way == "query":
        settings = guarded.url + "?" + "&".join(f"{name}={path}" for name, path in guarded.files.items())
    run_worker(["etl"], {"work": lambda ctx: ctx.data}, url=settings)
    with Queue("etl", settings) as queue:
        assert queue.add_and_wait("work", 1) == 1


async def test_an_async_client_is_accepted_too(guarded: Guarded) -> None:
    async with AsyncQueue("etl", guarded.settings()) as queue:
        assert await queue.add("work")


def test_a_cluster_is_found_by_its_tls_ports(guarded: Guarded, tmp_path: Path, run_worker: RunWorker) -> None:
    port, bus = free_port(), free_port()
    options = [*guarded.options, "--tls-port", str(port), "--tls-cluster", "yes"]
    options += ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
    with running(redis7_binary(tmp_path), tmp_path, *options) as plain:
        with redis.Redis(port=plain) as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                threading.Event().wait(0.02)
        settings = guarded.settings(url=f"valkeys+cluster://localhost:{port}")
        run_worker(["etl", "other"], {"work": lambda ctx: 1}, url=settings)
        nodes = [
            FlowNode("a", queue="etl", job="work"),
            FlowNode("b", queue="other", job="work", after=["a"]),
        ]
        with FlowProducer(settings) as flows:
            assert flows.submit(FlowSpec("n", nodes), flow_id="f").result(timeout=LONG) == {"a": 1, "b": 1}


def refusals(guarded: Guarded) -> dict[str, tuple[ConnectionSettings, str]]:
    without = {"cert": None, "key": None}
    files: dict[str, Any] = {**guarded.files}
    return {
        "another ca": (guarded.settings(ca=guarded.stranger), "certificate is not trusted. .*ca=FILE"),
        "no ca": (guarded.settings(ca=None), "certificate is not trusted"),
        "another name": (
            ConnectionSettings(guarded.url.replace("localhost", "127.0.0.1"), **files),
            "certificate is not trusted",
        ),
        "no certificate": (guarded.settings(**without), "requires a client certificate. .*cert=FILE"),
        "no tls there": (
            ConnectionSettings(guarded.plain, connect_timeout=0.3, socket_timeout=0.3, **files),
            "uses TLS at this port",
        ),
    }


def test_the_doctor_tells_a_client_without_tls_of_it(guarded: Guarded) -> None:
    (found,) = examine(guarded.url.replace("valkeys", "valkey"))
    assert (found.check, found.verdict) == ("connection", Verdict.FAILED)
    assert "valkeys:// if the server uses TLS" in found.advice


CASES = ["another ca", "no ca", "another name", "no certificate", "no tls there"]


@pytest.mark.parametrize("case", CASES)
def test_others_get_an_error_that_names_what_is_missing(guarded: Guarded, case: str) -> None:
    settings, expected = refusals(guarded)[case]
    with Queue("etl", settings) as queue, pytest.raises(ConnectionFailed, match=expected):
        queue.add("work")


@pytest.mark.parametrize("case", CASES)
async def test_others_get_an_error_from_async_clients(guarded: Guarded, case: str) -> None:
    settings, expected = refusals(guarded)[case]
    async with AsyncQueue("etl", settings) as queue:
        with pytest.raises(ConnectionFailed, match=expected):
            await queue.add("work")


def test_any_server_is_accepted_without_verification(guarded: Guarded) -> None:
    with Queue("etl", guarded.settings(ca=None, verify=False)) as queue:
        assert queue.add("work")


def test_a_file_that_is_not_there_is_named(guarded: Guarded, tmp_path: Path) -> None:
    settings = guarded.settings(ca=str(tmp_path / "none.pem"))
    with (
        Queue("etl", settings) as queue,
        pytest.raises(ConfigurationError, match=r"ca: .*none.pem cannot be read"),
    ):
        queue.add("work")
