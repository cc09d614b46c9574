"""The step owns its flow: one whose process was killed ends when its lease does."""

import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
import redis
from dagster_glidemq import GlideMQResource, flow_run
from dagster_glidemq.flow_run import FlowRun

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.attempts import upkeep
from glidemq_orchestrate.flows import owner as owner_calls
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.runs import OrchestratedRun
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.keys import QueueKeys

RunWorker = Callable[..., Any]
SPEC = FlowSpec(
    "etl",
    [
        FlowNode("extract", queue="etl", job="step"),
        FlowNode("load", queue="etl", job="step", after=["extract"]),
    ],
)


class Ahead(SystemClock):
    """A clock that is some seconds ahead."""

    seconds = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.seconds * 1000)


class _Killed(BaseException):
    """The process of the step is gone: nothing of it runs any more."""


@pytest.fixture
def gate(run_worker: RunWorker) -> Any:
    """Opens the handler of the flow, which waits."""
    opened = threading.Event()

    def step(ctx: Context) -> None:
        while not ctx.cancelled.is_set() and not opened.wait(0.02):
            pass

    run_worker(["etl"], {"step": step})
    yield opened
    opened.set()


def begin(url: str, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> str:
    """Run the flow in a step whose process dies at the first look; returns the id of the flow."""
    found: list[str] = []

    def die(_: Any, flow: Any, *__: Any) -> Any:
        found.append(flow.id)
        raise _Killed

    @dg.op
    def etl(context: dg.OpExecutionContext) -> None:
        GlideMQResource(url=url, **fields).run_flow(context, SPEC)

    @dg.job
    def nightly() -> None:
        etl()

    with monkeypatch.context() as patch:
        patch.setattr(flow_run, "_announce", die)
        patch.setattr(OrchestratedRun, "end", lambda *_: None)
        with pytest.raises(_Killed):
            nightly.execute_in_process()
    return found[0]


def look(url: str, *at: float) -> None:
    """Let a supervisor look at these seconds after now."""
    driver, clock = SyncDriver(ConnectionSettings.resolve(url)), Ahead()
    for clock.seconds in at:
        driver.run(upkeep.upkeep([QueueKeys("glide", "etl")], clock))
    driver.close()


@pytest.mark.usefixtures("gate")
def test_the_flow_of_a_killed_step_is_cancelled_and_says_whose_it_was(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow_id = begin(url, monkeypatch)
    with FlowProducer(url) as flows:
        look(url, 1_801, 3_500)
        assert flows.get(flow_id).status().state == "running"
        look(url, 3_660)
        status = flows.get(flow_id).wait(timeout=timedelta(seconds=20)).status
    assert status.state == "cancelled"
    assert re.match(r"its owner Dagster run [0-9a-f-]{36}, step etl is gone: its last renewal", status.reason)


@pytest.mark.usefixtures("gate")
def test_without_a_lapse_it_runs_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow_id = begin(url, monkeypatch, lease=None)
    with FlowProducer(url) as flows:
        look(url, 1_801, 3_660, 10_000)
        assert flows.get(flow_id).status().state == "running"


def test_a_step_that_waits_renews(url: str, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    def heard() -> list[float]:
        client: Any = redis.Redis.from_url(url.replace("valkey://", "redis://"), decode_responses=True)
        with client:
            return [at for _, at in client.zrange("glide:{etl}:gmo:owners", 0, -1, withscores=True)]

    monkeypatch.setattr(owner_calls, "MIN", timedelta(0))
    monkeypatch.setattr(FlowRun, "_as_owner", lambda *_: owner_calls.Owner("step", timedelta(seconds=6)))
    seen: list[float] = []

    @dg.op
    def etl(context: dg.OpExecutionContext) -> None:
        GlideMQResource(url=url).run_flow(context, SPEC)

    @dg.job
    def nightly() -> None:
        etl()

    def watch() -> None:
        for _ in range(100):
            seen.extend(heard())
            if seen and max(seen) - min(seen) > 900:
                break
            gate.wait(0.1)
        gate.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert nightly.execute_in_process().success
    watcher.join(20)
    assert max(seen) - min(seen) > 900
