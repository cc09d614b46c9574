"""A third orchestrator on ``OrchestratedRun``: repairs, generations, kills, fenced cancels."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import Context, FlowProducer, Owner
from glidemq_orchestrate.errors import FlowCancelled, FlowFailed, QueueNotServed, Superseded
from glidemq_orchestrate.runs import NotOwned, Overtaken, ResultsTooLarge, following
from tests.conftest import Eventually, RunWorker
from tests.server.runs import engine as toy
from tests.server.runs.engine import Engine, nightly

LONG = timedelta(seconds=20)


@dataclass
class Work:
    """What the handlers have done, and what they are to do."""

    ran: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def count(self, ctx: Context) -> int:
        self.ran.append(str(ctx.node))
        return len(self.ran)

    def fail(self, ctx: Context) -> str:
        if not self.gate.is_set():
            raise ValueError("no such month")
        return "repaired"

    def wait(self, ctx: Context) -> str:
        while not ctx.cancelled.is_set() and not self.gate.wait(0.02):
            pass
        return "done"

    def large(self, ctx: Context) -> str:
        return "x" * 2_000


@pytest.fixture
def work(run_worker: RunWorker) -> Iterator[Work]:
    made = Work()
    handlers: dict[str, Any] = {
        "count": made.count,
        "fail": made.fail,
        "wait": made.wait,
        "large": made.large,
    }
    run_worker(["etl"], handlers, lease=timedelta(seconds=1))
    yield made
    made.gate.set()


@pytest.fixture(params=[False, True], ids=["blocking", "asyncio"])
def engine(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    return Engine(url, tmp_path / "database.json", is_async=request.param)


@pytest.fixture
def flows(url: str) -> Iterator[FlowProducer]:
    with FlowProducer(url) as made:
        yield made


def generations(engine: Engine, flows: FlowProducer) -> list[str]:
    return [one.state.value for one in flows.get(engine.flow_id("r1", "nightly")).history()]


@pytest.fixture
def executing(engine: Engine, eventually: Eventually, work: Work) -> Iterator[Callable[..., Any]]:
    """Executes a task in a thread; returns its future when its flow has begun."""
    with ThreadPoolExecutor(2) as pool:

        def begin(task: toy.Task) -> Any:
            before = engine.read("r1", "nightly").tries
            found = pool.submit(engine.execute, "r1", task)
            eventually(
                lambda: (now := engine.read("r1", "nightly")).tries > before and now.generation is not None
            )
            return found

        yield begin
        work.gate.set()


def test_a_retry_repairs(engine: Engine, flows: FlowProducer, work: Work) -> None:
    with pytest.raises(FlowFailed, match="no such month"):
        engine.execute("r1", nightly("fail", retries=1))
    assert engine.read("r1", "nightly").tries == 2
    work.gate.set()
    assert engine.execute("r1", nightly("fail")) == {"load": "repaired"}
    assert (work.ran, generations(engine, flows)) == (["extract"], ["completed"])


def test_a_clear_begins_a_generation_that_shows_no_old_result(
    engine: Engine, flows: FlowProducer, work: Work
) -> None:
    assert engine.execute("r1", nightly()) == {"load": 2}
    assert engine.execute("r1", nightly()) == {"load": 2}, "a repeat of the same run"
    engine.clear("r1", "nightly")
    assert engine.execute("r1", nightly()) == {"load": 4}
    assert generations(engine, flows) == ["completed", "completed"]


def test_another_process_goes_on_after_a_kill(
    engine: Engine, flows: FlowProducer, work: Work, eventually: Eventually
) -> None:
    command = [sys.executable, "-m", toy.__name__, engine.url, str(engine.database), "r1"]
    process = subprocess.Popen(command)
    try:
        eventually(lambda: work.ran and engine.read("r1", "nightly").generation is not None, timeout=60)
    finally:
        process.kill()
        process.wait()
    flow = flows.get(engine.flow_id("r1", "nightly"))
    assert (flow.status().state, flow.owners()) == ("running", ["toy run r1, task nightly"])
    work.gate.set()
    assert engine.execute("r1", nightly("wait")) == {"load": "done"}
    assert (work.ran, generations(engine, flows)) == (["extract"], ["completed"])


def test_a_cancel_reaches_the_generation_of_its_time_only(
    engine: Engine, flows: FlowProducer, work: Work, executing: Callable[..., Any]
) -> None:
    old = executing(nightly("wait"))
    then = engine.read("r1", "nightly")
    engine.clear("r1", "nightly")
    new = executing(nightly("wait"))
    with pytest.raises(Overtaken, match="a later run has restarted flow"):
        old.result(20)
    with pytest.raises(Superseded):
        engine.cancel("r1", "nightly", then)
    assert generations(engine, flows) == ["cancelled", "running"]
    engine.cancel("r1", "nightly")
    with pytest.raises(FlowCancelled, match="a user has cancelled the task"):
        new.result(20)


def test_what_a_person_begins_is_followed_and_never_cancelled(
    engine: Engine, flows: FlowProducer, work: Work, executing: Callable[..., Any], eventually: Eventually
) -> None:
    waiting = executing(nightly("wait"))
    flow = flows.get(engine.flow_id("r1", "nightly"))
    flow.restart(idempotency_key="a click")
    eventually(lambda: len(work.ran) == 2)
    record = engine.read("r1", "nightly")
    record.generation = 1
    with pytest.raises(NotOwned, match="another client has begun flow"):
        engine.cancel("r1", "nightly", record)
    work.gate.set()
    assert waiting.result(20) == {"load": "done"}
    assert generations(engine, flows) == ["cancelled", "completed"]


def test_what_another_owner_wants_is_not_cancelled(
    engine: Engine, flows: FlowProducer, work: Work, executing: Callable[..., Any]
) -> None:
    waiting = executing(nightly("wait"))
    flows.get(engine.flow_id("r1", "nightly"), owner=Owner("ada")).renew()
    with pytest.raises(NotOwned, match="continues for ada"):
        engine.cancel("r1", "nightly")
    work.gate.set()
    assert waiting.result(20) == {"load": "done"}


def test_what_the_task_raises_cancels_its_flow(engine: Engine, flows: FlowProducer, work: Work) -> None:
    class Interrupted(BaseException):
        """The engine stops the task."""

    def look() -> None:
        if work.ran:
            raise Interrupted

    with pytest.raises(Interrupted):
        engine.execute("r1", nightly("wait"), look)
    status = flows.get(engine.flow_id("r1", "nightly")).status()
    assert (status.state, status.reason) == ("cancelled", "its task has ended: Interrupted")


def test_a_flow_of_somebody_else_is_joined(engine: Engine, flows: FlowProducer, work: Work) -> None:
    flow = flows.submit(nightly("fail").spec, flow_id=engine.flow_id("r1", "nightly"))
    flow.wait(timeout=LONG)
    with pytest.raises(FlowFailed):
        engine.execute("r1", nightly("fail"))
    work.gate.set()
    assert engine.execute("r1", nightly("fail")) == {"load": "repaired"}
    assert (work.ran, flow.owners()) == (["extract"], [])


def test_queues_that_nobody_serves_end_the_flow(
    engine: Engine, flows: FlowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "EVERY_SECONDS", 0.1)
    with pytest.raises(QueueNotServed, match="no worker serves queue etl"):
        engine.execute("r1", nightly(worker_timeout=timedelta(seconds=1)))
    status = flows.get(engine.flow_id("r1", "nightly")).status()
    assert status.state == "cancelled"
    assert status.reason.startswith("no worker serves queue etl")


def test_missing_workers_are_noticed_before_anything_is_sent(engine: Engine) -> None:
    with pytest.raises(QueueNotServed):
        engine.execute("r1", nightly(require_workers=True))
    assert engine.read("r1", "nightly").generation is None


def test_results_that_are_too_large_stay_in_the_flow(engine: Engine, work: Work) -> None:
    with pytest.raises(ResultsTooLarge, match="2,012 bytes of JSON, and the limit is 1,000") as caught:
        engine.execute("r1", nightly("large"))
    assert caught.value.sizes == {"load": 2_002}


def test_a_try_that_was_given_up_cancels_nothing_its_retry_waits_for(
    engine: Engine, flows: FlowProducer, work: Work, executing: Callable[..., Any]
) -> None:
    executing(nightly("wait"))
    given_up = engine.read("r1", "nightly")
    retry = executing(nightly("wait"))
    with pytest.raises(NotOwned, match="a later try of this task waits"):
        engine.cancel("r1", "nightly", given_up)
    work.gate.set()
    assert retry.result(20) == {"load": "done"}
