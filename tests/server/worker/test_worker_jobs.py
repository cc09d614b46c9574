"""What a worker does with its jobs: order, limits, parking, batches, processes, hooks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, Handlers, Queue, RateLimit, RetryLater, Suspend, WaitForChildren
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.worker import BatchError, JobEvent, listener
from tests.processes import spawned
from tests.server import process_handlers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker

P = "glide:{etl}:"


def add(client: Any, name: str = "work", data: str = "null", **kw: Any) -> str:
    """Add a job as a Node producer does."""
    keys = [P + key for key in ("id", "stream", "scheduled", "events")]
    timing = (kw.get("delay", 0), kw.get("priority", 0), kw.get("parent", ""), kw.get("attempts", 0))
    tail = (
        "",
        0,
        0,
        0,
        0,
        0,
        0,
        kw.get("ttl", 0),
        "",
        int(kw.get("lifo", False)),
        kw.get("parent_queue", ""),
    )
    args = (name, data, kw.get("opts", "{}"), client.time()[0] * 1000, *timing, *tail, "", 0)
    if kw.get("parent"):
        keys.append(f"{P}deps:{kw['parent']}")
    job_id: str = client.fcall("glidemq_addJob", len(keys), *keys, *args)
    return job_id


def state(client: Any, job_id: str) -> str | None:
    found: str | None = client.hget(f"{P}job:{job_id}", "state")
    return found


@pytest.fixture
def client(redis_client: Any, queue: Queue) -> Any:
    """Raw commands on a server whose libraries are loaded."""
    queue.add("nobody")
    redis_client.flushall()
    return redis_client


def seen_by(seen: list[Any]) -> Any:
    return lambda ctx: seen.append(ctx.data)


class TestOrder:
    def test_priorities_go_before_the_newest_and_those_before_the_others(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        seen: list[Any] = []
        add(client, data='"plain"')
        add(client, data='"lifo 1"', lifo=True)
        add(client, data='"lifo 2"', lifo=True)
        add(client, data='"low"', priority=9)
        add(client, data='"high"', priority=1)
        run_worker(["etl"], {"work": seen_by(seen)}, concurrency=1, prefetch=0)
        eventually(lambda: len(seen) == 5)
        assert seen == ["high", "low", "lifo 2", "lifo 1", "plain"]
        eventually(lambda: client.zcard(P + "completed") == 5)
        assert client.get(P + "list-active") == "0"
        assert not client.exists(P + "gmo:list-held")

    def test_a_job_from_a_list_gives_its_place_back_however_it_ends(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        def work(ctx: Context) -> None:
            if ctx.data == "later" and ctx.attempt == 1:
                raise RetryLater(timedelta(milliseconds=20))
            if ctx.data == "postponed" and not client.exists("seen"):
                client.set("seen", 1)
                raise RetryLater(timedelta(milliseconds=20), counts=False)
            if ctx.data == "broken":
                raise ValueError

        for data in ('"later"', '"postponed"', '"broken"', '"fine"'):
            add(client, data=data, lifo=True, opts='{"attempts":2}')
            add(client, data=data, priority=3, opts='{"attempts":2}')
        run_worker(["etl"], {"work": work})
        eventually(lambda: client.zcard(P + "completed") + client.zcard(P + "failed") == 8)
        assert client.zcard(P + "failed") == 2
        assert client.get(P + "list-active") == "0"
        assert not client.exists(P + "gmo:list-held")

    @pytest.mark.parametrize("kind", [{"delay": 100}, {"priority": 1}, {"lifo": True}, {}], ids=str)
    def test_an_idle_worker_notices_every_kind_of_job_without_polling(
        self,
        client: Any,
        run_worker: RunWorker,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
        kind: dict[str, Any],
    ) -> None:
        monkeypatch.setattr(listener, "BLOCK_MS", 60_000)
        monkeypatch.setattr("glidemq_orchestrate.worker.services.worker.UPKEEP_SECONDS", 60.0)
        seen = threading.Event()
        run_worker(["etl"], {"work": lambda ctx: seen.set()})
        eventually(lambda: "XREAD" in str(client.client_list()).upper())
        add(client, **kind)
        assert seen.wait(20)


class TestLimits:
    def test_a_paused_queue_gives_out_nothing_until_it_is_resumed(
        self, client: Any, run_worker: RunWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "BLOCK_MS", 60_000)
        seen: list[Any] = []
        client.fcall("glidemq_pause", 2, P + "meta", P + "events")
        worker = run_worker(["etl"], {"work": lambda ctx: seen.append(1)}).worker
        for kind in ({}, {"lifo": True}, {"priority": 1}):
            add(client, **kind)
        eventually(worker.ready.is_set)
        eventually(lambda: client.info("commandstats").get("cmdstat_xread"))
        assert seen == []
        assert client.xpending(P + "stream", "workers")["pending"] == 0
        client.fcall("glidemq_resume", 2, P + "meta", P + "events")
        eventually(lambda: len(seen) == 3)

    def test_the_queue_limits_how_many_jobs_run_whichever_worker_has_them(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        client.hset(P + "meta", "globalConcurrency", 2)
        most, now, lock, done = [0], [0], threading.Lock(), threading.Semaphore(0)

        def work(ctx: Context) -> None:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            ctx.cancelled.wait(0.01)
            with lock:
                now[0] -= 1
            done.release()

        for number in range(40):
            add(client, priority=number % 3 and 1, lifo=number % 3 == 2)
        for _ in range(2):
            run_worker(["etl"], {"work": work}, concurrency=5)
        for _ in range(40):
            assert done.acquire(timeout=20)
        assert most[0] == 2
        eventually(lambda: client.zcard(P + "completed") == 40)

    @pytest.mark.parametrize("whose", ["queue", "worker"])
    def test_a_rate_limit_holds_for_all_workers_together(
        self, client: Any, run_worker: RunWorker, eventually: Eventually, whose: str
    ) -> None:
        started: list[Any] = []
        options: dict[str, Any] = {}
        if whose == "queue":
            client.hset(P + "meta", mapping={"rateLimitMax": 5, "rateLimitDuration": 600_000})
        else:
            options["rate_limit"] = RateLimit(5, timedelta(minutes=10))
        for _ in range(20):
            add(client)
        for _ in range(2):
            run_worker(["etl"], {"work": lambda ctx: started.append(1)}, **options)
        eventually(lambda: client.zcard(P + "completed") == 5)
        client.hset(P + "rate", "windowStart", 1)  # the window has passed
        add(client)
        eventually(lambda: client.zcard(P + "completed") == 10)
        assert len(started) == 10

    def test_a_job_whose_keys_are_broken_holds_up_no_other(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        bad, good = add(client), add(client)
        client.delete(f"{P}job:{bad}")
        client.set(f"{P}job:{bad}", "not a hash")
        run_worker(["etl"], {"work": lambda ctx: 1})
        eventually(lambda: state(client, good) == "completed")


class TestParking:
    def test_a_suspended_job_goes_on_with_what_it_was_sent(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
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
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        def work(ctx: Context) -> None:
            raise Suspend(timeout=timedelta(milliseconds=10))

        job_id = add(client)
        run_worker(["etl"], {"work": work})
        eventually(lambda: state(client, job_id) == "failed", timeout=20)
        assert client.hget(f"{P}job:{job_id}", "failedReason") == "Suspend timeout exceeded"

    def test_a_job_waits_for_the_children_it_adds(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
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
        self, client: Any, run_worker: RunWorker, eventually: Eventually
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


class TestBatches:
    def test_jobs_come_together_and_each_has_its_own_end(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
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
        assert [client.hget(f"{P}job:{job_id}", "returnvalue") for job_id in ids] == [
            str(n) for n in range(10)
        ]
        assert client.hget(f"{P}job:{ids[3]}", "attemptsMade") == "1"
        assert max(sizes) == 4
        assert sum(sizes) == 11

    def test_a_batch_is_of_one_queue(self, client: Any, url: str, run_worker: RunWorker) -> None:
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
        self, client: Any, run_worker: RunWorker, eventually: Eventually
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


class TestWhatIsReportedOnTheWay:
    def test_a_job_that_fails_for_good_leaves_a_dead_letter(
        self, client: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        def work(ctx: Context) -> None:
            raise ValueError("broken")

        queue.set_dead_letter_queue("dead")
        job_id = add(client, data='{"x":1}', opts='{"attempts":2}')
        run_worker(["etl"], {"work": work})
        (letter,) = eventually(queue.dead_letters)
        assert (letter.job_id, letter.data, letter.attempts_made) == (job_id, {"x": 1}, 2)
        assert letter.failed_reason == "ValueError: broken"

    def test_hooks_get_what_happens_to_jobs(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        handlers, events = Handlers(), list[JobEvent]()

        @handlers.handler("work")
        def work(ctx: Context) -> int:
            if ctx.attempt == 1:
                raise ValueError("once")
            return 1

        @handlers.on_job
        def note(event: JobEvent) -> None:
            events.append(event)
            raise RuntimeError("a hook that fails changes nothing")

        job_id = add(client, opts='{"attempts":2}')
        run_worker(["etl"], handlers)
        eventually(lambda: state(client, job_id) == "completed" and len(events) >= 4)
        assert [(event.kind, event.attempt, event.reason) for event in events] == [
            ("active", 1, ""), ("retrying", 1, "ValueError: once"), ("active", 2, ""), ("completed", 2, ""),
        ]  # fmt: skip

    def test_a_backoff_of_the_users_own_is_asked(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        handlers = Handlers()
        handlers.backoff("mine")(lambda failures, error: timedelta(milliseconds=7 * failures))

        @handlers.handler("work")
        async def work(ctx: Context) -> None:
            raise ValueError

        add(client, opts='{"attempts":3,"backoff":{"type":"mine","delay":60000}}')
        run_worker(["etl"], handlers)
        eventually(lambda: client.zcard(P + "failed") == 1)
        delays = [fields.get("delay") for _, fields in client.xrange(P + "events")]
        assert [delay for delay in delays if delay] == ["7", "14"]

    def test_log_lines_and_the_last_progress_are_there_when_the_job_has_ended(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        async def work(ctx: Context) -> None:
            for number in range(150):
                ctx.log(f"line {number}")
                ctx.progress(number)

        job_id = add(client)
        run_worker(["etl"], {"work": work})
        eventually(lambda: state(client, job_id) == "completed")
        assert client.lrange(f"{P}log:{job_id}", 0, -1) == [f"line {number}" for number in range(150)]
        assert client.hget(f"{P}job:{job_id}", "progress") == "149"

    def test_a_handler_puts_out_as_it_goes_and_reports_what_it_used(
        self, client: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        def work(ctx: Context) -> None:
            for word in ("one", "two"):
                ctx.output({"type": "token", "content": word})
            ctx.report_usage(Usage(model="m", tokens={"in": 3, "out": 4}))
            ctx.log("after")

        job_id = add(client)
        run_worker(["etl"], {"work": work})
        eventually(lambda: state(client, job_id) == "completed")
        assert [chunk.fields["content"] for chunk in queue.read_output(job_id)] == ["one", "two"]
        used = queue.usage(job_id)
        assert used is not None
        assert used.total_tokens == 7

    @pytest.mark.parametrize("wish", ["fail", "pause"])
    def test_a_budget_of_a_node_flow_is_charged_and_obeyed(
        self, client: Any, run_worker: RunWorker, eventually: Eventually, wish: str
    ) -> None:
        budget = P + "budget:1"
        caps = {"usedTokens": 0, "usedCost": 0, "exceeded": 0, "onExceeded": wish, "maxTotalTokens": 10}
        client.hset(budget, mapping=caps | {"tokenWeights": '{"out":3}'})
        ids = [add(client) for _ in range(3)]
        for job_id in ids:
            client.hset(f"{P}job:{job_id}", "budgetKey", budget)

        def work(ctx: Context) -> None:
            ctx.report_usage(Usage(tokens={"in": 1, "out": 2}))

        run_worker(["etl"], {"work": work}, concurrency=1, prefetch=0)
        last = "failed" if wish == "fail" else "delayed"
        eventually(lambda: [state(client, job_id) for job_id in ids] == ["completed", "completed", last])
        assert client.hget(budget, "usedTokens") == "14"
        if wish == "fail":
            assert client.hget(f"{P}job:{ids[2]}", "failedReason").endswith("Budget exceeded")

    def test_the_fallback_of_an_attempt_is_passed_on(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        used: list[Any] = []

        def work(ctx: Context) -> None:
            used.append(ctx.fallback and ctx.fallback.model)
            raise ValueError

        add(client, opts='{"attempts":4,"fallbacks":[{"model":"m1"},{"model":"m2"}]}')
        run_worker(["etl"], {"work": work})
        eventually(lambda: client.zcard(P + "failed") == 1)
        assert used == [None, "m1", "m2", None]

    def test_finished_jobs_are_kept_as_their_options_say(
        self, client: Any, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        gone = add(client, opts='{"removeOnComplete":true}')
        kept = [add(client, opts='{"removeOnComplete":2}') for _ in range(5)]
        run_worker(["etl"], {"work": lambda ctx: 1}, concurrency=1, prefetch=0)
        eventually(lambda: client.xlen(P + "stream") == 0 and client.zcard(P + "completed") == 2)
        assert [job_id for job_id in (gone, *kept) if state(client, job_id)] == kept[-2:]


APP = """
    import os
    from glidemq_orchestrate import Handlers

    handlers = Handlers()

    @handlers.handler("work")
    def work(ctx):
        if isinstance(ctx.data, str):
            open(ctx.data, "w").close()
            ctx.cancelled.wait(2)
        return os.getpid()
"""


def test_a_hangup_makes_a_worker_connect_again_and_loses_nothing(
    client: Any, url: str, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "jobs_app.py").write_text("\n".join(line[4:] for line in APP.splitlines()))
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "jobs_app", "--queue", "etl"]
    with spawned([*command, "--url", url], cwd=tmp_path) as worker:
        begun = tmp_path / "begun"
        slow = add(client, data=f'"{begun}"')
        eventually(begun.exists, 20)
        worker.send_signal(signal.SIGHUP)
        quick = [add(client, data=str(number)) for number in range(50)]
        eventually(lambda: state(client, slow) == "completed", 20)
        eventually(lambda: client.zcard(P + "completed") == 51, 20)
        results = {client.hget(f"{P}job:{job_id}", "returnvalue") for job_id in (slow, *quick)}
        assert results == {str(worker.pid)}
        assert client.hget(f"{P}job:{slow}", "stalledCount") is None
        worker.terminate()
        assert worker.wait(60) == 0


def test_a_worker_writes_its_log_as_json_when_asked(
    client: Any, url: str, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "jobs_app.py").write_text("\n".join(line[4:] for line in APP.splitlines()))
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", "jobs_app", "--queue", "etl"]
    command += ["--url", url, "--log-json"]
    with spawned(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        failed = add(client, "unknown")
        eventually(lambda: state(client, failed) == "failed", 60)
        worker.terminate()
        _, log = worker.communicate(timeout=60)
    records = {record["action"]: record for record in map(json.loads, log.splitlines()) if "action" in record}
    assert {"worker_started", "job_failed", "worker_stopped"} <= set(records)
    assert (records["job_failed"]["job_id"], records["job_failed"]["level"]) == (failed, "error")
