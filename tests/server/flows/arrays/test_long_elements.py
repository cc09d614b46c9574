"""One element of a slice takes long: those before it are reported, those after it run elsewhere."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode, Context, FlowProducer, FlowSpec, FlowState, Handlers
from glidemq_orchestrate.testing.plugin import RunningWorker
from glidemq_orchestrate.worker import JobEvent
from tests.processes import spawned
from tests.server.cutting import cutting

if TYPE_CHECKING:
    from pathlib import Path

    from glidemq_orchestrate import Flow
    from tests.conftest import Eventually, RunWorker

SIZE = 20


class Elements:
    """Handlers of which one hangs until it is released.

    ``began`` and ``events`` count by element, not those of the array by which the worker learns that they
    are short.
    """

    def __init__(self, hanging: int, *, is_async: bool = False) -> None:
        self.hanging, self.is_async = hanging, is_async
        self.go, self.hangs, self.was_cancelled = threading.Event(), threading.Event(), threading.Event()
        self.began, self.events = Counter[int](), Counter[tuple[str, int]]()
        self.adds: dict[int, list[Any]] = {}

    def _begin(self, ctx: Context) -> bool:
        if ctx.node == "learn":
            return False
        assert ctx.index is not None
        self.began[ctx.index] += 1
        if items := self.adds.get(ctx.index):
            ctx.flow.append(items)
        return ctx.index == self.hanging and not self.go.is_set()

    def plain(self, ctx: Context) -> str:
        if self._begin(ctx):
            self.hangs.set()
            while not self.go.wait(0.02):
                if ctx.cancelled.is_set():
                    self.was_cancelled.set()
                    break
        return f"result-{ctx.index}"

    async def awaiting(self, ctx: Context) -> str:
        if self._begin(ctx):
            self.hangs.set()
            try:
                while not self.go.is_set():  # noqa: ASYNC110  set in the thread of the test
                    await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise
        return f"result-{ctx.index}"

    @property
    def handlers(self) -> Handlers:
        handlers = Handlers()
        handlers.handler("work")(self.awaiting if self.is_async else self.plain)
        handlers.on_job(self._note)
        return handlers

    def _note(self, event: JobEvent) -> None:
        if event.node == "a" and event.index is not None:
            self.events[event.kind, event.index] += 1


def flow_of(flows: FlowProducer, name: str, over: Any, flow_id: str) -> Flow:
    return flows.submit(FlowSpec("f", [ArrayNode(name, over=over, job="work")], queue="etl"), flow_id=flow_id)


def learned(
    flows: FlowProducer, run_worker: RunWorker, work: Elements, *where: str, **more: Any
) -> RunningWorker:
    """A worker with one place that leases many elements at once."""
    running = run_worker(["etl"], work.handlers, *where, concurrency=1, **more)
    assert flow_of(flows, "learn", range(400), "learn").wait(timeout=60).state is FlowState.COMPLETED
    return running


def hanging(flows: FlowProducer, work: Elements, eventually: Eventually, over: Any = range(SIZE)) -> Flow:
    """An array of which one element hangs, and those before it are counted."""
    flow = flow_of(flows, "a", over, "x")
    assert work.hangs.wait(30)
    eventually(lambda: flow.array("a").counts().completed == work.hanging, 30)
    return flow


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("at", [0, 5, SIZE - 1])
def test_a_long_element_holds_no_other_up(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, at: int, *, is_async: bool
) -> None:
    work = Elements(at, is_async=is_async)
    learned(flows, run_worker, work)
    flow = hanging(flows, work, eventually)
    assert flow.array("a").counts().running == 1
    run_worker(["etl"], work.handlers, concurrency=1)
    eventually(lambda: flow.array("a").counts().completed == SIZE - 1, 30)
    assert flow.array("a").counts().running == 1
    assert flow.node("a").progress["completed"] == SIZE - 1
    work.go.set()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert work.began == Counter(range(SIZE)), "each runs once"
    assert flow.array("a").results() == {at: f"result-{at}" for at in range(SIZE)}
    eventually(lambda: work.events.total() >= SIZE)
    assert work.events == Counter(("completed", at) for at in range(SIZE))


def test_a_lost_reply_to_an_early_report_changes_nothing(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, url: str
) -> None:
    work = Elements(5)
    work.adds = {3: ["more", "of it"]}
    with cutting(url) as (address, cuts):
        running = learned(flows, run_worker, work, address)
        cuts.at("result-4", "after")
        flow = hanging(flows, work, eventually, list(range(SIZE)))
        eventually(lambda: work.events["completed", 4], 30)
        assert cuts.made == 1
        assert flow.array("a").counts().elements == SIZE + 2
        work.go.set()
        assert flow.wait(timeout=30).state is FlowState.COMPLETED
        assert work.began == Counter(range(SIZE + 2))
        eventually(lambda: work.events.total() >= SIZE + 2)
        assert work.events == Counter(("completed", at) for at in range(SIZE + 2))
        running.stop()


def test_the_end_of_a_kept_element_waits_for_the_early_report(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, url: str
) -> None:
    """The server never gets the first copies of the report, and the element has ended before it does."""
    work = Elements(5)
    with cutting(url) as (address, cuts):
        running = learned(flows, run_worker, work, address, lease=timedelta(seconds=60))
        cuts.at("result-4", "before", times=3)
        flow = flow_of(flows, "a", range(SIZE), "x")
        assert work.hangs.wait(30)
        eventually(lambda: cuts.made, 30)
        work.go.set()
        assert flow.wait(timeout=60).state is FlowState.COMPLETED
        assert cuts.made == 3
        assert work.began == Counter(range(SIZE))
        eventually(lambda: work.events.total() >= SIZE)
        assert work.events == Counter(("completed", at) for at in range(SIZE))
        running.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cancel_of_the_array_stops_the_kept_element(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, *, is_async: bool
) -> None:
    work = Elements(5, is_async=is_async)
    learned(flows, run_worker, work, lease=timedelta(seconds=2))
    flow = hanging(flows, work, eventually)
    flow.cancel("enough")
    assert work.was_cancelled.wait(30)
    assert flow.wait(timeout=30).state is FlowState.CANCELLED
    work.go.set()
    flow.retry_failed()
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert [work.began[at] for at in range(6)] == [1, 1, 1, 1, 1, 2]
    assert flow.array("a").counts().completed == SIZE


@pytest.mark.parametrize("ends", [True, False])
def test_a_worker_that_stops_gives_back_a_kept_element_or_reports_it(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, *, ends: bool
) -> None:
    work = Elements(5, is_async=True)
    running = learned(flows, run_worker, work, shutdown_timeout=timedelta(seconds=60 if ends else 0))
    flow = hanging(flows, work, eventually)
    running.worker.stop()
    if ends:
        work.go.set()
    running.stop()
    counts = flow.array("a").counts()
    assert (counts.completed, counts.running) == (5 + ends, 0)
    work.go.set()
    run_worker(["etl"], work.handlers)
    assert flow.wait(timeout=30).state is FlowState.COMPLETED
    assert work.began == Counter(range(SIZE)) + Counter([] if ends else [5])


PROGRAM = """
    import sys, time
    from datetime import timedelta
    from glidemq_orchestrate import Worker

    worker = Worker(sys.argv[1], queues=["etl"], lease=timedelta(seconds=1), concurrency=1)

    @worker.handler("work")
    def work(ctx):
        if ctx.node == "a":
            with open(sys.argv[2], "a") as file:
                print(ctx.index, file=file)
            if ctx.index == 5:
                time.sleep(600)

    worker.run()
"""


def test_a_killed_worker_costs_only_the_element_that_ran(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, url: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    with spawned([sys.executable, "-c", textwrap.dedent(PROGRAM), url, str(calls)]) as process:
        learning = flow_of(flows, "learn", range(400), "learn")
        assert learning.wait(timeout=60).state is FlowState.COMPLETED
        flow = flow_of(flows, "a", range(SIZE), "x")
        eventually(lambda: flow.array("a").counts().completed == 5, 60)
        process.kill()
        process.wait(60)
    work = Elements(-1)
    run_worker(["etl"], work.handlers, lease=timedelta(seconds=1))
    assert flow.wait(timeout=60).state is FlowState.COMPLETED
    assert list(map(int, calls.read_text().split())) == [0, 1, 2, 3, 4, 5]
    assert work.began == Counter(range(5, SIZE)), "those before it had been reported"
