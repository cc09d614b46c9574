"""Jobs that wait for something, come in batches, or run in processes."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, Handlers, Queue, RetryLater, Suspend, WaitForChildren
from glidemq_orchestrate.worker import BatchError
from tests.server import process_handlers
from tests.server.worker.jobs.conftest import P, add, state

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker


def test_a_suspended_job_goes_on_with_what_it_was_sent(
    client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Context) -> Any:
        if not ctx.signals:
            raise Suspend("approval", timedelta(minutes=5))
        sent: Any = ctx.signals[0]
        return [sent["name"], sent["data"], ctx.attempt]

    job_id = add(client, opts='{"attempts":3}')
    run_worker(["etl"], {"work": work})
    eventually(lambda: state(client, job_id) == "suspended")
    assert client.xlen(P + "stream") == 0
    keys = [f"{P}job:{job_id}", P + "stream", P + "events", P + "suspended", f"{P}signals:{job_id}"]
    assert client.fcall("glidemq_signal", 5, *keys, job_id, "ok", '{"by":"me"}', 1) == "ok"
    eventually(lambda: state(client, job_id) == "completed")
    assert client.hget(f"{P}job:{job_id}", "returnvalue") == '["ok",{"by":"me"},1]'


def test_a_suspended_job_that_gets_no_signal_fails_in_time(
    client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Context) -> None:
        raise Suspend(timeout=timedelta(milliseconds=10))

    job_id = add(client)
    run_worker(["etl"], {"work": work})
    eventually(lambda: state(client, job_id) == "failed", timeout=20)
    assert client.hget(f"{P}job:{job_id}", "failedReason") == "Suspend timeout exceeded"


def test_a_job_waits_for_the_children_it_adds(
    client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    runs: list[str] = []

    def work(ctx: Context) -> None:
        runs.append("parent")
        if len(runs) == 1:
            for _ in range(2):
                add(client, "child", parent=ctx.job_id, parent_queue="etl")
            raise WaitForChildren

    job_id = add(client, lifo=True)
    run_worker(["etl"], {"work": work, "child": lambda ctx: runs.append("child")})
    eventually(lambda: state(client, job_id) == "completed")
    assert runs == ["parent", "child", "child", "parent"]
    assert client.get(P + "list-active") == "0"


def test_a_job_may_ask_for_later_without_spending_an_attempt(
    client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    attempts: list[int] = []

    def work(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) < 4:
            raise RetryLater(timedelta(milliseconds=5), counts=False)

    job_id = add(client)
    run_worker(["etl"], {"work": work})
    eventually(lambda: state(client, job_id) == "completed")
    assert attempts == [1, 1, 1, 1]


def test_jobs_come_together_and_each_has_its_own_end(
    client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    sizes: list[int] = []
    handlers = Handlers()

    @handlers.batch_handler("work", size=4, wait=timedelta(milliseconds=100))
    async def work(contexts: list[Context]) -> list[Any]:
        sizes.append(len(contexts))
        if any(ctx.data == 3 and ctx.attempt == 1 for ctx in contexts):
            raise BatchError([ValueError("three") if ctx.data == 3 else ctx.data for ctx in contexts])
        return [ctx.data for ctx in contexts]

    ids = [add(client, data=str(number), opts='{"attempts":2}') for number in range(10)]
    run_worker(["etl"], handlers, concurrency=2)
    eventually(lambda: client.zcard(P + "completed") == 10)
    assert [client.hget(f"{P}job:{job_id}", "returnvalue") for job_id in ids] == [str(n) for n in range(10)]
    assert client.hget(f"{P}job:{ids[3]}", "attemptsMade") == "1"
    assert max(sizes) == 4
    assert sum(sizes) == 11


def test_a_batch_is_of_one_queue(client: Any, url: str, run_worker: RunWorker) -> None:
    """Limits and budgets are those of a queue."""
    batches: list[set[str]] = []
    handlers = Handlers()

    @handlers.batch_handler("work", size=4, wait=timedelta(milliseconds=200))
    async def work(contexts: list[Context]) -> list[Any]:
        batches.append({ctx.queue for ctx in contexts})
        return [None for _ in contexts]

    with Queue("etl", url) as etl, Queue("spark", url) as spark:
        for _ in range(8):
            etl.add("work")
            spark.add("work")
        run_worker(["etl", "spark"], handlers, concurrency=4)
        assert etl.add_and_wait("work", timeout=timedelta(seconds=30)) is None
        assert spark.add_and_wait("work", timeout=timedelta(seconds=30)) is None
    assert {len(queues) for queues in batches} == {1}


def test_a_batch_that_returns_too_little_fails_as_a_whole(
    client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    handlers = Handlers()
    handlers.batch_handler("work", size=2)(lambda contexts: [1])
    for _ in range(2):
        add(client)
    run_worker(["etl"], handlers)
    eventually(lambda: client.zcard(P + "failed") == 2)
    assert "a result for each of its 2 jobs" in client.hget(P + "job:1", "failedReason")


class TestProcesses:
    @staticmethod
    def handlers() -> Handlers:
        handlers = Handlers()
        for function in (process_handlers.measure, process_handlers.hang, process_handlers.die):
            handlers.handler(function.__name__, process=True)(function)
        return handlers

    def test_a_handler_in_a_process_has_all_of_a_context(
        self, client: Any, run_worker: RunWorker, eventually: Eventually, queue: Queue
    ) -> None:
        job_id = add(client, "measure", data='{"x":1}')
        run_worker(["etl"], self.handlers(), concurrency=2)
        eventually(lambda: state(client, job_id) == "completed", 30)
        job = queue.get_job(job_id)
        assert isinstance(job.result, dict)
        assert job.result["pid"] != os.getpid()
        assert (job.result["data"], job.result["attempt"]) == ({"x": 1}, 1)
        assert job.progress == {"half": True}
        assert client.lrange(f"{P}log:{job_id}", 0, -1) == ["measured"]

    @pytest.mark.parametrize("how", ["timeout", "revoke"])
    def test_a_handler_in_a_process_is_killed(
        self, client: Any, run_worker: RunWorker, eventually: Eventually, tmp_path: Path, how: str
    ) -> None:
        file = tmp_path / "pid"
        opts = '{"timeout":3000}' if how == "timeout" else "{}"
        before = add(client, "measure")
        run_worker(["etl"], self.handlers(), concurrency=1)
        eventually(lambda: state(client, before) == "completed", 30)  # its process has started
        job_id = add(client, "hang", data=f'"{file}"', opts=opts)
        eventually(lambda: file.exists() and file.read_text(), 30)
        pid = int(file.read_text())
        if how == "revoke":
            client.hset(f"{P}job:{job_id}", "revoked", "1")
        eventually(lambda: not _is_alive(pid), 30)
        after = add(client, "measure")
        eventually(lambda: state(client, after) == "completed", 30)
        if how == "timeout":
            assert "still running after 0:00:03" in client.hget(f"{P}job:{job_id}", "failedReason")

    def test_a_process_that_dies_fails_its_job_only(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        dead, fine = add(client, "die"), add(client, "measure")
        run_worker(["etl"], self.handlers(), concurrency=1)
        eventually(lambda: state(client, dead) == "failed", 30)
        eventually(lambda: state(client, fine) == "completed", 30)
        assert "ProcessExpired" in client.hget(f"{P}job:{dead}", "failedReason")


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
