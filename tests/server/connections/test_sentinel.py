"""A primary that dies: the sentinel promotes its replica, and all clients go on there."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from redis.exceptions import ResponseError

from glidemq_orchestrate import (
    ConnectionSettings,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    NewJob,
    Queue,
)
from glidemq_orchestrate.clients.servers import Verdict, examine
from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed, TransportError
from tests.conftest import Eventually, RunWorker
from tests.server.connections.topologies import Pair, running_pair

T = TypeVar("T")

SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=60)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("pair")) as running:
        yield running


def test_the_primary_of_a_service_is_found(pair: Pair) -> None:
    with Queue("etl", pair.url) as queue:
        assert pair.primary.client.exists(f"glide:{{etl}}:job:{queue.add('work')}")
        queue.obliterate()


def test_the_doctor_looks_at_the_primary(pair: Pair, eventually: Eventually) -> None:
    eventually(lambda: pair.is_whole, timeout=20)
    found = {finding.check: finding for finding in examine(pair.url)}
    assert found["connection"].server == f"valkey://127.0.0.1:{pair.primary.port}"
    assert (found["role"].verdict, found["role"].found) == (Verdict.OK, "a primary with 1 replica")


def test_an_unknown_service_and_dead_sentinels_are_reported(pair: Pair) -> None:
    with (
        Queue("etl", pair.url.replace("/main", "/other")) as queue,
        pytest.raises(ConfigurationError, match="do not know the service 'other'"),
    ):
        queue.add("work")
    only_dead = pair.url.partition(",")[0] + "/main"
    with Queue("etl", only_dead) as queue, pytest.raises(ConnectionFailed, match="cannot connect"):
        queue.add("work")


def test_sentinels_and_the_server_have_users_of_their_own(pair: Pair) -> None:
    pair.sentinel.client.execute_command("ACL", "SETUSER", "watcher", "on", ">see", "+sentinel")
    for server in pair.servers:
        server.client.execute_command("ACL", "SETUSER", "worker", "on", ">do", "~*", "+@all")
    settings = ConnectionSettings(
        pair.url.replace("//", "//worker:do@"), sentinel_user="watcher", sentinel_password="see"
    )
    with Queue("etl", settings) as queue:
        queue.add("work")
        queue.obliterate()
    wrongs = {
        pair.sentinel.port: replace(settings, sentinel_password="wrong"),
        pair.primary.port: replace(settings, password="wrong"),
    }
    for port, wrong in wrongs.items():
        with (
            Queue("etl", wrong) as queue,
            pytest.raises(ConfigurationError, match=f":{port} refused the user"),
        ):
            queue.add("work")


def test_a_client_of_a_primary_that_became_a_replica_finds_the_new_one(
    pair: Pair, eventually: Eventually
) -> None:
    with Queue("etl", pair.url) as queue:
        queue.add("work")
        before, after = pair.primary, pair.replica
        eventually(lambda: _is_failing_over(pair.sentinel.client), timeout=30)
        eventually(lambda: before.client.role()[0] == "slave", timeout=30)
        job_id = eventually(lambda: unless_down(lambda: queue.add("work")), timeout=20)
        assert after.client.exists(f"glide:{{etl}}:job:{job_id}")
        queue.obliterate()


def test_what_ends_while_a_primary_is_frozen_runs_once(
    pair: Pair, run_worker: RunWorker, eventually: Eventually
) -> None:
    """The calls of the workers hang, and their leases end; a call that waits looks whether it is in vain."""
    eventually(lambda: pair.is_whole and pair.sentinel.client.sentinel_slaves("main"), timeout=20)
    settings, frozen = ConnectionSettings(pair.url, socket_timeout=60), pair.primary
    assert frozen.process is not None
    runs = Counter[str]()

    def work(ctx: Any) -> None:
        runs[ctx.job_id] += 1
        threading.Event().wait(3)

    running = [run_worker(["etl"], {"work": work}, url=settings, concurrency=3, lease=SECOND) for _ in "ab"]
    with Queue("etl", settings) as queue:
        ids = [queue.add("work") for _ in range(6)]
        eventually(lambda: len(runs) == 6)
        pair.replicated()
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            assert unless_down(lambda: queue.states(ids[:1])) != []
            eventually(lambda: unless_down(lambda: queue.states(ids)) == [JobState.COMPLETED] * 6, timeout=40)
            for worker in running:
                worker.stop()
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        assert set(runs.values()) == {1}
        eventually(lambda: pair.is_whole, timeout=30)
        queue.obliterate()


def test_a_worker_and_its_clients_outlive_the_primary(
    pair: Pair, run_worker: RunWorker, eventually: Eventually
) -> None:
    runs = Counter[str]()
    eventually(lambda: pair.is_whole, timeout=20)
    primary, replica = pair.primary, pair.replica

    def work(ctx: Any) -> str:
        runs[ctx.job_id] += 1
        threading.Event().wait(0.05)
        return str(ctx.job_id)

    eventually(lambda: pair.sentinel.client.sentinel_slaves("main"), timeout=20)
    with Queue("etl", pair.url) as queue, FlowProducer(pair.url) as flows:
        ids = queue.add_many([NewJob("work", n) for n in range(100)])
        nodes = [
            FlowNode(f"n{n}", queue="etl", job="work", after=[f"n{n - 1}"] if n else []) for n in range(20)
        ]
        flow = flows.submit(FlowSpec("n", nodes), flow_id="f")
        pair.replicated()
        running = run_worker(["etl"], {"work": work}, url=pair.url, concurrency=4, lease=SECOND)
        eventually(lambda: sum(runs.values()) > 20, timeout=20)
        primary.kill()
        outcome = eventually(lambda: unless_down(lambda: flow.wait(timeout=LONG)), timeout=30)
        assert outcome is not None
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 20)
        assert None not in ids
        eventually(lambda: all(queue.get_job(one).state is JobState.COMPLETED for one in ids), timeout=30)  # type: ignore[arg-type]
        assert queue.add_and_wait("work", timeout=LONG)
        running.stop()
        assert set(runs) >= set(ids)
        assert replica.client.exists(f"glide:{{etl}}:job:{queue.add('work')}")


def unless_down(ask: Callable[[], T]) -> T | None:
    """What a client that tries again would get in the end."""
    try:
        return ask()
    except TransportError:
        return None


def _is_failing_over(sentinel: Any) -> bool:
    try:
        return bool(sentinel.execute_command("SENTINEL", "FAILOVER", "main"))
    except ResponseError:  # the sentinel looks at a new replica every ten seconds
        return False
