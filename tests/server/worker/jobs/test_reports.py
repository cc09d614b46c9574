"""What a worker reports of its jobs, and what it does at a hangup."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, Handlers, Queue
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.worker import JobEvent
from tests.processes import spawned
from tests.server.worker.jobs.conftest import P, add, state

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker


def test_a_job_that_fails_for_good_leaves_a_dead_letter(
    client: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    def work(ctx: Context) -> None:
        raise ValueError("broken")

    queue.set_dead_letter_queue("dead")
    job_id = add(client, data='{"x":1}', opts='{"attempts":2}')
    run_worker(["etl"], {"work": work})
    (letter,) = eventually(queue.dead_letters)
    assert (letter.job_id, letter.data, letter.attempts_made) == (job_id, {"x": 1}, 2)
    assert letter.failed_reason == "ValueError: broken"


def test_hooks_get_what_happens_to_jobs(client: Any, run_worker: RunWorker, eventually: Eventually) -> None:
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
    client: Any, run_worker: RunWorker, eventually: Eventually
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
    client: Any, run_worker: RunWorker, eventually: Eventually
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
    client: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
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
    client: Any, run_worker: RunWorker, eventually: Eventually, wish: str
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
    client: Any, run_worker: RunWorker, eventually: Eventually
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
    client: Any, run_worker: RunWorker, eventually: Eventually
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
    with spawned([*command, "--url", url, "--processes", "1"], cwd=tmp_path) as worker:
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
