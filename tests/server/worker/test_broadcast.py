"""Broadcasts: every subscription handles every message, and repeats only its own failures."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from glidemq_orchestrate import (
    Backoff,
    EmbeddedServer,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Queue,
    Skip,
)
from glidemq_orchestrate.clients.broadcast import AsyncBroadcast, Broadcast
from glidemq_orchestrate.errors import ConfigurationError, QueueNotServed
from glidemq_orchestrate.worker import threads
from glidemq_orchestrate.worker.services.broadcast_worker import BroadcastWorker
from tests.processes import spawned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Eventually
    from tests.server.conftest import Clients

STREAM = "glide:{news}:stream"
Start = "Callable[..., BroadcastWorker]"


@pytest.fixture
def start(url: str) -> Iterator[Callable[..., BroadcastWorker]]:
    running: list[tuple[BroadcastWorker, threading.Thread]] = []

    def begin(handler: Any, subscription: str, **options: Any) -> BroadcastWorker:
        worker = BroadcastWorker("news", handler, url, subscription=subscription, **options)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        running.append((worker, thread))
        assert worker.ready.wait(60)
        return worker

    yield begin
    for worker, _ in running:
        worker.stop()
    for _, thread in running:
        thread.join(60)
        assert not thread.is_alive()


def test_every_subscription_gets_what_it_wants(
    url: str, start: Any, eventually: Eventually, redis_client: Any
) -> None:
    all_of_it: list[Any] = []
    some: list[Any] = []
    start(lambda ctx: all_of_it.append((ctx.name, ctx.data)), "all")
    start(lambda ctx: some.append(ctx.name), "some", subjects=["order.*"])
    with Broadcast("news", url) as news:
        news.publish("order.paid", 1)
        redis_client.function_flush()
        news.publish("user.left", 2)
    eventually(lambda: len(all_of_it) == 2 and len(some) == 1)
    assert sorted(all_of_it) == [("order.paid", 1), ("user.left", 2)]
    eventually(lambda: all(redis_client.xpending(STREAM, g)["pending"] == 0 for g in ("all", "some")))
    assert (some, redis_client.xlen(STREAM)) == (["order.paid"], 2)


def handle(_ctx: Any) -> None: ...


def test_a_worker_of_a_subscription_registers_with_its_code(
    url: str, start: Any, eventually: Eventually, redis_client: Any
) -> None:
    worker = start(handle, "billing", concurrency=3)
    with Queue("news", url) as queue:
        (found,) = eventually(queue.workers)
        file = f"tests/server/worker/test_broadcast.py:{handle.__code__.co_firstlineno}"
        assert (found.id, found.subscription, found.handlers) == (worker.id, "billing", ())
        assert (found.pid, found.concurrency, found.broken) == (os.getpid(), 3, False)
        assert str(found.code["billing"]) == f"{__name__}:handle ({file})"
        with FlowProducer(url) as flows, pytest.raises(QueueNotServed):  # it runs no jobs
            flows.submit(FlowSpec("n", [FlowNode("a", queue="news")]), require_workers=True)
        assert queue.lost_workers() == []
        assert 0 < redis_client.pttl(f"glide:{{news}}:w:{worker.id}") <= 30_000
        worker.stop()
        eventually(lambda: queue.workers() == [])
        assert not redis_client.exists(f"glide:{{news}}:w:{worker.id}")


def test_prometheus_reads_what_a_subscription_has_handled(
    url: str, start: Any, eventually: Eventually
) -> None:
    def handle(ctx: Any) -> None:
        if ctx.data == "bad":
            raise ValueError("no")
        if ctx.data == "skipped":
            raise Skip("not needed")

    worker = start(handle, "billing", concurrency=3, metrics_port=0)
    with Broadcast("news", url) as news:
        for number, data in enumerate(("good", "bad", "skipped", "good")):
            news.publish(f"order.{number}", data)
    of = 'handler="billing"'

    def shown() -> str:
        return httpx.get(worker.metrics_url).text

    def has(name: str, count: int, labels: str = "") -> bool:
        return f'glidemq_worker_{name}{{{of}{labels},queue="news"}} {count}.0\n' in shown()

    eventually(lambda: has("jobs_ended_total", 2, ',outcome="completed"'), 20)
    eventually(lambda: has("jobs_ended_total", 1, ',outcome="failed"'), 20)
    eventually(lambda: has("jobs_ended_total", 1, ',outcome="skipped"'), 20)
    eventually(lambda: has("jobs_running", 0) and has("jobs_started_total", 4), 20)
    assert has("job_running_seconds_count", 3)
    assert has("job_waiting_seconds_count", 4)
    assert "glidemq_worker_places 3.0\n" in shown()
    eventually(lambda: "glidemq_worker_places_taken 0.0\n" in shown(), 20)
    worker.stop()
    eventually(lambda: worker.metrics_url is None, 20)


def test_only_the_subscription_that_failed_tries_again(  # fact 39
    url: str, start: Any, eventually: Eventually, redis_client: Any
) -> None:
    tries: list[int] = []
    others: list[str] = []

    def fail_once(ctx: Any) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("boom")

    start(fail_once, "s1")
    start(lambda ctx: others.append(ctx.name), "s2")
    with Broadcast("news", url) as news:
        backoff = Backoff("fixed", timedelta(milliseconds=200))
        job_id = news.publish("a", options=JobOptions(attempts=2, backoff=backoff))
    eventually(lambda: redis_client.zrange("glide:{news}:scheduled", 0, -1) == [f"{job_id}||s1"])
    eventually(lambda: tries == [1, 2])
    eventually(lambda: all(redis_client.xpending(STREAM, g)["pending"] == 0 for g in ("s1", "s2")))
    assert others == ["a"]
    eventually(lambda: redis_client.xlen(STREAM) == 1)  # that of the retry is gone


def test_what_a_dead_worker_held_is_handled(
    url: str, start: Any, eventually: Eventually, redis_client: Any
) -> None:
    seen: list[str] = []
    with Broadcast("news", url) as news:
        news.publish("a")
    redis_client.xgroup_create(STREAM, "s", "0")
    redis_client.xreadgroup("s", "dead", {STREAM: ">"})
    start(lambda ctx: seen.append(ctx.name), "s", lease=timedelta(seconds=1))
    eventually(lambda: seen == ["a"], timeout=20)


def test_history_is_read_when_asked_for(url: str, start: Any, eventually: Eventually) -> None:
    seen: list[str] = []
    with Broadcast("news", url, max_messages=2) as news:
        for subject in "abc":
            news.publish(subject)
    start(lambda ctx: seen.append(ctx.name), "s", start_from="0-0")
    eventually(lambda: sorted(seen) == ["b", "c"])


def test_both_facades_publish(twins: Clients, redis_client: Any) -> None:
    kind = Broadcast if twins.runner is None else AsyncBroadcast
    news: Any = twins.keep(kind("news", twins.url))
    assert twins.do(news.publish("a", {"x": 1})) == "1"
    assert redis_client.hget("glide:{news}:job:1", "data") == '{"x":1}'


def test_invalid_values_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="max_messages"):
        Broadcast("news", url, max_messages=0)
    with pytest.raises(ConfigurationError, match="subscription"):
        BroadcastWorker("news", print, url, subscription=" ")
    with pytest.raises(ConfigurationError, match="subjects"):
        BroadcastWorker("news", print, url, subscription="s", subjects="a")


SUBSCRIBER = """
import sys, time
from pathlib import Path
from glidemq_orchestrate import BroadcastWorker

def handle(ctx):
    Path(sys.argv[2], ctx.name).touch()
    time.sleep(0.5)
    Path(sys.argv[2], ctx.name + ".done").touch()

worker = BroadcastWorker("news", handle, sys.argv[1], subscription="s", concurrency=1)
worker.run()
"""


@pytest.mark.long
def test_a_terminated_process_ends_what_it_has_begun(
    url: str, tmp_path: Path, eventually: Eventually, redis_client: Any
) -> None:
    command = [sys.executable, "-c", SUBSCRIBER, url, str(tmp_path)]
    with Broadcast("news", url) as news, spawned(command) as process:
        eventually(lambda: redis_client.exists(STREAM) and redis_client.xinfo_groups(STREAM), timeout=60)
        news.publish("a")
        news.publish("b")
        eventually((tmp_path / "a").exists, timeout=60)
        process.terminate()
        assert process.wait(60) == 0
    assert (tmp_path / "a.done").exists()
    assert not (tmp_path / "b").exists(), "nothing is begun after the signal"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_what_does_not_end_is_left_to_others(url: str, start: Any, eventually: Eventually, kind: str) -> None:
    begun: list[str] = []
    seen: list[bool] = []
    release = threading.Event()

    def in_thread(ctx: Any) -> None:
        begun.append(ctx.name)
        seen.append(ctx.cancelled.wait(20))
        release.wait(20)

    async def on_the_loop(ctx: Any) -> None:
        begun.append(ctx.name)
        try:
            await asyncio.sleep(30)
        finally:
            seen.append(ctx.cancelled.is_set())

    short = {"shutdown_timeout": timedelta(milliseconds=300), "lease": timedelta(seconds=1)}
    first = start(in_thread if kind == "thread" else on_the_loop, "s", **short)
    with Broadcast("news", url) as news:
        news.publish("a")
    eventually(lambda: begun == ["a"])
    first.stop()
    eventually(lambda: seen == [True])
    others: list[str] = []
    start(lambda ctx: others.append(ctx.name), "s", lease=timedelta(seconds=1))
    eventually(lambda: others == ["a"], timeout=20)
    release.set()


def test_handlers_that_overstay_stop_the_fetching_and_nothing_else(
    start: Any, url: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(threads, "MAX_OVERSTAYED", 1)
    release, begun = threading.Event(), list[str]()

    def overstay(ctx: Any) -> None:
        begun.append(ctx.name)
        release.wait(30)

    worker = start(overstay, "s")
    with Broadcast("news", url) as news:
        news.publish("a", options=JobOptions(timeout=timedelta(milliseconds=100)))
        eventually(lambda: worker._threads.is_crowded and not worker._held)
        time.sleep(0.5)  # a fetch that was under way has ended; then several turns have no run to wait for
        news.publish("b")
        time.sleep(0.3)
        assert begun == ["a"]
        release.set()
        eventually(lambda: begun == ["a", "b"])
    assert "failed and is retried" not in caplog.text


def test_a_server_that_is_restarted_is_waited_for(tmp_path: Path, eventually: Eventually) -> None:
    seen: list[str] = []
    with EmbeddedServer(data_dir=tmp_path) as server:
        port = int(server.url.rsplit(":", 1)[1])
        worker = BroadcastWorker("news", lambda ctx: seen.append(ctx.name), server.url, subscription="s")
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        assert worker.ready.wait(20)
        with Broadcast("news", server.url) as news:
            news.publish("a")
        eventually(lambda: seen == ["a"])
    with EmbeddedServer(data_dir=tmp_path, port=port) as server, Broadcast("news", server.url) as news:
        news.publish("b")
        eventually(lambda: seen == ["a", "b"], timeout=20)
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_a_needless_message_is_done(url: str, start: Any, eventually: Eventually, redis_client: Any) -> None:
    def skip(_: Any) -> None:
        raise Skip

    start(skip, "s")
    with Broadcast("news", url) as news:
        news.publish("a")
    eventually(lambda: redis_client.xinfo_groups(STREAM)[0]["entries-read"] == 1)
    eventually(lambda: redis_client.xpending(STREAM, "s")["pending"] == 0)


CRASHING = """
import sys, time
from pathlib import Path
from datetime import timedelta
from glidemq_orchestrate import BroadcastWorker

def handle(ctx):
    Path(sys.argv[2], "begun-" + str(ctx.data)).touch()
    time.sleep(600)

lease = timedelta(seconds=1)
BroadcastWorker("news", handle, sys.argv[1], subscription="s", concurrency=20, lease=lease).run()
"""


@pytest.mark.long
def test_a_survivor_takes_over_as_many_as_it_runs(
    url: str, start: Any, tmp_path: Path, eventually: Eventually, redis_client: Any
) -> None:
    """It ran two at once, and most failed as stalled without being called."""
    with (
        Broadcast("news", url) as news,
        spawned([sys.executable, "-c", CRASHING, url, str(tmp_path)]) as process,
    ):
        eventually(lambda: redis_client.exists(STREAM) and redis_client.xinfo_groups(STREAM), timeout=60)
        ids = [news.publish("a", number) for number in range(20)]
        eventually(lambda: len(list(tmp_path.glob("begun-*"))) == 20, timeout=60)
        process.kill()
        process.wait(60)
        running, most, seen = [0], [0], list[int]()

        def handle(ctx: Any) -> None:
            running[0] += 1
            most[0] = max(most[0], running[0])
            time.sleep(0.15)
            seen.append(ctx.data)
            running[0] -= 1

        start(handle, "s", concurrency=1, lease=timedelta(seconds=1))
        eventually(lambda: len(seen) == 20, timeout=60)
        assert sorted(seen) == list(range(20))
        assert most == [1]
        eventually(lambda: [str(news.states(one)["s"].state) for one in ids] == ["completed"] * 20)
        assert [(one.name, one.waiting, one.active) for one in news.subscriptions()] == [("s", 0, 0)]


def test_a_run_that_was_taken_over_is_told_to_stop(
    url: str, start: Any, eventually: Eventually, redis_client: Any, caplog: Any
) -> None:
    told: list[bool] = []
    start(lambda ctx: told.append(ctx.cancelled.wait(20)), "s", lease=timedelta(seconds=1))
    with Broadcast("news", url) as news:
        news.publish("a")
    eventually(lambda: redis_client.xpending(STREAM, "s")["pending"] == 1)
    ((entry_id, _),) = redis_client.xrange(STREAM)
    redis_client.xclaim(STREAM, "s", "gmo-other", 0, [entry_id])
    eventually(lambda: told == [True])
    eventually(lambda: "came too late" in caplog.text)


def test_a_run_that_its_worker_begins_anew_stops_and_keeps_its_lease(
    url: str, start: Any, eventually: Eventually, redis_client: Any
) -> None:
    running: list[Any] = []
    told: list[int] = []
    go = threading.Event()

    def handle(ctx: Any) -> None:
        running.append(ctx)
        while not go.wait(0.02):
            if ctx.cancelled:
                told.append(running.index(ctx))
                return

    start(handle, "s", lease=timedelta(seconds=1))
    with Broadcast("news", url) as news:
        news.publish("a")
        eventually(lambda: len(running) == 1)
        ((entry_id, _),) = redis_client.xrange(STREAM)
        redis_client.xclaim(STREAM, "s", "gmo-gone", 0, [entry_id], idle=1_000_000)
        eventually(lambda: told == [0] and len(running) == 2)
        time.sleep(2.5)  # two and a half leases
        go.set()
        eventually(lambda: redis_client.xpending(STREAM, "s")["pending"] == 0)
    assert (told, len(running)) == ([0], 2)


def test_a_message_that_is_being_reported_was_not_taken_over(  # noqa: PLR0917  fixtures
    url: str,
    start: Any,
    eventually: Eventually,
    redis_client: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A heartbeat that meets an accepted outcome finds no lease."""
    report, reported = BroadcastWorker._report, threading.Event()

    async def slow(self: Any, attempt: Any, result: Any) -> None:
        await report(self, attempt, result)
        await asyncio.sleep(1)
        reported.set()

    monkeypatch.setattr(BroadcastWorker, "_report", slow)
    start(lambda ctx: None, "s", lease=timedelta(seconds=1))
    with Broadcast("news", url) as news:
        news.publish("a")
    assert reported.wait(20)
    assert "taken over" not in caplog.text


def test_the_retries_of_a_message_are_on_time(url: str, start: Any, eventually: Eventually) -> None:
    began: list[float] = []

    def fail(ctx: Any) -> None:
        began.append(time.monotonic())
        if ctx.attempt < 6:
            raise ValueError("again")

    start(fail, "s")
    with Broadcast("news", url) as news:
        backoff = Backoff("fixed", timedelta(milliseconds=20))
        news.publish("a", options=JobOptions(attempts=6, backoff=backoff))
        eventually(lambda: len(began) == 6)
    assert began[5] - began[0] < 2.4  # each waited for half a second or more
