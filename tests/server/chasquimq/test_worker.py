"""Our handlers run the jobs of a queue of ChasquiMQ, by its rules."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from glidemq_orchestrate import Handlers, Middleware, RetryLater, Skip, Unrecoverable
from glidemq_orchestrate.chasquimq import ChasquiBackoff, ChasquiJob, ChasquiQueue, ChasquiWorker
from glidemq_orchestrate.errors import ConfigurationError, ServerBusy
from tests.conftest import Eventually
from tests.processes import spawned
from tests.server.chasquimq import handlers as module
from tests.server.chasquimq.conftest import Raw, Serve

NOW = 1_700_000_000_000
QUICK = ChasquiBackoff("fixed", 0.02, jitter=0)


def kinds(images: ChasquiQueue, job_id: str) -> list[tuple[str, int | None]]:
    events = images.events("0-0", idle_timeout=0.1)
    return [(one.kind, one.attempt) for one in events if one.job_id == job_id and one.kind != "waiting"]


def is_empty(images: ChasquiQueue) -> bool:
    counts = images.counts()
    return counts.waiting == counts.active == counts.delayed == 0


def test_a_job_runs_and_its_result_is_kept(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    found: list[Any] = []

    def resize(ctx: Any) -> Any:
        found.append((ctx.job_id, ctx.data, ctx.attempt, ctx.queue, ctx.inputs, bool(ctx.flow)))
        ctx.check_owner()
        return {"got": 1}

    async def plain(ctx: Any) -> None:
        await ctx.check_owner_async()

    images.add("resize", {"raw": b"\x00\xff"}, job_id="a")
    images.add("plain", job_id="b")
    serve(resize, plain, result_ttl=1.2)
    eventually(lambda: images.result("a") == {"got": 1})
    eventually(lambda: is_empty(images))
    assert raw.client.get(raw.key("result:a")) == bytes.fromhex("81a3676f7401")
    assert 0 < raw.client.ttl(raw.key("result:a")) <= 2
    assert raw.client.exists(raw.key("result:b")) == 0
    assert found == [("a", {"raw": b"\x00\xff"}, 1, "images", {}, False)]
    assert kinds(images, "a") == [("active", 1), ("completed", 1)]
    assert len(raw.stream()) == 0


def test_results_can_be_left_out(images: ChasquiQueue, serve: Serve, eventually: Eventually) -> None:
    registry = Handlers()
    registry.handler("x")(lambda _: 1)
    images.add("x", job_id="a")
    serve(handlers=registry, result_ttl=None)
    eventually(lambda: kinds(images, "a")[-1:] == [("completed", 1)])
    assert images.result("a") is None


def test_failures_are_repeated_and_end_as_dead_letters(
    images: ChasquiQueue, serve: Serve, eventually: Eventually
) -> None:
    def fails(ctx: Any) -> Any:
        if ctx.attempt <= ctx.data:
            raise ValueError("boom")
        return ctx.attempt

    def never(_: Any) -> None:
        raise Unrecoverable("no")

    images.add("fails", 1, job_id="once", attempts=2, backoff=QUICK)
    images.add("fails", 9, job_id="always", attempts=2, backoff=QUICK)
    images.add("fails", 9, job_id="by default", backoff=QUICK)
    images.add("never", job_id="never", attempts=9)
    images.add("unknown", job_id="unknown", attempts=2, backoff=QUICK)
    serve(fails, never, attempts=1)
    eventually(lambda: images.counts().dead == 4 and images.result("once") == 2)
    eventually(lambda: is_empty(images))
    assert kinds(images, "always") == [
        ("active", 1), ("failed", 1), ("retry-scheduled", 2), ("active", 2), ("failed", 2), ("dlq", 2),
    ]  # fmt: skip
    letters = {one.job_id: (one.reason, one.attempts_made) for one in images.dead_letters()}
    assert letters == {
        "always": ("retries_exhausted", 1),
        "by default": ("retries_exhausted", 0),
        "never": ("unrecoverable", 0),
        "unknown": ("retries_exhausted", 1),
    }
    reasons = [one.reason for one in images.events("0-0", idle_timeout=0.1) if one.kind == "failed"]
    assert any(reason and "HandlerNotFound" in reason for reason in reasons)


def test_signals_of_handlers_have_their_meaning(
    images: ChasquiQueue, serve: Serve, eventually: Eventually
) -> None:
    runs: list[Any] = []

    def later(ctx: Any) -> str:
        runs.append(ctx.attempt)
        if len(runs) < 3:
            raise RetryLater(0.02, counts=False)
        return "done"

    def skipped(_: Any) -> None:
        raise Skip("not needed")

    images.add("later", job_id="a", attempts=1)
    images.add("skipped", job_id="b")
    serve(later, skipped)
    eventually(lambda: images.result("a") == "done")
    eventually(lambda: kinds(images, "b") == [("active", 1), ("completed", 1)])
    assert runs == [1, 1, 1]


def test_bad_entries_become_dead_letters_and_others_run(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    source = raw.add({"n": "lost"})  # facts 6 to 8
    raw.add({"d": b"x" * 1_048_577, "n": "large"})
    raw.add({"d": b"\xc1", "n": "x"})
    raw.add({"d": msgspec.msgpack.encode(["a", b"\xc1", NOW, 0]), "n": "work"})
    raw.add({"d": msgspec.msgpack.encode(["b", {"inline": 1}, NOW, 0]), "n": "work"})
    raw.add({"d": msgspec.msgpack.encode({"id": "c", "payload": [1], "created_at_ms": NOW}), "n": b"\xff"})
    found: list[Any] = []

    def work(ctx: Any) -> None:
        found.append((ctx.job_id, ctx.data))

    serve(work)
    eventually(lambda: images.counts().dead == 5)
    assert [(one.reason, one.name) for one in images.dead_letters()] == [
        ("malformed", ""), ("oversize_payload", "large"), ("decode_failed", ""), ("unrecoverable", "work"),
        ("unrecoverable", "\ufffd"),
    ]  # fmt: skip
    assert images.dead_letters()[0].source_id == source
    eventually(lambda: found == [("b", {"inline": 1})])
    eventually(lambda: is_empty(images))


def test_a_job_without_a_name_has_a_handler_if_one_is_named(
    images: ChasquiQueue, serve: Serve, eventually: Eventually
) -> None:
    def anything(ctx: Any) -> Any:
        return ctx.data

    images.add("", 5, job_id="a")
    serve(anything, unnamed="anything")
    eventually(lambda: images.result("a") == 5)


def test_delayed_jobs_and_schedules_run_in_time(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    found: list[Any] = []

    def tick(ctx: Any) -> None:
        found.append((ctx.name, ctx.data))

    def later(ctx: Any) -> None:
        found.append((ctx.name, ctx.data))

    images.add("later", 1, job_id="a", delay=0.2)
    raw.client.zadd(raw.key("delayed"), {b"\xff\xff": 1})  # cannot be a job
    key = images.upsert_schedule("tick", {"p": 1}, every=0.2, limit=2)
    raw.client.zadd(raw.key("repeat"), {"lost": 1})
    serve(tick, later)
    eventually(lambda: len(found) == 3)
    assert sorted(found) == [("later", 1), ("tick", {"p": 1}), ("tick", {"p": 1})]
    eventually(lambda: images.get_schedules() == [])  # fact 24
    assert raw.client.exists(raw.key(f"repeat:spec:{key}")) == 0
    assert (raw.client.exists(raw.key("dlid:a")), raw.client.exists(raw.key("didx:a"))) == (1, 0)  # fact 14
    assert [(one.reason, one.payload) for one in images.dead_letters()] == [("malformed", b"\xff\xff")]


def test_another_holder_of_the_locks_is_respected(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:  # fact 27
    for name in ("promoter", "scheduler"):
        raw.client.set(raw.key(f"{name}:lock"), "other", px=5_000)
    images.add("x", job_id="a", delay=0.01)
    worker = serve(attempts=1)
    time.sleep(0.5)
    assert images.counts().delayed == 1
    eventually(lambda: images.counts().dead == 1)
    eventually(lambda: raw.client.get(raw.key("promoter:lock")) == worker.id.encode())
    raw.client.set(raw.key("scheduler:lock"), "other")
    worker.stop()
    eventually(lambda: raw.client.exists(raw.key("promoter:lock")) == 0)
    assert raw.client.get(raw.key("scheduler:lock")) == b"other"


def test_a_long_job_is_renewed_and_handed_out_once(
    images: ChasquiQueue, serve: Serve, eventually: Eventually
) -> None:
    began: list[str] = []

    def slow(ctx: Any) -> str:
        began.append(ctx.job_id)
        time.sleep(2.5)
        return "done"

    images.add("slow", job_id="a")
    serve(slow)
    serve(slow)
    eventually(lambda: images.result("a") == "done")
    assert began == ["a"]
    assert kinds(images, "a") == [("active", 1), ("completed", 1)]


@pytest.mark.long
def test_a_handler_that_blocks_the_loop_keeps_its_jobs(
    images: ChasquiQueue, serve: Serve, eventually: Eventually
) -> None:
    began: list[str] = []

    async def blocks(ctx: Any) -> str:
        began.append(ctx.job_id)
        time.sleep(3)  # noqa: ASYNC251  the mistake
        return "done"

    serve(blocks, concurrency=1)
    images.add("blocks", job_id="a")
    eventually(lambda: began == ["a"])
    serve(blocks)
    eventually(lambda: images.result("a") == "done")
    assert began == ["a"]


def test_a_run_that_lost_its_job_is_told_and_its_result_refused(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[bool] = []

    def slow(ctx: Any) -> str:
        ctx.cancelled.wait(20)
        told.append(ctx.cancelled.is_lost)
        return "late"

    images.add("slow", job_id="a")
    serve(slow)
    eventually(lambda: images.counts().active == 1)
    ((entry_id, _),) = raw.client.xrange(raw.key("stream"))
    raw.client.xclaim(raw.key("stream"), "default", "other", 0, [entry_id])
    with caplog.at_level(logging.WARNING):
        eventually(lambda: told == [True])
        eventually(lambda: "outcome not accepted" in caplog.text)
    assert images.result("a") is None
    assert images.counts().active == 1


def test_a_stop_hands_back_what_runs_and_leaves_the_group(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    began = threading.Event()

    async def slow(_: Any) -> None:
        began.set()
        await asyncio.sleep(60)

    images.add("slow", job_id="a", attempts=1)
    first = serve(slow, shutdown_timeout=0.1, lease=30)
    assert began.wait(20)
    first.stop()
    eventually(lambda: raw.client.xpending(raw.key("stream"), "default")["pending"] == 1)

    def quick(_: Any) -> str:
        return "done"

    registry = Handlers()
    registry.handler("slow")(quick)
    serve(handlers=registry, lease=30)  # at once, though its lease is long
    eventually(lambda: images.result("a") == "done")
    eventually(lambda: is_empty(images))


def test_an_idle_worker_leaves_nothing_behind(raw: Raw, serve: Serve, eventually: Eventually) -> None:
    worker = serve()
    eventually(lambda: len(raw.client.xinfo_consumers(raw.key("stream"), "default")) == 1)
    worker.stop()
    eventually(lambda: raw.client.xinfo_consumers(raw.key("stream"), "default") == [])
    assert raw.keys() == {"stream"}


def test_middleware_hooks_and_processes_are_those_of_other_workers(
    images: ChasquiQueue, serve: Serve, eventually: Eventually
) -> None:
    seen: list[str] = []

    class Around(Middleware):
        async def around(self, execution: Any, proceed: Any) -> Any:
            seen.append(execution.contexts[0].name)
            return await proceed()

    registry = Handlers()
    registry.include(module.handlers)
    registry.on_job(lambda event: seen.append(event.kind))

    @registry.handler("limited", timeout=0.1)
    async def limited(_: Any) -> None:
        await asyncio.sleep(60)

    images.add("apart", {"n": 1}, job_id="a")
    images.add("limited", job_id="b", attempts=1)
    serve(handlers=registry, middleware=[Around()])
    eventually(lambda: images.result("a"))
    assert images.result("a")["data"] == {"n": 1}
    assert images.result("a")["pid"] != os.getpid()
    eventually(lambda: images.counts().dead == 1)
    eventually(lambda: set(seen) >= {"apart", "limited", "active", "completed", "failed"})


def test_a_deleted_queue_is_served_again(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    def x(ctx: Any) -> Any:
        return ctx.data

    serve(x)
    eventually(lambda: raw.client.exists(raw.key("stream")))
    raw.client.delete(raw.key("stream"))
    images.add("x", 1, job_id="a")
    eventually(lambda: images.result("a") == 1)


@pytest.mark.long
def test_a_job_of_a_silent_worker_does_not_wait_for_an_empty_queue(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    order: list[str] = []

    async def x(ctx: Any) -> None:
        order.append(ctx.job_id)
        await asyncio.sleep(0.01)

    images.add("x", job_id="left")
    raw.client.xgroup_create(raw.key("stream"), "default", 0)
    raw.client.xreadgroup("default", "silent", {raw.key("stream"): ">"})
    images.add_many([ChasquiJob("x")] * 400)
    serve(x, concurrency=1)
    eventually(lambda: len(order) == 401)
    assert order.index("left") < 300


@pytest.mark.long
def test_killed_workers_cost_one_delivery_each(
    images: ChasquiQueue, url: str, serve: Serve, eventually: Eventually
) -> None:
    ids = [images.add("work", {"sleep": 0.05}) for _ in range(20)]
    images.add("work", {"kill": 1}, job_id="killer", attempts=1)
    command = [sys.executable, "-m", module.__name__, url]
    with ExitStack() as stack:
        root = Path(__file__).parents[3]
        for _ in range(2):  # attempts=1: run, and run once again
            process = stack.enter_context(spawned(command, cwd=root))
            assert process.wait(60) == -signal.SIGKILL
        serve(handlers=module.handlers)
        eventually(lambda: images.counts().dead == 1, timeout=60)
        eventually(lambda: is_empty(images), timeout=60)
    assert [(one.job_id, one.reason) for one in images.dead_letters()] == [("killer", "retries_exhausted")]
    assert None not in images.results(ids)
    for job_id in ids:
        assert kinds(images, job_id).count(("completed", 1)) == 1


@pytest.mark.long
def test_jobs_end_after_the_scripts_were_forgotten(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    def x(ctx: Any) -> Any:
        return ctx.data

    serve(x)
    for count in range(1, 4):
        raw.client.script_flush()
        images.add("x", count)
        eventually(lambda: images.counts().active + images.counts().waiting == 0)
    completed = [one for one in images.events("0-0", idle_timeout=0.1) if one.kind == "completed"]
    assert len(completed) == 3


def test_an_end_that_cannot_be_written_stops_no_other(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    barrier = threading.Barrier(2)

    def x(ctx: Any) -> Any:
        barrier.wait(20)
        if ctx.data == "fails":
            raise ValueError("boom")
        return ctx.data

    raw.client.set(raw.key("delayed"), "no sorted set")
    images.add_many([ChasquiJob("x", data, data, backoff=QUICK) for data in ("fails", "ends")])
    serve(x, lease=30, run_delayed=False)
    eventually(lambda: images.result("ends") == "ends")
    eventually(lambda: "its outcome was not accepted" in caplog.text)
    assert len(raw.stream()) == 1


def test_jobs_end_while_the_memory_is_full(
    images: ChasquiQueue, raw: Raw, serve: Serve, eventually: Eventually
) -> None:
    def x(ctx: Any) -> Any:
        if ctx.data == "fails" and ctx.attempt == 1:
            raise ValueError
        return ctx.data

    images.add("x", "ends", job_id="a")
    images.add("x", "fails", job_id="b", backoff=QUICK)
    raw.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerBusy):
            images.add("x")
        with pytest.raises(ServerBusy):
            images.add("x", job_id="c", delay=5)
        serve(x)
        eventually(lambda: images.results(["a", "b"]) == ["ends", "fails"])
    finally:
        raw.client.config_set("maxmemory", 0)


BAD: dict[str, dict[str, Any]] = {
    "no room": {"concurrency": 0},
    "no attempt": {"attempts": 0},
    "a short lease": {"lease": 0.5},
    "no time for results": {"result_ttl": 0},
    "a group without a name": {"group": ""},
    "handlers of another kind": {"handlers": [1]},
    "another queue": {"queue": "a{b}"},
}


def test_values_that_cannot_be_used_are_refused(subtests: pytest.Subtests) -> None:
    for what, options in BAD.items():
        with subtests.test(what=what), pytest.raises(ConfigurationError):
            ChasquiWorker(**{"queue": "images", **options})
