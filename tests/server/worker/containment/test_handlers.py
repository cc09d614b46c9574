"""Whatever a handler does harms its own job only."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from glidemq_orchestrate import Broadcast, BroadcastWorker, Handlers, JobState, Queue, Worker
from glidemq_orchestrate.worker import JobEvent
from glidemq_orchestrate.worker import messenger as messages
from glidemq_orchestrate.worker.services import supervisor
from tests.server.worker.containment.states import is_in

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.handlers.context import Context
    from tests.conftest import Eventually, RunWorker


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


def test_whatever_a_handler_raises_fails_its_job_only(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
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
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    running = run_worker(["etl"], {"mean": leave_by_another_task, "kind": lambda ctx: "fine"})
    queue.add("mean")
    kind = queue.add("kind")
    eventually(lambda: queue.get_job(kind).state is JobState.COMPLETED)
    assert running.error is None


def test_a_handler_that_cancels_every_task_of_the_loop_ends_no_worker(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    running = run_worker(["etl"], {"mean": cancel_everything, "kind": lambda ctx: "fine"})
    for _ in range(5):
        mean, kind = queue.add("mean"), queue.add("kind")
        eventually(partial(is_in, queue, mean, JobState.FAILED))
        eventually(partial(is_in, queue, kind, JobState.COMPLETED))
    assert running.error is None
    assert not running.worker._slots.held


def test_a_task_of_a_handler_can_cancel_the_handler(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"mean": cancelled_by_its_watchdog})
    job = queue.add("mean")
    eventually(partial(is_in, queue, job, JobState.COMPLETED))
    assert queue.get_job(job).result == "stopped by its watchdog"


@pytest.mark.parametrize("exc", [SystemExit(2), KeyboardInterrupt(), Odd(), StopIteration()], ids=repr_type)
def test_batches(queue: Queue, run_worker: RunWorker, eventually: Eventually, exc: BaseException) -> None:
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


@pytest.mark.parametrize("exc", [SystemExit(2), KeyboardInterrupt(), Odd(), StopIteration()], ids=repr_type)
@pytest.mark.parametrize("is_async", [False, True])
def test_broadcasts(url: str, eventually: Eventually, exc: BaseException, *, is_async: bool) -> None:
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
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    job = queue.add("work")
    for data in ('{"a":1}', "7"):
        redis_client.hset(f"glide:{{etl}}:job:{job}", "signals", f'[{{"name":"go","data":{data}}}]')
        running = run_worker(["etl"], {"work": lambda ctx: len(ctx.signals)})
        eventually(lambda: queue.get_job(job).state.is_terminal)
        assert running.worker._slots.running == 0


def test_a_start_hook_with_an_argument_is_told_what_is_served(
    queue: Queue, url: str, run_worker: RunWorker
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


def test_a_worker_with_a_slow_start_hook_is_registered_when_it_serves(
    queue: Queue, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "REGISTERED_MS", 2_000)
    handlers, registered = Handlers(), list[Any]()
    handlers.handler("work")(lambda ctx: 1)

    @handlers.on_start
    def slow() -> None:
        registered.extend(queue.workers())
        time.sleep(2.5)

    run_worker(["etl"], handlers)
    assert [one.handlers for one in queue.workers()] == [("work",)]
    assert registered == []


def test_a_chatty_job_holds_up_no_neighbour(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
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


def test_unsent_messages_are_bounded() -> None:
    outbox = messages.Outbox()
    for _ in range(messages.MAX_UNSENT + 5):
        outbox.add(messages.Report(call=object()), may_wait=False)  # type: ignore[arg-type]
    assert outbox.close() == messages.MAX_UNSENT + 5


def quick_and_reported(ctx: Context) -> str:
    ctx.log("a line")
    ctx.progress("reported")
    return "done"


def test_a_stop_hook_that_raises_skips_no_other(url: str) -> None:
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
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
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
