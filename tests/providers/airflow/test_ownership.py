"""The task owns its flow: one whose task has vanished ends, and one that is waited for does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from airflow_provider_glidemq.exceptions import GlideMQFlowCancelled, GlideMQFlowTimeout
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator
from airflow_provider_glidemq.operators.waiting_in_worker import WaitingInWorker
from airflow_provider_glidemq.task_attempt import TaskKey
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.version_compat import TaskDeferralError, TaskDeferred

from glidemq_orchestrate import FlowProducer
from glidemq_orchestrate.attempts import upkeep
from glidemq_orchestrate.flows import owner as owner_calls
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.providers.airflow.builders import (
    FLOW_ID,
    QUEUE,
    RETRIED,
    Contexts,
    FakeTask,
    Valkey,
    blocking,
    deferred,
    fired,
    load,
    recreated,
    task_states,
    until,
    waiting,
)

LONG = timedelta(seconds=20)
DAY = 86_400.0


class Ahead(SystemClock):
    """A clock that is some seconds ahead."""

    seconds = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.seconds * 1000)


@pytest.fixture
def later(valkey: Valkey) -> Iterator[Callable[..., None]]:
    """Lets a supervisor look at these seconds after now."""
    driver, clock = SyncDriver(ConnectionSettings.resolve(valkey.url)), Ahead()

    def look(*at: float) -> None:
        for clock.seconds in at:
            driver.run(upkeep.upkeep([QueueKeys(valkey.prefix, QUEUE)], clock))

    yield look
    driver.close()


def heard(valkey: Valkey) -> dict[str, float]:
    """When owners were heard of."""
    client: Any = redis.Redis.from_url(valkey.url.replace("valkey://", "redis://"), decode_responses=True)
    with client:
        return dict(client.zrange(f"{valkey.prefix}:{{{QUEUE}}}:gmo:owners", 0, -1, withscores=True))


class TestAVanishedTask:
    def test_its_flow_is_cancelled_and_says_whose_it_was(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, later: Callable[..., None]
    ) -> None:
        """It was deferred, and no triggerer ever began to watch; or its process was killed by then."""
        deferred(blocking(load("wait")), context())
        later(DAY / 2 + 1, DAY - 60)
        assert flows.get(FLOW_ID).status().state == "running"
        later(DAY + 60)
        status = flows.get(FLOW_ID).wait(timeout=LONG).status
        assert status.state == "cancelled"
        assert status.reason.startswith(
            "its owner Airflow task d.t of run r1 is gone: its last renewal was at "
        )

    @pytest.mark.parametrize("deferrable", [True, False])
    def test_one_whose_process_dies_while_it_waits_is_missed(
        self,
        flows: FlowProducer,
        context: Contexts,
        later: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
        *,
        deferrable: bool,
    ) -> None:
        class KilledError(BaseException):
            pass

        def die(*_: Any) -> Any:
            raise KilledError

        monkeypatch.setattr(WaitingInWorker, "briefly" if deferrable else "until_end", die)
        with pytest.raises(KilledError):
            blocking(load("wait"), deferrable=deferrable).execute(context())
        later(151, 290)
        assert flows.get(FLOW_ID).status().state == "running"
        later(310)
        status = flows.get(FLOW_ID).wait(timeout=LONG).status
        assert (status.state, "its lease lasts 300 s" in status.reason) == ("cancelled", True)

    def test_a_retry_repairs_it(
        self,
        flows: FlowProducer,
        valkey: Valkey,
        context: Contexts,
        later: Callable[..., None],
    ) -> None:
        waiting(blocking(load("wait"), lease=60.0), context(), flows)
        later(31, 62)
        assert flows.get(FLOW_ID).wait(timeout=LONG).status.state == "cancelled"
        valkey.gate.set()
        results = blocking(load("wait"), lease=60.0).execute(context(**RETRIED))
        assert results == {"extract": 1, "load": "done"}
        assert flows.get(FLOW_ID).generation == 0

    def test_a_task_that_only_lost_its_flow_is_told(
        self, flows: FlowProducer, context: Contexts, later: Callable[..., None]
    ) -> None:
        made = blocking(load("wait"), lease=60.0)
        deferred(made, context())
        later(31, 62)
        flows.get(FLOW_ID).wait(timeout=LONG)
        with pytest.raises(GlideMQFlowCancelled, match="is gone"):
            made.execute_complete(context(), {"status": "cancelled", "flow_id": FLOW_ID})


class TestNoOwner:
    def test_where_the_flow_is_to_outlive_a_kill(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        trigger = deferred(blocking(load("wait"), cancel_on_kill=False), context())
        assert (heard(valkey), trigger.owner, trigger.cancel_on_kill) == ({}, None, False)

    def test_of_a_flow_that_somebody_else_has_begun(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        flows.submit(load("wait"), flow_id="theirs")
        trigger = deferred(blocking(load("wait"), flow_id="theirs"), context())
        assert (heard(valkey), trigger.owner, trigger.cancel_on_kill) == ({}, None, False)

    def test_without_a_lapse_the_task_owns_its_flow_which_runs_on(
        self, flows: FlowProducer, context: Contexts, later: Callable[..., None]
    ) -> None:
        trigger = deferred(blocking(load("wait"), lease=None), context())
        assert flows.get(FLOW_ID).owners() == [trigger.owner]
        later(4 * DAY, 8 * DAY)
        status = flows.get(FLOW_ID).status()
        assert (status.state, flows.get(FLOW_ID).owners()) == ("running", [])


def by_hand(flows: FlowProducer, how: str) -> None:
    """A person sets the flow of the task running again, after its end or while it runs."""
    flow = flows.get(FLOW_ID)
    if how == "retry_failed":
        flow.cancel("wrong data")
        flow.wait(timeout=LONG)
    getattr(flow, how)()
    assert (flow.owners(), flow.status().state) == ([], "running")


@pytest.mark.parametrize("how", ["restart", "retry_failed"])
class TestWhatAPersonBegins:
    """It is theirs: neither a kill, nor a time-out, nor a lease of the task ends it."""

    async def test_a_trigger_waits_for_it_and_neither_a_kill_nor_its_lease_ends_it(
        self,
        flows: FlowProducer,
        valkey: Valkey,
        context: Contexts,
        later: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
        *,
        how: str,
    ) -> None:
        task_states(monkeypatch, {"r1": {"t": "failed"}})
        trigger = deferred(blocking(load("wait"), lease=60.0, poll_interval=0.1), context())
        await asyncio.to_thread(by_hand, flows, how)
        watching = asyncio.create_task(fired(trigger, 20))
        await until(lambda: trigger._renewal._last is not None)
        await trigger.on_kill()
        await asyncio.to_thread(later, 31, 62)
        assert flows.get(FLOW_ID).status().state == "running"
        valkey.gate.set()
        assert (await watching)["status"] == "completed"

    def test_a_task_that_is_killed_or_times_out_leaves_it(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, how: str
    ) -> None:
        first = blocking(load("wait"))
        deferred(first, context())
        by_hand(flows, how)
        first.on_kill()
        resumed = blocking(load("wait"), deferrable=True)
        with pytest.raises(TaskDeferred):
            resumed.execute_complete(context(), {"status": "failed", "flow_id": FLOW_ID})
        resumed.on_kill()
        with pytest.raises(GlideMQFlowTimeout, match=r"timeout. It continues: another client has begun"):
            resumed.execute_complete(context(), {"status": "timeout", "flow_id": FLOW_ID})
        with pytest.raises(TaskDeferralError):
            resumed.resume_execution("__fail__", {"error": "Trigger failure"}, context(max_tries=0))
        retry = blocking(load("wait"), deferrable=True)
        deferred(retry, context(**RETRIED))
        retry.on_kill()
        assert (flows.get(FLOW_ID).status().state, flows.get(FLOW_ID).owners()) == ("running", [])


class TestTheTrigger:
    async def test_it_renews_while_it_watches(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(owner_calls, "MIN", timedelta(0))
        trigger = deferred(blocking(load("wait"), lease=6.0, poll_interval=0.05), context())
        (name, before) = next(iter(heard(valkey).items()))
        assert name == "6000:Airflow task d.t of run r1"
        watching = asyncio.create_task(fired(trigger, 20))
        await until(lambda: heard(valkey).get(name, 0) > before + 1_500)
        assert flows.get(FLOW_ID).status().state == "running"
        valkey.gate.set()
        assert (await watching)["status"] == "completed"

    async def test_one_that_airflow_stops_silently_leaves_the_flow_to_its_lease(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, later: Callable[..., None]
    ) -> None:
        """It has moved to another triggerer, or Airflow is older than 3.3 and a user has ended the task."""
        trigger = deferred(blocking(load("wait"), lease=60.0), context())
        watching = asyncio.create_task(fired(trigger, 20))
        await until(lambda: trigger._renewal._last is not None)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await trigger.cleanup()
        await asyncio.to_thread(later, 31)
        assert flows.get(FLOW_ID).status().state == "running"
        await asyncio.to_thread(later, 62)
        assert "is gone" in flows.get(FLOW_ID).wait(timeout=LONG).status.reason

    async def test_one_without_an_owner_owns_nothing(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        flows.submit(load(), flow_id="f")
        trigger = recreated({"flow_id": "f", "glidemq_conn_id": "glidemq_default"}, context())
        assert (await fired(trigger))["status"] == "completed"
        assert heard(valkey) == {}


def test_names_fit_and_differ() -> None:
    def named(**fields: Any) -> str:
        return TaskKey.of(FakeTask(**fields)).owner

    assert named(dag_id="d", task_id="g.t", run_id="r") == "Airflow task d.g.t of run r"
    assert named(dag_id="d", task_id="t", run_id="r", map_index=3) == "Airflow task d.t[3] of run r"
    long = [named(dag_id="d" * 250, task_id="t" * 250, run_id=run) for run in ("r1", "r2", "r\n")]
    assert len(set(long)) == 3
    assert all(len(name) <= 256 and name.isprintable() for name in long)


def test_a_lapse_that_is_not_valid_is_refused_at_parse_time(subtests: pytest.Subtests) -> None:
    for lease in (14, 604_801, "60", float("nan"), 1e300, -1):
        with (
            subtests.test(lease=lease),
            pytest.raises(ValueError, match=r"lease must be None, or 15 seconds to seven days"),
        ):
            GlideMQFlowOperator(task_id="t", flow=load(), lease=lease)


def test_a_trigger_serializes_its_owner() -> None:
    made = GlideMQFlowTrigger(flow_id="f", owner="o", lease=60.0)
    assert GlideMQFlowTrigger(**made.serialize()[1]).owner == "o"
