"""The history of a job: what happened to it, with its time, and by whom."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import (
    Context,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    JobState,
    NewJob,
    Queue,
    RetryLater,
)
from glidemq_orchestrate.attempts.exchange import Request, finish_and_fetch
from glidemq_orchestrate.attempts.upkeep import reclaim_jobs
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import JobNotFound
from glidemq_orchestrate.jobs.attempt import token_of
from glidemq_orchestrate.jobs.changes import change_delay, change_priority, promote
from glidemq_orchestrate.jobs.history import MAX_LINES, note
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.node import PlainNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from glidemq_orchestrate.wire.call import Op
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

ETL = QueueKeys("glide", "etl")
P = "glide:{etl}:"


def take(hand: Hand, worker: str = "gmo-worker-1-30000ms") -> int:
    """Fetch one job, as a worker that is never heard of again; returns how many jobs there were."""
    request = Request((), 1, token_of(worker, "x"), again=False)
    now_ms = int(time.time() * 1000)
    return len(hand.run(ask(finish_and_fetch(ETL, worker, request, now_ms))).fetched)


def kinds(queue: Queue, job_id: str) -> list[str]:
    return [entry.kind for entry in queue.history(job_id)]


def test_a_history_names_each_change_its_worker_and_reason(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    calls: list[int] = []

    def work(_: Context) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("too small\nsecond line")

    job_id = queue.add("work", history=True, attempts=2, delay=60)
    queue.change_delay(job_id, 30)
    queue.change_priority(job_id, 3)
    queue.promote(job_id)
    running = run_worker(["etl"], {"work": work})
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    history = queue.history(job_id)
    assert [(entry.kind, entry.detail) for entry in history if entry.worker is None] == [
        ("added", ""),
        ("delay-changed", "30 s"),
        ("priority-changed", "3"),
        ("promoted", ""),
        ("retrying", "ValueError: too small"),
        ("completed", ""),
    ]
    assert [entry.worker for entry in history if entry.kind == "active"] == [running.worker.id] * 2
    assert not history.is_partial
    times = [entry.at for entry in history]
    assert times == sorted(times)
    job = queue.get_job(job_id)
    assert (times[0], times[-1]) == (job.created_at, job.finished_at)


@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"lifo": True}], ids=str)
def test_lost_taken_back_failed_and_retried_are_in_the_history(
    options: dict[str, Any], queue: Queue, hand: Hand, eventually: Eventually, run_worker: RunWorker
) -> None:
    job_id = queue.add("work", options=JobOptions(history=True, **options))
    assert take(hand) == 1
    queue.take_back(job_id)
    assert kinds(queue, job_id) == ["added", "active", "taken-back"]
    queue.revoke(job_id)
    queue.retry(job_id)
    assert kinds(queue, job_id) == ["added", "active", "taken-back", "failed", "retried"]
    history = queue.history(job_id)
    assert history[3].detail == "revoked"
    assert history[2].worker == history[1].worker


def test_the_history_names_the_worker_that_was_lost(queue: Queue, hand: Hand) -> None:
    job_id = queue.add("work", history=True)
    assert take(hand) == 1
    later = int(time.time() * 1000) + 200_000
    hand.run(ask(reclaim_jobs(ETL, "other", lock_ms=0, max_stalled=3, now_ms=later)))
    lost = queue.history(job_id)[-1]
    assert (lost.kind, lost.worker) == ("lost", "gmo-worker-1-30000ms")


def test_an_attempt_that_ends_without_an_outcome_is_in_the_history(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    calls: list[int] = []

    def later(_: Context) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RetryLater(0.01, counts=False)

    job_id = queue.add("later", {"secret": 1}, history=True)
    run_worker(["etl"], {"later": later})
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    assert kinds(queue, job_id) == ["added", "active", "delay-changed", "active", "completed"]
    assert all("secret" not in entry.detail for entry in queue.history(job_id))


def test_the_first_entry_and_the_newest_are_kept(queue: Queue) -> None:
    job_id = queue.add("work", history=True)
    for number in range(MAX_LINES + 30):
        queue._run(ask(note(ETL, job_id, 1_700_000_000_000 + number, "delay-changed", f"{number} é")))
    history = queue.history(job_id)
    details = [entry.detail for entry in history]
    assert (len(history), details[0], details[1]) == (MAX_LINES + 1, "", "30 é")
    assert details[-1] == f"{MAX_LINES + 29} é"
    assert history.is_partial


def test_a_long_reason_is_cut_between_characters(queue: Queue, redis_client: Any) -> None:
    job_id = queue.add("work", history=True)
    queue._run(ask(note(ETL, job_id, 1_700_000_000_000, "failed", "x" * 199 + "é" * 300 + "\nmore")))
    (entry,) = (entry for entry in queue.history(job_id) if entry.kind == "failed")
    assert entry.detail == "x" * 199


@pytest.mark.parametrize("change", [
    partial(change_delay, delay=timedelta(seconds=1)), partial(change_priority, priority=3), promote,
], ids=["delay", "priority", "promote"])  # fmt: skip
def test_a_change_of_a_job_without_a_history_is_one_round_trip(
    queue: Queue, hand: Hand, change: Callable[..., Op[None]]
) -> None:
    plain, recorded = queue.add("work", delay=60), queue.add("work", delay=60, history=True)
    now_ms = int(time.time() * 1_000)
    trips = [len(list(hand.steps(change(ETL, job_id, now_ms=now_ms)))) for job_id in (plain, recorded)]
    assert trips == [1, 2]
    assert len(queue.history(recorded)) == 2


def test_a_job_without_a_record_shows_what_is_left(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    job_id = queue.add("work")
    run_worker(["etl"], {"work": lambda ctx: None})
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    assert redis_client.hget(f"{P}job:{job_id}", "gmo:history") is None
    assert kinds(queue, job_id) == ["added", "active", "completed"]
    assert queue.history(job_id).is_partial
    redis_client.delete(f"{P}events")
    assert kinds(queue, job_id) == ["added", "active", "completed"]
    with pytest.raises(JobNotFound):
        queue.history("missing")


def test_jobs_of_node_workers_are_visible(queue: Queue, redis_client: Any) -> None:
    plain, recorded = queue.add("work", attempts=2), queue.add("work", attempts=2, history=True)
    node = PlainNode(redis_client, "etl")
    for _ in range(2):
        job_id, entry = node.begin_next() or ("", "")
        node.end_as_failed(job_id, entry, "broken", attempts=2)
    for job_id in (plain, recorded):
        history = queue.history(job_id)
        assert ("retrying", "broken") in [(entry.kind, entry.detail) for entry in history]
        assert history.is_partial
    node.promote()
    job_id, entry = node.begin_next() or ("", "")
    node.end_as_failed(job_id, entry, "broken again", attempts=2)
    assert [(entry.kind, entry.detail) for entry in queue.history(job_id)][-1] == ("failed", "broken again")


def test_a_tracked_job_records_from_then_on(queue: Queue, hand: Hand) -> None:
    job_id = queue.add("work")
    queue.track(job_id)
    queue.track(job_id)
    assert take(hand) == 1
    queue.take_back(job_id)
    assert kinds(queue, job_id) == ["added", "tracked", "active", "taken-back"]
    assert queue.history(job_id).is_partial


def test_the_history_of_a_node_goes_on_when_it_runs_again(
    flows: FlowProducer, queue: Queue, run_worker: RunWorker
) -> None:
    spec = FlowSpec("one", [FlowNode("a", queue="etl", job="work", history=True)])
    run_worker(["etl"], {"work": lambda ctx: None})
    flow = flows.submit(spec, flow_id="f")
    flow.result(timeout=30)
    flow.rerun("a")
    flow.result(timeout=30)
    found = [entry.kind for entry in flow.node_history("a")]
    assert found == ["added", "active", "completed", "retried", "active", "completed"]


def test_what_is_stored_in_another_form_is_left_out(queue: Queue, redis_client: Any) -> None:
    job_id = queue.add("work", history=True)
    redis_client.hset(f"{P}job:{job_id}", "gmo:history", "x y\n\n1700000000000\n1700000000000 active w\nx")
    assert sorted(kinds(queue, job_id)) == ["active", "added"]


def test_only_the_options_of_the_job_ask_for_a_history(queue: Queue, hand: Hand, redis_client: Any) -> None:
    for opts, is_recorded in (
        ('{"history":true}', True),
        ('{"history": true}', True),
        ('{"history":false}', False),
        ('{"history":1}', False),
        ("broken", False),
    ):
        job_id = queue.add("work")
        redis_client.hset(f"{P}job:{job_id}", "opts", opts)
        assert take(hand) == 1
        assert redis_client.hexists(f"{P}job:{job_id}", "gmo:history") is is_recorded, opts


def test_the_commands_show_the_history(
    url: str, queue: Queue, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"work": lambda ctx: None})

    def typed(*words: str) -> str:
        done = CliRunner().invoke(app, [*words], env={"GLIDEMQ_URL": url, "COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.output

    job_id = typed("job", "add", "etl", "work", "--history").strip()
    eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, 30)
    shown = typed("job", "show", "etl", job_id)
    assert "active gmo-worker-" in shown
    assert "may be missing" not in shown
    found = json.loads(typed("job", "show", "etl", job_id, "--json"))["history"]
    assert [entry["kind"] for entry in found] == ["added", "active", "completed"]
    flow = flows.submit(FlowSpec("one", [FlowNode("a", queue="etl", job="work")]), flow_id="f")
    flow.result(timeout=30)
    assert "may be missing" in typed("flow", "node", "f", "a")
    assert json.loads(typed("flow", "node", "f", "a", "--json"))["history"][-1]["kind"] == "completed"
    queue.add_many([NewJob("work")])
