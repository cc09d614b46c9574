"""How a service begins and ends: in a block, in a thread, by a signal; and by nothing else."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobState, Queue, Worker
from glidemq_orchestrate.errors import ConnectionFailed
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.processes import spawned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Eventually


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url) as made:
        yield made


class TestRunning:
    def test_it_serves_until_the_block_ends(self, url: str, queue: Queue) -> None:
        worker = Worker(url, queues=["etl"])
        worker.handler("double")(lambda ctx: ctx.data * 2)
        with worker.running() as served:
            assert served is worker
            assert queue.add_and_wait("double", 21) == 42
        assert not [thread for thread in threading.enumerate() if thread.name == worker.id]

    def test_an_error_in_the_block_ends_it_too(self, url: str) -> None:
        worker = Worker(url, queues=["etl"])
        with pytest.raises(ZeroDivisionError), worker.running():
            raise ZeroDivisionError
        assert not [thread for thread in threading.enumerate() if thread.name == worker.id]

    def test_what_keeps_it_from_starting_is_raised(self) -> None:
        with pytest.raises(ConnectionFailed), Worker("valkey://127.0.0.1:1", queues=["etl"]).running():
            raise AssertionError("it cannot have started")

    def test_one_that_was_stopped_is_not_begun_again(self, url: str) -> None:
        worker = Worker(url, queues=["etl"])
        with worker.running():
            pass
        with pytest.raises(RuntimeError, match="create another one"), worker.running():
            pass

    @pytest.mark.parametrize("end", ["stop", "retire"])
    def test_jobs_that_wait_in_a_worker_return_as_soon_as_it_is_to_end(
        self, url: str, queue: Queue, eventually: Eventually, end: str
    ) -> None:
        worker, may_end = Worker(url, queues=["etl"], concurrency=1, prefetch=5), threading.Event()
        worker.handler("wait")(lambda _ctx: may_end.wait(20))
        with worker.running():
            for _ in range(4):
                queue.add("wait")
            eventually(lambda: queue.counts()[JobState.ACTIVE] == 4)
            getattr(worker, end)()
            eventually(lambda: queue.counts()[JobState.WAITING] == 3, 5)
            assert queue.counts()[JobState.ACTIVE] == 1
            may_end.set()
        assert queue.counts()[JobState.COMPLETED] == 1

    def test_one_that_retires_waits_longer_than_one_that_stops(self, url: str, queue: Queue) -> None:
        for end, completed in (("stop", 0), ("retire", 1)):
            worker, has_begun = Worker(url, queues=["etl"], shutdown_timeout=0), threading.Event()

            @worker.handler("wait")
            async def wait(_ctx: Any, has_begun: threading.Event = has_begun) -> None:
                has_begun.set()
                await asyncio.sleep(1.5)

            with worker.running():
                if end == "stop":
                    queue.add("wait", attempts=1)
                assert has_begun.wait(20)
                assert worker.jobs_taken == 1
                getattr(worker, end)()
                if end == "retire":
                    thread = next(one for one in threading.enumerate() if one.name == worker.id)
                    thread.join(20)
            assert queue.counts()[JobState.COMPLETED] == completed

    def test_signals_are_left_to_the_process_that_it_serves_in(self, url: str) -> None:
        before = signal.getsignal(signal.SIGTERM)

        async def serve() -> Any:
            worker = Worker(url, queues=["etl"])
            serving = asyncio.create_task(worker.serve(signals=False))
            await asyncio.to_thread(worker.ready.wait, 20)
            meanwhile = signal.getsignal(signal.SIGTERM)
            worker.stop()
            await serving
            return meanwhile

        assert asyncio.run(serve()) is before

    def test_a_supervisor_too(self, url: str) -> None:
        with Supervisor(url, queues=["etl"]).running() as supervisor:
            assert supervisor.ready.is_set()

    def test_a_worker_in_a_plain_thread_does_not_outlive_the_main_thread(
        self, url: str, tmp_path: Path
    ) -> None:
        (tmp_path / "app.py").write_text(
            textwrap.dedent("""
                import sys, threading
                from glidemq_orchestrate import Worker

                worker = Worker(sys.argv[1], queues=["etl"])
                threading.Thread(target=worker.run).start()
                worker.ready.wait(20)
                raise ValueError("the main thread ends by an error")
            """)
        )
        done = subprocess.run(
            [sys.executable, tmp_path / "app.py", url], check=False, capture_output=True, timeout=30
        )
        assert done.returncode == 1
        assert b"ValueError" in done.stderr

    def test_a_second_of_its_signals_ends_a_worker_of_the_command_line(
        self, url: str, tmp_path: Path, redis_client: Any, eventually: Eventually
    ) -> None:
        (tmp_path / "app.py").write_text("from glidemq_orchestrate import Handlers\nhandlers = Handlers()\n")
        command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "app", "--queue", "etl"]
        command += ["--url", url, "--processes", "1"]
        with spawned(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as worker:
            eventually(lambda: redis_client.zcard("glide:{etl}:gmo:workers") == 1, timeout=60)
            worker.send_signal(signal.SIGHUP)
            worker.send_signal(signal.SIGINT)
            assert worker.wait(20) == 0
