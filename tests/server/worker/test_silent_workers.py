"""A worker that was lost, and the jobs that wait for its leases, are shown as that."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Broadcast, Context, FlowNode, FlowProducer, FlowSpec, JobState, Queue
from glidemq_orchestrate.attempts import exchange, upkeep
from glidemq_orchestrate.attempts import workers as worker_ops
from glidemq_orchestrate.cli.flow.view import flow_view
from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.queues.waits import SUSPECT
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker import silent_workers
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.services.supervisor import Supervisor

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand

ETL = QueueKeys("glide", "etl")
LOST = "gmo-worker-1-lost"


def shown(flow: Any) -> str:
    from rich.console import Console  # noqa: PLC0415  not everywhere

    console = Console(width=200)
    with console.capture() as capture:
        console.print(flow_view(flow.status(), flow.nodes(), now=flow.now(), waits=flow.waits()))
    return capture.get()


@pytest.mark.parametrize("kind", ["worker", "supervisor"])
def test_whoever_takes_the_jobs_back_says_so(  # noqa: PLR0917  fixtures
    kind: str,
    url: str,
    queue: Queue,
    hand: Hand,
    run_worker: RunWorker,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hand.run(worker_ops.open_queues([ETL]))
    job_id = queue.add("work")
    past = int(queue.now().timestamp() * 1000) - 60_000
    hand.run(ask(exchange.finish_and_fetch(ETL, LOST, exchange.Request((), 1, f"{LOST}/t"), past)))
    second = timedelta(seconds=1)
    said = f"worker {LOST} was lost, or sent no heartbeat within its lease: 1 of its jobs"
    with contextlib.ExitStack() as stack:
        if kind == "worker":
            run_worker(["etl"], {"work": lambda _: 1}, lease=second)
        else:
            stack.enter_context(Supervisor(url, queues=["etl"], lease=second).running())
        eventually(lambda: any(said in line and job_id in line for line in caplog.messages), 20)


@pytest.mark.long
def test_a_worker_that_waits_for_the_leases_of_another_says_so_once(  # noqa: PLR0917  fixtures
    queue: Queue,
    hand: Hand,
    run_worker: RunWorker,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silent_workers, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(silent_workers, "SILENT_MS", 1_000)
    monkeypatch.setattr(silent_workers, "AGAIN_SECONDS", 0.2)
    caplog.set_level(logging.INFO, "glidemq_orchestrate.worker")
    hand.run(worker_ops.open_queues([ETL]))
    queue.add_many([NewJob("work"), NewJob("work")])
    began = int(queue.now().timestamp() * 1000) - 10_000
    hand.run(ask(exchange.finish_and_fetch(ETL, LOST, exchange.Request((), 2, f"{LOST}/t"), began)))
    run_worker(["etl"], {"work": lambda _: 1}, lease=16)

    def lines() -> list[str]:
        return [line for line in caplog.messages if "no heartbeat for" in line]

    eventually(lines, 20)
    ends = datetime.fromtimestamp(began / 1000 + 16, UTC).astimezone()
    assert f"queue etl: worker {LOST} has sent no heartbeat for 1" in lines()[0]
    assert f"holds 2 jobs: other workers run them when its leases end, at {ends:%H:%M:%S}" in lines()[0]
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 2, 30)
    assert len(lines()) == 1


def test_a_worker_with_work_does_not_look_for_silent_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(silent_workers, "IDLE_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "glidemq_orchestrate.worker")
    slots = JobSlots(1)
    found = silent_workers.SilentWorkers("etl", slots)
    assert found.wanted_ms() == 0, "it has just started"
    time.sleep(0.06)
    assert found.wanted_ms() == silent_workers.SILENT_MS
    silent = [upkeep.SilentWorker(LOST, 1, 0, 30_000)]
    found.note(silent, 6_000)
    assert found.wanted_ms() == 0, "it has just looked"
    slots.taken += 1
    assert found.wanted_ms() == 0, "it has had a job since"
    found.note([], 8_000)
    time.sleep(0.06)
    assert found.wanted_ms() == silent_workers.SILENT_MS
    found.note(silent, 10_000)
    assert len(caplog.messages) == 1, "still the same silence"


def test_from_its_silence_to_the_next_run(queue: Queue, flows: FlowProducer, hand: Hand) -> None:
    hand.run(worker_ops.open_queues([ETL]))
    flow = flows.submit(FlowSpec("nightly", [FlowNode("a", queue="etl", job="work")]))
    now = int(queue.now().timestamp() * 1000)
    past = now - 20_000
    about = {"addr": "host", "pid": 1, "startedAt": past, "activeJobs": 1, "handlers": []}
    hand.run(worker_ops.announce([ETL], LOST, about, 30_000, past))
    hand.run(ask(exchange.finish_and_fetch(ETL, LOST, exchange.Request((), 1, f"{LOST}/t"), past)))
    node = flow.node("a")
    assert (node.state, node.worker, node.lost_attempts) == (JobState.ACTIVE, LOST, 0)
    silent = node.silent_for(queue.now())
    assert silent is not None
    assert timedelta(seconds=20) <= silent < timedelta(seconds=50)
    assert node.silent_for(queue.now() - timedelta(seconds=15)) is None
    assert re.search(r"its worker has been silent since \d\d:\d\d:\d\d [A-Z+-]\w+: ", shown(flow))
    assert "another worker takes it over when its lease ends" in shown(flow)
    assert [(one.id, one.jobs) for one in queue.lost_workers()] == [(LOST, 1)]
    (worker,) = queue.workers()
    assert worker.is_silent

    hand.run(ask(upkeep.reclaim_jobs(ETL, "other", lock_ms=0, max_stalled=3, now_ms=now)))
    node = flow.node("a")
    assert (node.state, node.lost_attempts, node.silent_for(queue.now())) == (JobState.WAITING, 1, None)
    assert "its worker was lost: it runs again without using up an attempt" in shown(flow)
    assert queue.lost_workers() == []
    assert "was lost while it ran attempt 1" in queue.logs(node.job_id).lines[0]


def test_a_node_that_is_held_back_after_a_loss_names_the_one_that_runs_first(
    flows: FlowProducer, redis_client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    running, release = list[str](), threading.Event()

    def holds(ctx: Context) -> None:
        running.append(str(ctx.node))
        assert release.wait(60)

    nodes = [FlowNode(name, queue="etl", job="holds") for name in ("a", "b")]
    flow = flows.submit(FlowSpec("nightly", nodes), require_workers=False)
    for node in flow.nodes():  # as it is after a worker was lost that ran both
        redis_client.hset(f"glide:{{etl}}:job:{node.job_id}", mapping={"gmo:suspect": 1, "gmo:lost": 1})
    run_worker(["etl"], {"holds": holds}, concurrency=4)
    eventually(lambda: running)
    # Its state may be read before it starts, and the reason of the other after that.
    text = eventually(lambda: text if {"first", "active"} <= {*(text := shown(flow)).split()} else "", 30)
    (first,) = running
    (other,) = {"a", "b"} - {first}
    rows = {name: next(line for line in text.splitlines() if f" {name} " in line) for name in "ab"}
    assert f"waiting  waits: {SUSPECT}; {first} runs first" in re.sub(" {3,}", "  ", rows[other])
    assert "active" in rows[first]
    assert "waits" not in rows[first]
    release.set()


def test_a_lost_worker_of_a_broadcast_is_shown(
    url: str, redis_client: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, lost = "glide:{news}:stream", "gmo-broadcast-lost"
    with Broadcast("news", url) as news, Queue("news", url) as queue:
        news.publish("order.paid", {"order": 7})
        redis_client.xgroup_create(stream, "billing", id="0")
        assert redis_client.xreadgroup("billing", lost, {stream: ">"})
        assert queue.lost_workers() == []
        monkeypatch.setattr(worker_ops, "LOST_MS", 50)
        eventually(lambda: [(one.id, one.jobs) for one in queue.lost_workers()] == [(lost, 1)], 10)
        redis_client.xack(stream, "billing", *[entry for entry, _ in redis_client.xrange(stream)])
        assert queue.lost_workers() == []
