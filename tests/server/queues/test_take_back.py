"""A running job is taken from its worker now, without waiting for the end of its lease."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, JobOptions, JobState, Queue
from glidemq_orchestrate.attempts.exchange import Request, finish_and_fetch, renew
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import InvalidJob, JobNotFound, JobStateConflict
from glidemq_orchestrate.jobs.attempt import token_of
from glidemq_orchestrate.jobs.changes import take_back
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

ETL = QueueKeys("glide", "etl")


class Slow:
    """A handler whose first call waits until it is allowed to end."""

    def __init__(self) -> None:
        self.calls, self.may_end = 0, threading.Event()

    def __call__(self, _: Context) -> int:
        self.calls += 1
        call = self.calls
        if call == 1:
            self.may_end.wait(60)
        return call


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.mark.parametrize("options", [JobOptions(), JobOptions(lifo=True), JobOptions(priority=3)], ids=str)
def test_a_job_that_is_taken_back_runs_again_and_its_first_attempt_is_refused(
    options: JobOptions, queue: Queue, slow: Slow, run_worker: RunWorker, eventually: Eventually
) -> None:
    job_id = queue.add("slow", options=options)
    first = run_worker(["etl"], {"slow": slow}, concurrency=1)
    eventually(lambda: slow.calls == 1, 30)
    assert queue.take_back(job_id) == first.worker.id
    run_worker(["etl"], {"slow": slow}, concurrency=1)
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    slow.may_end.set()
    first.stop()
    job = queue.get_job(job_id)
    assert (job.result, job.attempts_made, slow.calls) == (2, 0, 2)
    assert any("taken back from worker" in line for line in queue.logs(job_id).lines)
    assert queue.counts()[JobState.ACTIVE] == 0


def test_its_worker_is_told_with_the_next_heartbeat(
    queue: Queue, slow: Slow, run_worker: RunWorker, eventually: Eventually
) -> None:
    job_id = queue.add("slow")
    lost: list[bool] = []

    def watch(ctx: Context) -> None:
        slow.calls += 1
        if slow.calls == 1:
            lost.append(ctx.cancelled.wait(30))

    run_worker(["etl"], {"slow": watch}, concurrency=1, lease=1)
    eventually(lambda: slow.calls == 1, 30)
    queue.take_back(job_id)
    eventually(lambda: lost == [True], 30)
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)


def test_in_the_grace_period_the_holder_is_asked_to_stop_and_its_end_counts(
    queue: Queue, slow: Slow, run_worker: RunWorker, eventually: Eventually
) -> None:
    seen: list[tuple[bool, bool]] = []

    def stops(ctx: Context) -> str:
        slow.calls += 1
        ctx.cancelled.wait(30)
        seen.append((ctx.cancelled.is_stopping, ctx.cancelled.is_lost))
        return "in time"

    job_id = queue.add("slow")
    running = run_worker(["etl"], {"slow": stops}, concurrency=1, lease=1)
    eventually(lambda: slow.calls == 1, 30)
    assert queue.take_back(job_id, grace=60) == running.worker.id
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    assert (queue.get_job(job_id).result, seen, slow.calls) == ("in time", [(True, False)], 1)


@pytest.mark.parametrize("options", [JobOptions(), JobOptions(lifo=True)], ids=str)
def test_after_the_grace_period_the_job_is_given_away(
    options: JobOptions, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    seen: list[str] = []

    async def stays(ctx: Context) -> int:
        seen.append("begun")
        if len(seen) > 1:
            return 2
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("stopping" if ctx.cancelled.is_stopping else "not asked")
            raise
        return 1

    job_id = queue.add("slow", options=options, history=True)
    run_worker(["etl"], {"slow": stays}, concurrency=1, lease=1)
    eventually(lambda: seen == ["begun"], 30)
    queue.take_back(job_id, grace=1.5)
    assert queue.get_job(job_id).state is JobState.ACTIVE
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    assert (queue.get_job(job_id).result, seen) == (2, ["begun", "stopping", "begun"])
    kinds = [entry.kind for entry in queue.history(job_id)]
    assert kinds == ["added", "active", "taken-back", "active", "completed"]
    assert queue.get_job(job_id).lost_attempts == 0
    assert queue.counts()[JobState.ACTIVE] == 0


def test_a_worker_that_cannot_send_heartbeats_gives_the_job_away_too(
    queue: Queue, hand: Hand, redis_client: Any
) -> None:
    """Its renewing process notices that the time is over."""
    job_id, worker, now_ms = queue.add("slow"), "gmo-worker-1-30000ms", int(time.time() * 1000)
    request = Request((), 1, token_of(worker, "x"))
    hand.run(ask(finish_and_fetch(ETL, worker, request, now_ms)))
    hand.run(take_back(ETL, job_id, timedelta(seconds=5), now_ms))
    assert hand.run(ask(renew(ETL, GROUP, worker, "", now_ms + 4999)))[0] == 1
    assert queue.get_job(job_id).state is JobState.ACTIVE
    hand.run(ask(renew(ETL, GROUP, worker, "", now_ms + 5000)))
    assert queue.get_job(job_id).state is JobState.WAITING
    hand.run(ask(finish_and_fetch(ETL, worker, Request((), 1, token_of(worker, "y")), now_ms + 6000)))
    assert hand.run(ask(renew(ETL, GROUP, worker, "", now_ms + 7000)))[0] == 1
    assert queue.get_job(job_id).state is JobState.ACTIVE


def test_a_node_of_a_flow_ends_once(
    flows: FlowProducer, queue: Queue, slow: Slow, run_worker: RunWorker, eventually: Eventually
) -> None:
    nodes = [FlowNode("a", queue="etl", job="slow"), FlowNode("b", queue="etl", job="slow", after=["a"])]
    flow = flows.submit(FlowSpec("two", nodes), flow_id="f")
    first = run_worker(["etl"], {"slow": slow}, concurrency=1)
    eventually(lambda: slow.calls == 1, 30)
    queue.take_back("f~a")
    run_worker(["etl"], {"slow": slow}, concurrency=1)
    assert flow.result(timeout=30)["b"] == 3
    slow.may_end.set()
    first.stop()
    assert flow.status().completed == 2


def test_only_a_running_job_of_our_workers_can_be_taken_back(queue: Queue, redis_client: Any) -> None:
    with pytest.raises(JobNotFound):
        queue.take_back("99")
    with pytest.raises(InvalidJob, match="grace"):
        queue.take_back("99", grace=-1)
    job_id = queue.add("slow")
    with pytest.raises(JobStateConflict, match="is waiting, not running"):
        queue.take_back(job_id)
    key = f"glide:{{etl}}:job:{job_id}"
    redis_client.hset(key, mapping={"state": "active", "processedOn": "1"})
    with pytest.raises(JobStateConflict, match="not held by a worker of this package"):
        queue.take_back(job_id)
    redis_client.hset(key, mapping={"gmo:token": "gmo-worker-1-30000ms/x", "gmo:entry": "1-1"})
    before = redis_client.hgetall(key)
    with pytest.raises(JobStateConflict, match="not held by a worker of this package"):
        queue.take_back(job_id)
    assert redis_client.hgetall(key) == before


def test_the_commands_show_who_holds_a_job_and_take_it_back(
    url: str, queue: Queue, slow: Slow, run_worker: RunWorker, eventually: Eventually
) -> None:
    job_id = queue.add("slow")
    running = run_worker(["etl"], {"slow": slow}, concurrency=1)
    eventually(lambda: slow.calls == 1, 30)

    def typed(*words: str) -> str:
        done = CliRunner().invoke(app, [*words], env={"GLIDEMQ_URL": url, "COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.output

    shown = typed("queue", "jobs", "etl", "--state", "active")
    assert running.worker.id in shown
    assert "s left" in shown
    assert "in 300 s, unless it ends before" in typed("job", "take-back", "etl", job_id, "--grace", "5m")
    found = json.loads(typed("job", "take-back", "etl", job_id, "--grace", "2m", "--json"))
    assert found == {"id": job_id, "worker": running.worker.id, "grace": 120.0}
    assert running.worker.id in typed("job", "take-back", "etl", job_id)
    slow.may_end.set()
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
