"""Our workers and those of the real ChasquiMQ 1.3 serve one queue."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from glidemq_orchestrate import Handlers
from glidemq_orchestrate.chasquimq import ChasquiJob, ChasquiQueue
from tests.chasquimq.conftest import Peer, Serve, StartPeer
from tests.conftest import Eventually
from tests.processes import spawned
from tests.server.chasquimq import handlers as module

EAGER: dict[str, Any] = {"claim_min_idle_ms": 400, "read_block_ms": 100}


def work(ctx: Any) -> Any:
    time.sleep(ctx.data.get("sleep", 0))
    if ctx.attempt <= ctx.data.get("fails", 0):
        raise ValueError("boom")
    return ctx.data.get("returns")


def test_our_worker_runs_jobs_of_the_package(peer: Peer, serve: Serve, eventually: Eventually) -> None:
    serve(work)  # fact 21
    assert peer.add_and_wait(name="work", data={"returns": {"got": [1, "é"]}}, seconds=20) == {
        "got": [1, "é"]
    }
    backoff = ["fixed", 20, {"jitter_ms": 0}]
    peer.add(name="work", data={"fails": 1, "returns": 2}, job_id="a", attempts=2, backoff=backoff)
    peer.add(name="work", data={"fails": 9}, job_id="b", attempts=2, backoff=backoff, delay_ms=50)
    eventually(lambda: peer.result(job_id="a") == 2)
    eventually(lambda: [one["reason"] for one in peer.peek()] == ["retries_exhausted"])
    peer.watch()
    eventually(lambda: ["dlq", "b"] in [one[:2] for one in peer.get_seen()])
    found = [(kind, fields.get("attempt")) for kind, job_id, _, fields in peer.get_seen() if job_id == "b"]
    assert [one for one in found if one[0] != "waiting"] == [
        ("active", 1), ("failed", 1), ("retry-scheduled", 2), ("active", 2), ("failed", 2), ("dlq", 2),
    ]  # fmt: skip
    assert peer.replay(limit=1) == 1
    eventually(lambda: len(peer.peek()) == 1)


def test_our_worker_fires_schedules_of_the_package(peer: Peer, serve: Serve, eventually: Eventually) -> None:
    found: list[Any] = []

    def tick(ctx: Any) -> None:
        found.append(ctx.data)

    peer.upsert(name="tick", data={"p": 1}, every_ms=200, limit=2)
    serve(tick)
    eventually(lambda: peer.schedules() == [])
    eventually(lambda: found == [{"p": 1}, {"p": 1}])


def test_a_job_that_we_run_is_not_handed_out_again(
    images: ChasquiQueue, peer: Peer, serve: Serve, eventually: Eventually
) -> None:
    began = threading.Event()  # fact 23

    def slow(_: Any) -> str:
        began.set()
        time.sleep(2.5)
        return "ours"

    images.add("slow", {"returns": "theirs"}, job_id="a")
    serve(slow, lease=1)
    assert began.wait(20)
    peer.work(claim_min_idle_ms=800, read_block_ms=100, store_results=True)
    eventually(lambda: images.result("a"))
    assert (images.result("a"), peer.get_runs()) == ("ours", [])


def test_what_we_hand_back_is_taken_at_once(
    images: ChasquiQueue, peer: Peer, serve: Serve, eventually: Eventually
) -> None:
    began = threading.Event()

    async def slow(_: Any) -> None:
        began.set()
        await asyncio.sleep(60)

    images.add("slow", {"returns": "theirs"}, job_id="a", attempts=1)
    worker = serve(slow, shutdown_timeout=0.1)
    assert began.wait(20)
    peer.work(claim_min_idle_ms=30_000, read_block_ms=100, store_results=True)
    worker.stop()
    eventually(lambda: images.result("a") == "theirs")
    assert [attempt for *_, attempt in peer.get_runs()] == [0]


def test_each_side_takes_over_from_killed_workers_of_the_other(
    images: ChasquiQueue, start_peer: StartPeer, serve: Serve, url: str, eventually: Eventually
) -> None:
    images.add("work", {"kill": 1, "sleep": 0}, job_id="killer", attempts=1)  # fact 22
    theirs = start_peer()
    with suppress(BrokenPipeError, ValueError):
        theirs.work(**EAGER)
    assert theirs.process.wait(30) == -signal.SIGKILL
    with spawned([sys.executable, "-m", module.__name__, url], cwd=Path(__file__).parents[2]) as ours:
        assert ours.wait(60) == -signal.SIGKILL
    last = start_peer()
    last.work(**EAGER)
    eventually(lambda: [one.reason for one in images.dead_letters()] == ["retries_exhausted"])
    assert last.get_runs() == []


def test_every_job_ends_once_among_workers_of_both_kinds_that_are_killed(
    images: ChasquiQueue, start_peer: StartPeer, serve: Serve, url: str, eventually: Eventually
) -> None:
    ids = images.add_many(ChasquiJob("work", {"sleep": 0.05, "returns": 1}) for _ in range(200))
    with ExitStack() as stack:
        for _ in range(2):
            theirs = start_peer()
            theirs.work(**EAGER, concurrency=4, store_results=True)
            command = [sys.executable, "-m", module.__name__, url]
            ours = stack.enter_context(spawned(command, cwd=Path(__file__).parents[2]))
            eventually(lambda: images.counts().active >= 6)
            theirs.process.kill()
            ours.kill()
        registry = Handlers()
        registry.handler("work")(work)
        serve(handlers=registry)
        start_peer().work(**EAGER, concurrency=4, store_results=True)
        eventually(lambda: images.counts().waiting == images.counts().active == 0, timeout=60)
    assert None not in images.results(ids)
    assert images.counts().dead == 0
    completed = [one.job_id for one in images.events("0-0", idle_timeout=0.2) if one.kind == "completed"]
    assert set(completed) == set(ids)
