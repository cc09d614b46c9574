"""Clients in a process that forks: the child has connections of its own and touches none of its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import AsyncQueue, EmbeddedServer, Queue
from glidemq_orchestrate.io.sync import SyncDriver

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def in_child(call: Callable[[], Any]) -> int:
    """Call in a forked child and return its exit code: 0 when the call returned, -14 when it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("first", ["use", "close"])
def test_a_client_goes_on_in_both_processes(queue: Queue, first: str) -> None:
    queue.add("a")

    def use() -> None:
        if first == "close":
            queue.close()
        assert queue.get_job("1").name == "a"

    queue.add("b")
    assert in_child(use) == 0
    assert queue.get_job("2").name == "b"


def test_a_child_closes_a_client_whose_parent_is_connecting(queue: Queue) -> None:
    queue.add("a")
    driver = queue._own()
    assert driver is not None
    with driver._making:  # as another thread does at the moment of the fork
        assert in_child(queue.close) == 0
        assert in_child(lambda: queue.get_job("1")) == 0


def test_threads_that_use_a_client_first_together_share_one_driver(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may have created a driver by then: one is kept, and all others are closed."""
    made: list[SyncDriver] = []
    closed: list[SyncDriver] = []
    held: list[SyncDriver] = []
    meeting, begin, close = threading.Barrier(4), SyncDriver.__init__, SyncDriver.close
    client = Queue("etl", url)
    hold = client._hold

    def make(self: SyncDriver, *given: Any) -> None:
        made.append(self)
        begin(self, *given)

    def end(self: SyncDriver) -> None:
        closed.append(self)
        close(self)

    def keep(driver: SyncDriver) -> SyncDriver:
        meeting.wait(30)
        held.append(hold(driver))
        return held[-1]

    monkeypatch.setattr(SyncDriver, "__init__", make)
    monkeypatch.setattr(SyncDriver, "close", end)
    monkeypatch.setattr(client, "_hold", keep)
    threads = [threading.Thread(target=client.counts) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 4
    assert len(set(map(id, held))) == 1
    client.close()
    assert {id(driver) for driver in closed} == {id(driver) for driver in made}


@pytest.mark.long
def test_forks_amid_the_calls_of_other_threads_hang_no_process(queue: Queue) -> None:
    job_id = queue.add("a")
    done, wrong = threading.Event(), list[str]()

    def hammer() -> None:
        while not done.is_set():
            if queue.get_job(job_id).name != "a":
                wrong.append("another's reply")

    def use() -> None:
        assert queue.get_job(job_id).name == "a"
        queue.close()

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        ends = [in_child(use) for _ in range(20)]
    finally:
        done.set()
        for thread in threads:
            thread.join(20)
    assert set(ends) == {0}
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_an_async_client_goes_on_in_both_processes(url: str) -> None:
    async def parent() -> None:
        async with AsyncQueue("etl", url) as queue:
            job_id = await queue.add("a")

            async def child() -> None:
                for _ in range(20):
                    assert (await queue.get_job(job_id)).name == "a"
                await queue.close()

            for _ in range(3):
                assert in_child(lambda: asyncio.run(child())) == 0
                for _ in range(20):
                    assert (await asyncio.wait_for(queue.get_job(job_id), 5)).name == "a"

    asyncio.run(parent())


def test_a_child_does_not_stop_the_server_of_its_parent() -> None:
    with EmbeddedServer() as server:
        folder = Path(server._server.data_dir)  # type: ignore[union-attr]
        assert in_child(server.stop) == 0
        assert in_child(lambda: server.__exit__(None, None, None)) == 0
        with Queue("etl", server.url) as queue:
            queue.add("a")
            assert in_child(lambda: Queue("etl", server.url).add("b")) == 0
        assert (folder / "appendonlydir").exists()


def test_the_exit_of_a_child_does_not_stop_the_server_of_its_parent() -> None:
    with EmbeddedServer() as server:
        pid = os.fork()
        if pid == 0:
            import atexit  # noqa: PLC0415

            atexit._run_exitfuncs()  # what sys.exit comes to, without pytest's own end
            os._exit(0)
        os.waitpid(pid, 0)
        with Queue("etl", server.url) as queue:
            queue.add("a")
