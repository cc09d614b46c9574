"""TLS without certificates of clients: ACL users, a limited default user, and certificates out of date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from glidemq_orchestrate import AsyncQueue, ConnectionSettings, JobState, Queue
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed
from glidemq_orchestrate.server.findings import rule
from tests.conftest import Eventually, RunWorker
from tests.ports import free_port
from tests.server.connections.certificates import Certificates
from tests.server.lua.servers import load_libraries, redis7_binary, running

SECRET = "hunter2"


@dataclass
class Guarded:
    """A server that speaks TLS, and an administrator's client."""

    port: int
    admin: Any
    files: Certificates

    def settings(self, **changes: Any) -> ConnectionSettings:
        given = {"url": f"valkeys://localhost:{self.port}", "ca": self.files.ca}
        return ConnectionSettings(**(given | changes))

    def set_user(self, name: str, *rules: str) -> None:
        self.admin.execute_command("ACL", "SETUSER", name, "reset", "on", *rules, *rule().split())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.in_directory(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(files: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory, port = tmp_path_factory.mktemp("tls"), free_port()
    options = ["--tls-port", str(port), *files.options()]
    with (
        running(redis7_binary(directory), directory, *options) as plain,
        redis.Redis(port=plain, decode_responses=True) as admin,
    ):
        load_libraries(plain)
        admin.execute_command("ACL", "SETUSER", "admin", "on", f">{SECRET}", "~*", "&*", "+@all")
        admin.execute_command("AUTH", "admin", SECRET)
        yield Guarded(port, admin, files)


def test_a_user_works_over_tls(guarded: Guarded, run_worker: RunWorker) -> None:
    guarded.set_user("worker", f">{SECRET}")
    settings = guarded.settings(user="worker", password=SECRET)
    run_worker(["etl"], {"work": lambda ctx: ctx.data}, url=settings)
    with Queue("etl", settings) as queue:
        assert queue.add_and_wait("work", 1) == 1


async def test_a_wrong_password_is_refused_over_tls(guarded: Guarded) -> None:
    guarded.set_user("worker", f">{SECRET}")
    wrong = guarded.settings(user="worker", password="hunter3")
    expected = "refused the user or password"
    with Queue("etl", wrong) as queue, pytest.raises(ConfigurationError, match=expected) as raised:
        queue.add("work")
    async with AsyncQueue("etl", wrong) as again:
        with pytest.raises(ConfigurationError, match=expected) as also:
            await again.add("work")
    assert "hunter" not in f"{raised.value} {also.value}"


async def test_a_default_user_with_the_rule_alone_is_enough(guarded: Guarded) -> None:
    """As where its certificate is all that a client has: no password, and no right but the rule's."""
    guarded.admin.execute_command("ACL", "SETUSER", "default", "reset", "on", "nopass", *rule().split())
    guarded.admin.acl_log_reset()
    try:
        with Queue("etl", guarded.settings()) as queue:
            assert queue.add("work")
        async with AsyncQueue("etl", guarded.settings()) as again:
            assert await again.add("work")
        assert guarded.admin.acl_log() == []
    finally:
        guarded.admin.execute_command("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")


@pytest.mark.parametrize("which", ["expired", "not_yet"])
async def test_a_certificate_out_of_date_is_refused(files: Certificates, tmp_path: Path, which: str) -> None:
    port = free_port()
    options = ["--tls-port", str(port), *files.options(getattr(files, which))]
    with running(redis7_binary(tmp_path), tmp_path, *options) as plain:
        settings = ConnectionSettings(f"valkeys://localhost:{port}", ca=files.ca)
        with (
            Queue("etl", settings) as queue,
            pytest.raises(ConnectionFailed, match=r"certificate.*not trusted"),
        ):
            queue.add("work")
        async with AsyncQueue("etl", settings) as again:
            with pytest.raises(ConnectionFailed, match=r"certificate.*not trusted"):
                await again.add("work")
        with redis.Redis(port=plain) as admin:
            assert admin.keys("*") == []


def test_a_client_that_another_ca_signed_is_refused(files: Certificates, tmp_path: Path) -> None:
    port = free_port()
    options = ["--tls-port", str(port), *files.options(clients=True)]
    with running(redis7_binary(tmp_path), tmp_path, *options):
        url = f"valkeys://localhost:{port}"
        stranger = ConnectionSettings(url, ca=files.ca, cert=files.stranger)
        with Queue("etl", stranger) as queue, pytest.raises(ConnectionFailed):
            queue.add("work")
        with Queue("etl", ConnectionSettings(url, ca=files.ca, cert=files.client)) as queue:
            assert queue.add("work")


@pytest.mark.long
def test_the_leases_of_a_blocked_worker_are_renewed_by_its_user_over_tls(
    guarded: Guarded, run_worker: RunWorker, eventually: Eventually
) -> None:
    guarded.set_user("worker", f">{SECRET}")
    settings = guarded.settings(user="worker", password=SECRET)

    async def block(_ctx: Any) -> None:
        time.sleep(3)  # noqa: ASYNC251  the defect

    with Queue("etl", settings) as queue:
        run_worker(["etl"], {"block": block}, url=settings, lease=timedelta(seconds=1))
        job_id = queue.add("block")
        eventually(lambda: queue.get_job(job_id).state is JobState.ACTIVE, 20)
        time.sleep(2)
        renewed = guarded.admin.hget(f"glide:{{etl}}:job:{job_id}", "lastActive")
        assert queue.now().timestamp() - int(renewed) / 1000 < 1
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 20)
