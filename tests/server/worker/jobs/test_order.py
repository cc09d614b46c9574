"""In which order a worker takes its jobs, and which limits hold it back."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, RateLimit, RetryLater
from glidemq_orchestrate.worker import listener
from tests.server.worker.jobs.conftest import P, add, state

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker


def seen_by(seen: list[Any]) -> Any:
    return lambda ctx: seen.append(ctx.data)


def test_priorities_go_before_the_newest_and_those_before_the_others(
    client: Any, run_worker: RunWorker, eventually: Eventually
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
    client: Any, run_worker: RunWorker, eventually: Eventually
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


def test_a_paused_queue_gives_out_nothing_until_it_is_resumed(
    client: Any, run_worker: RunWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
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
    client: Any, run_worker: RunWorker, eventually: Eventually
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
    client: Any, run_worker: RunWorker, eventually: Eventually, whose: str
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
    client: Any, run_worker: RunWorker, eventually: Eventually
) -> None:
    bad, good = add(client), add(client)
    client.delete(f"{P}job:{bad}")
    client.set(f"{P}job:{bad}", "not a hash")
    run_worker(["etl"], {"work": lambda ctx: 1})
    eventually(lambda: state(client, good) == "completed")
