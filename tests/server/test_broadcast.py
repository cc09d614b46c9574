"""Broadcasts: every subscription handles every message, and repeats only its own failures."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Backoff, JobOptions
from glidemq_orchestrate.broadcast import AsyncBroadcast, Broadcast
from glidemq_orchestrate.broadcast_worker import BroadcastWorker
from glidemq_orchestrate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        assert worker.ready.wait(10)
        return worker

    yield begin
    for worker, _ in running:
        worker.stop()
    for _, thread in running:
        thread.join(10)
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
    (_, fields) = redis_client.xrange(STREAM)[-1]
    assert (fields["retryGroup"], others) == ("s1", ["a"])


def test_what_a_dead_worker_held_is_handled(
    url: str, start: Any, eventually: Eventually, redis_client: Any
) -> None:
    seen: list[str] = []
    with Broadcast("news", url) as news:
        news.publish("a")
    redis_client.xgroup_create(STREAM, "s", "0")
    redis_client.xreadgroup("s", "dead", {STREAM: ">"})
    start(lambda ctx: seen.append(ctx.name), "s", lock_duration=timedelta(seconds=1))
    eventually(lambda: seen == ["a"], timeout=10)


def test_history_is_read_when_asked_for(url: str, start: Any, eventually: Eventually) -> None:
    seen: list[str] = []
    with Broadcast("news", url, max_messages=2) as news:
        for subject in "abc":
            news.publish(subject)
    start(lambda ctx: seen.append(ctx.name), "s", start_from="0-0")
    eventually(lambda: sorted(seen) == ["b", "c"])


def test_both_facades_publish(clients: Clients, redis_client: Any) -> None:
    kind = Broadcast if clients.runner is None else AsyncBroadcast
    news: Any = clients.keep(kind("news", clients.url))
    assert clients.do(news.publish("a", {"x": 1})) == "1"
    assert redis_client.hget("glide:{news}:job:1", "data") == '{"x":1}'


def test_what_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="max_messages"):
        Broadcast("news", url, max_messages=0)
    with pytest.raises(ConfigurationError, match="subscription"):
        BroadcastWorker("news", print, url, subscription=" ")
    with pytest.raises(ConfigurationError, match="subjects"):
        BroadcastWorker("news", print, url, subscription="s", subjects="a")
