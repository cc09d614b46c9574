"""What a handler, a job or a queue does harms itself only: the worker goes on with everything else."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from glidemq_orchestrate import (
    Broadcast,
    BroadcastWorker,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    JobState,
    Queue,
    Worker,
)
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker import JobEvent, threads
from glidemq_orchestrate.worker import messenger as messages

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.job import JobId
    from glidemq_orchestrate.worker.handlers.context import Context
    from tests.conftest import Eventually, RunWorker

SECOND = timedelta(seconds=1)


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url) as made:
        yield made


class Hostile(dict[str, int]):
    """A result that raises while it is encoded."""

    def items(self) -> NoReturn:
        raise RuntimeError("no items today")

    def __iter__(self) -> NoReturn:
        raise RuntimeError("no keys today")


class Odd(BaseException):
    """What user code should not raise, and does."""

    def __str__(self) -> str:
        raise SystemExit(3)


def is_in(queue: Queue, job_id: JobId, state: JobState) -> bool:
    return queue.get_job(job_id).state is state


def repr_type(exc: BaseException) -> str:
    return type(exc).__name__


def raising(exc: BaseException) -> Callable[[Any], NoReturn]:
    def handler(ctx: Context) -> NoReturn:
        raise exc

    return handler


def raising_later(exc: BaseException) -> Callable[[Any], Any]:
    async def handler(ctx: Context) -> NoReturn:
        await asyncio.sleep(0)
        raise exc

    return handler


async def cancel_myself(ctx: Context) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancel_everything(ctx: Context) -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0)


async def cancelled_by_its_watchdog(ctx: Context) -> str:
    task = asyncio.current_task()
    assert task is not None

    async def watchdog() -> None:
        task.cancel()

    watching = asyncio.create_task(watchdog())
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        task.uncancel()
        await watching
    return "stopped by its watchdog"


async def leave_by_another_task(ctx: Context) -> None:
    async def leave() -> NoReturn:
        sys.exit(4)

    task = asyncio.create_task(leave())
    await asyncio.sleep(0)
    await task


async def stop_the_loop(ctx: Context) -> NoReturn:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    raise ValueError("the loop goes on")


MEAN: Mapping[str, Callable[[Any], Any]] = {
    "exit": raising(SystemExit(2)),
    "interrupt": raising(KeyboardInterrupt()),
    "odd": raising(Odd()),
    "generator": raising(GeneratorExit()),
    "iteration": lambda ctx: next(iter([])),
    "result": lambda ctx: Hostile(a=1),
    "async_exit": raising_later(SystemExit(2)),
    "async_interrupt": raising_later(KeyboardInterrupt()),
    "async_odd": raising_later(Odd()),
    "async_iteration": raising_later(StopAsyncIteration()),
    "async_cancelled": raising_later(asyncio.CancelledError()),
    "cancels_itself": cancel_myself,
    "stops_the_loop": stop_the_loop,
}


def ended_as(queue: Queue, job_id: str, state: JobState) -> bool:
    return queue.get_job(job_id).state is state


class TestHandlers:
    def test_whatever_a_handler_raises_fails_its_job_only(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        running = run_worker(["etl"], {**MEAN, "kind": lambda ctx: "fine"}, concurrency=1)
        for name in MEAN:
            mean, kind = queue.add(name), queue.add("kind")
            eventually(partial(ended_as, queue, kind, JobState.COMPLETED))
            eventually(partial(ended_as, queue, mean, JobState.FAILED))
            assert queue.get_job(mean).failed_reason, name
        assert running.error is None
        assert running.worker._slots.running == 0
        assert not running.worker._slots.held

    def test_a_stray_task_of_a_handler_that_exits_ends_no_worker(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        running = run_worker(["etl"], {"mean": leave_by_another_task, "kind": lambda ctx: "fine"})
        queue.add("mean")
        kind = queue.add("kind")
        eventually(lambda: queue.get_job(kind).state is JobState.COMPLETED)
        assert running.error is None

    def test_a_handler_that_cancels_every_task_of_the_loop_ends_no_worker(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        running = run_worker(["etl"], {"mean": cancel_everything, "kind": lambda ctx: "fine"})
        for _ in range(5):
            mean, kind = queue.add("mean"), queue.add("kind")
            eventually(partial(is_in, queue, mean, JobState.FAILED))
            eventually(partial(is_in, queue, kind, JobState.COMPLETED))
        assert running.error is None
        assert not running.worker._slots.held

    def test_a_task_of_a_handler_can_cancel_the_handler(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        run_worker(["etl"], {"mean": cancelled_by_its_watchdog})
        job = queue.add("mean")
        eventually(partial(is_in, queue, job, JobState.COMPLETED))
        assert queue.get_job(job).result == "stopped by its watchdog"

    @pytest.mark.parametrize(
        "exc", [SystemExit(2), KeyboardInterrupt(), Odd(), StopIteration()], ids=repr_type
    )
    def test_batches(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, exc: BaseException
    ) -> None:
        handlers = Handlers()

        @handlers.batch_handler("mean", size=2)
        def mean(contexts: list[Context]) -> NoReturn:
            raise exc

        handlers.handler("kind")(lambda ctx: "fine")
        jobs = [queue.add("mean") for _ in range(2)]
        run_worker(["etl"], handlers, concurrency=1)
        for job in jobs:
            eventually(partial(is_in, queue, job, JobState.FAILED))
        kind = queue.add("kind")
        eventually(lambda: queue.get_job(kind).state is JobState.COMPLETED)

    @pytest.mark.parametrize(
        "exc", [SystemExit(2), KeyboardInterrupt(), Odd(), StopIteration()], ids=repr_type
    )
    @pytest.mark.parametrize("is_async", [False, True])
    def test_broadcasts(
        self, url: str, eventually: Eventually, exc: BaseException, *, is_async: bool
    ) -> None:
        seen: list[str] = []

        def plain(ctx: Context) -> None:
            seen.append(ctx.name)
            if ctx.name == "mean":
                raise exc

        async def later(ctx: Context) -> None:
            plain(ctx)

        worker = BroadcastWorker(
            "news", later if is_async else plain, url, subscription="s", start_from="0-0", concurrency=1
        )
        with worker.running(), Broadcast("news", url) as news:
            news.publish("mean")
            news.publish("kind")
            eventually(lambda: seen == ["mean", "kind"])
            eventually(lambda: not worker._held)

    def test_signals_with_data_that_is_not_text_harm_their_job_only(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
    ) -> None:
        job = queue.add("work")
        for data in ('{"a":1}', "7"):
            redis_client.hset(f"glide:{{etl}}:job:{job}", "signals", f'[{{"name":"go","data":{data}}}]')
            running = run_worker(["etl"], {"work": lambda ctx: len(ctx.signals)})
            eventually(lambda: queue.get_job(job).state.is_terminal)
            assert running.worker._slots.running == 0

    def test_a_handler_that_overstays_costs_the_next_job_no_time(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        ended = threading.Event()
        options = JobOptions(timeout=timedelta(milliseconds=100))
        running = run_worker(["etl"], {"deaf": lambda ctx: ended.wait(60), "quick": lambda ctx: 1})
        deaf = [queue.add("deaf", options=options) for _ in range(60)]
        for job in deaf:
            eventually(partial(is_in, queue, job, JobState.FAILED), timeout=20)
        quick = queue.add("quick", options=JobOptions(timeout=SECOND))
        eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)
        assert running.worker._threads.overstayed == 60
        ended.set()
        eventually(lambda: running.worker._threads.overstayed == 0)

    def test_with_a_grace_no_attempt_begins_beside_the_one_that_timed_out(
        self, queue: Queue, run_worker: RunWorker
    ) -> None:
        handlers, running, most = Handlers(), list[int](), list[int]()

        @handlers.handler("slow", grace=20 * SECOND)
        def slow(ctx: Context) -> int:
            running.append(ctx.attempt)
            most.append(len(running))
            if ctx.attempt < 3:
                assert ctx.cancelled.wait(20)
                time.sleep(0.4)  # what it takes to end
            running.remove(ctx.attempt)
            return ctx.attempt

        worker = run_worker(["etl"], handlers).worker
        options = JobOptions(timeout=timedelta(milliseconds=100), attempts=3)
        assert queue.add_and_wait("slow", options=options) == 3
        assert most == [1, 1, 1]
        assert worker._threads.overstayed == 0

    def test_after_its_grace_the_next_attempt_begins(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        handlers, over = Handlers(), threading.Event()

        @handlers.handler("deaf", grace=timedelta(milliseconds=300))
        def deaf(ctx: Context) -> int:
            if ctx.attempt == 1:
                over.wait(20)
            return ctx.attempt

        worker = run_worker(["etl"], handlers).worker
        options = JobOptions(timeout=timedelta(milliseconds=100), attempts=2)
        assert queue.add_and_wait("deaf", options=options) == 2
        assert worker._threads.overstayed == 1
        over.set()
        eventually(lambda: worker._threads.overstayed == 0)

    def test_a_start_hook_with_an_argument_is_told_what_is_served(
        self, queue: Queue, url: str, run_worker: RunWorker
    ) -> None:
        handlers, told = Handlers(), list[Any]()
        handlers.on_start(lambda: told.append("nothing"))
        handlers.on_start(lambda text="a default": told.append(text))
        handlers.on_start(told.append)
        handlers.handler("work")(lambda ctx: 1)
        run_worker(["etl"], handlers)
        queue.add_and_wait("work")
        serving = told.pop()
        assert told == ["nothing", "a default"]
        assert serving.queues == ("etl",)
        with Queue(serving.queues[0], serving.settings) as own:
            assert own.counts(indexed_only=True)[JobState.COMPLETED] == 1

    @pytest.mark.parametrize("wrong", [{"grace": -SECOND}, {"grace": SECOND, "process": True}])
    def test_a_grace_that_cannot_be_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match="grace"):
            Handlers().handler("work", **wrong)(lambda ctx: None)

    def test_a_worker_does_not_wait_out_a_grace_when_it_stops(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        handlers, begun, over = Handlers(), threading.Event(), threading.Event()

        @handlers.handler("deaf", grace=timedelta(minutes=10))
        def deaf(ctx: Context) -> None:
            begun.set()
            over.wait(60)

        running = run_worker(["etl"], handlers, shutdown_timeout=timedelta(0))
        job_id = queue.add("deaf")
        assert begun.wait(20)
        started = time.monotonic()
        running.stop()
        assert time.monotonic() - started < 20
        assert queue.get_job(job_id).state is JobState.WAITING
        over.set()

    def test_too_many_that_overstay_are_waited_for(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(threads, "MAX_OVERSTAYED", 3)
        ended = threading.Event()
        options = JobOptions(timeout=timedelta(milliseconds=50))
        running = run_worker(["etl"], {"deaf": lambda ctx: ended.wait(60), "quick": lambda ctx: 1})
        for _ in range(3):
            queue.add("deaf", options=options)
        eventually(lambda: running.worker._threads.overstayed == 3)
        quick = queue.add("quick", options=JobOptions(timeout=timedelta(milliseconds=300)))
        time.sleep(0.5)
        assert not queue.get_job(quick).state.is_terminal
        ended.set()
        eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)

    def test_a_chatty_job_holds_up_no_neighbour(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        stop = threading.Event()

        def chatty(ctx: Context) -> None:
            while not stop.is_set():
                ctx.log("word " * 20)
                ctx.progress({"at": time.monotonic()})

        run_worker(["etl"], {"chatty": chatty, "quick": quick_and_reported})
        for _ in range(6):
            queue.add("chatty")
        eventually(lambda: queue.counts()[JobState.ACTIVE] == 6)
        try:
            began = time.monotonic()
            job = queue.add("quick")
            eventually(lambda: queue.get_job(job).state is JobState.COMPLETED, timeout=20)
            took = time.monotonic() - began
        finally:
            stop.set()
        assert took < 10
        assert queue.get_job(job).progress == "reported"
        assert queue.logs(job).lines == ["a line"]

    def test_unsent_messages_are_bounded(self) -> None:
        outbox = messages.Outbox()
        for _ in range(messages.MAX_UNSENT + 5):
            outbox.add(messages.Report(call=object()), may_wait=False)  # type: ignore[arg-type]
        assert outbox.close() == messages.MAX_UNSENT + 5


def quick_and_reported(ctx: Context) -> str:
    ctx.log("a line")
    ctx.progress("reported")
    return "done"


class TestHooks:
    def test_a_stop_hook_that_raises_skips_no_other(self, url: str) -> None:
        handlers, stopped = Handlers(), list[str]()
        handlers.on_stop(raising_hook(ValueError("no")))
        handlers.on_stop(raising_hook(SystemExit(2)))
        handlers.on_stop(raising_hook(StopIteration()))
        handlers.on_stop(lambda: stopped.append("last"))
        worker = Worker(url, queues=["etl"], handlers=handlers)
        with worker.running():
            pass
        assert stopped == ["last"]
        assert worker._own() is None

    def test_an_end_that_was_refused_is_not_reported_as_completed(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
    ) -> None:
        handlers, events = Handlers(), list[JobEvent]()
        handlers.on_job(events.append)

        @handlers.handler("work")
        def work(ctx: Context) -> int:
            redis_client.hset(f"glide:{{etl}}:job:{ctx.job_id}", "gmo:token", "another's")
            return 1

        run_worker(["etl"], handlers)
        queue.add("work")
        eventually(lambda: len(events) == 2)
        assert [event.kind for event in events] == ["active", "lost"]


def raising_hook(exc: BaseException) -> Callable[[], None]:
    def hook() -> None:
        raise exc

    return hook


class TestPlaces:
    def test_a_cancel_before_the_first_step_frees_the_place(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
    ) -> None:
        """The heartbeat that finds the lease lost falls into the start of a job held ahead."""
        began, go = threading.Event(), threading.Event()

        async def slow(ctx: Context) -> None:
            began.set()
            await asyncio.to_thread(go.wait, 20)

        running = run_worker(["etl"], {"slow": slow, "quick": lambda ctx: 1}, concurrency=1, prefetch=3)
        first, second = queue.add("slow"), queue.add("slow")
        assert began.wait(5)
        worker = running.worker
        eventually(lambda: len(worker._slots.held) == 2)

        def cancel_in_between() -> None:
            """Start the second job and cancel it before its task has had a step."""
            (attempt,) = worker._slots.waiting
            worker._slots.concurrency = 2
            worker._jobs.fill()  # type: ignore[union-attr]
            worker._jobs.cancel(attempt, revoked=False)  # type: ignore[union-attr]

        loop = worker._loop
        assert loop is not None
        loop.call_soon_threadsafe(cancel_in_between)
        eventually(lambda: len(worker._slots.held) == 1)
        eventually(lambda: worker._slots.running == 1)
        go.set()
        eventually(lambda: queue.get_job(first).state is JobState.COMPLETED)
        quick = queue.add("quick")
        eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)
        redis_client.hset(f"glide:{{etl}}:job:{second}", "revoked", "1")

    def test_what_waits_behind_an_emptied_batch_runs(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        handlers, go = Handlers(), threading.Event()

        @handlers.batch_handler("batch", size=2, wait=timedelta(milliseconds=10))
        def batch(contexts: list[Context]) -> list[int]:
            return [1 for _ in contexts]

        handlers.handler("slow")(lambda ctx: go.wait(20))
        handlers.handler("quick")(lambda ctx: 1)
        running = run_worker(["etl"], handlers, concurrency=1, prefetch=8, lease=SECOND)
        queue.add("slow")
        eventually(lambda: running.worker._slots.running == 1)
        batched = [queue.add("batch") for _ in range(2)]
        quick = queue.add("quick")
        eventually(lambda: len(running.worker._slots.held) == 4)
        for job in batched:
            queue.revoke(job)
        eventually(lambda: len(running.worker._slots.held) == 2)
        go.set()
        eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)


class TestWithoutHandler:
    def test_workers_with_different_handlers_leave_each_other_their_jobs(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        run_worker(["etl"], {"old": lambda ctx: "old"}, concurrency=1)
        run_worker(["etl"], {"new": lambda ctx: "new"}, concurrency=1)
        jobs = {queue.add(name): name for name in ["old", "new"] * 10}
        for job, name in jobs.items():
            eventually(partial(is_in, queue, job, JobState.COMPLETED), timeout=20)
            assert queue.get_job(job).result == name
            assert queue.get_job(job).attempts_made == 0

    def test_a_job_that_no_worker_can_run_fails_with_that_reason(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        run_worker(["etl"], {"old": lambda ctx: "old"})
        run_worker(["etl"], {"new": lambda ctx: "new"})
        job = queue.add("other")
        eventually(lambda: queue.get_job(job).state is JobState.FAILED)
        assert "HandlerNotFound" in (queue.get_job(job).failed_reason or "")

    def test_a_worker_of_few_kinds_leaves_the_others_to_workers_to_come(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        run_worker(["etl"], {"mine": lambda ctx: "mine"}, only_known=True)
        other, mine = queue.add("other"), queue.add("mine")
        eventually(partial(is_in, queue, mine, JobState.COMPLETED))
        time.sleep(1)  # it comes back several times meanwhile
        assert not queue.get_job(other).state.is_terminal
        run_worker(["etl"], {"other": lambda ctx: "other"})
        eventually(partial(is_in, queue, other, JobState.COMPLETED))
        assert (queue.get_job(other).result, queue.get_job(other).attempts_made) == ("other", 0)

    def test_a_node_that_may_wait_for_its_handler_waits(
        self, url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
    ) -> None:
        run_worker(["etl"], {"old": lambda ctx: "old"})
        with FlowProducer(url) as flows:
            nodes = [FlowNode("n", queue="etl", job="new", queue_timeout=timedelta(seconds=30))]
            flow = flows.submit(FlowSpec("f", nodes))
            eventually(
                lambda: redis_client.hget(f"glide:{{etl}}:job:{flow.node('n').job_id}", "gmo:unhandled")
            )
            run_worker(["etl"], {"new": lambda ctx: "new"})
            assert flow.result(timeout=timedelta(seconds=20)) == {"n": "new"}

    def test_its_queue_timeout_reports_that_it_has_none(
        self, url: str, queue: Queue, run_worker: RunWorker
    ) -> None:
        run_worker(["etl"], {"old": lambda ctx: "old"})
        with FlowProducer(url) as flows:
            flow = flows.submit(FlowSpec("f", [FlowNode("n", queue="etl", job="new", queue_timeout=SECOND)]))
            (failed,) = flow.wait(timeout=timedelta(seconds=20)).failed
        assert failed.reason.startswith(
            "queue timeout: no worker of queue etl began it within 1 s: HandlerNotFound"
        )
        assert "known: old" in failed.reason


class TestQueues:
    @pytest.mark.parametrize("key", ["stream", "events", "meta", "scheduled", "completed", "gmo:workers"])
    def test_a_broken_queue_harms_no_other(  # noqa: PLR0917  fixtures
        self,
        url: str,
        queue: Queue,
        run_worker: RunWorker,
        eventually: Eventually,
        redis_client: Any,
        key: str,
    ) -> None:
        running = run_worker(["broken", "etl"], {"work": lambda ctx: 1}, concurrency=2)
        with Queue("broken", url) as broken:
            assert broken.add_and_wait("work") == 1
            redis_client.delete(f"glide:{{broken}}:{key}")
            redis_client.set(f"glide:{{broken}}:{key}", "no such thing")
            for _ in range(30):
                assert queue.add_and_wait("work", timeout=timedelta(seconds=10)) == 1
            redis_client.delete(f"glide:{{broken}}:{key}")
            assert broken.add_and_wait("work", timeout=timedelta(seconds=20)) == 1
        assert running.error is None

    def test_a_queue_that_is_broken_at_the_start_harms_no_other(
        self, url: str, queue: Queue, run_worker: RunWorker, redis_client: Any
    ) -> None:
        redis_client.set("glide:{broken}:stream", "no such thing")
        running = run_worker(["broken", "etl"], {"work": lambda ctx: 1}, may_leave_active=True)
        assert queue.add_and_wait("work") == 1
        assert running.error is None
