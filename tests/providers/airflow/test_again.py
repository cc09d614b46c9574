"""Run again: retries repair, clears begin a new generation, and what is left of an old try harms nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQFlowSuperseded,
    GlideMQFlowTimeout,
)
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, flow_id_for
from airflow_provider_glidemq.sensors.glidemq import GlideMQFlowSensor
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.version_compat import AirflowFailException, TaskDeferred

from glidemq_orchestrate import FlowProducer, FlowSpec, FlowState, Worker
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.io.sync import SyncDriver
from tests.providers.airflow.builders import (
    CLEARED,
    LONG,
    RETRIED,
    Contexts,
    FakeRun,
    FakeTask,
    Valkey,
    blocking,
    deferred,
    fired,
    load,
    task_states,
    until,
    waiting,
)

FLOW_ID = flow_id_for("d", "t", "r1")


def generations(flows: FlowProducer, flow_id: str = FLOW_ID) -> list[str]:
    return [status.state.value for status in flows.get(flow_id).history()]


@pytest.fixture
def flows(valkey: Valkey, worker: Worker) -> Any:
    with valkey.producer() as producer:
        yield producer
    valkey.gate.set()


class TestRetry:
    def test_it_repairs(self, flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
        with pytest.raises(GlideMQFlowFailed):
            blocking(load("fail")).execute(context())
        valkey.gate.set()
        assert blocking(load("fail")).execute(context(**RETRIED)) == {"extract": 1, "load": "repaired"}
        assert (valkey.ran, generations(flows)) == (["extract"], ["completed"])

    def test_a_mended_dag_is_accepted_and_keeps_what_completed(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        with pytest.raises(GlideMQFlowFailed):
            blocking(load("fail")).execute(context())
        assert blocking(load("echo", 5)).execute(context(**RETRIED)) == {"extract": 1, "load": 5}
        assert (valkey.ran, generations(flows)) == (["extract"], ["failed", "completed"])
        again = context(try_number=3)
        assert blocking(load("echo", 5)).execute(again) == {"extract": 1, "load": 5}
        assert generations(flows) == ["failed", "completed"], "a repeat begins nothing"

    def test_it_repairs_what_a_kill_of_the_same_run_cancelled(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        first = blocking(load("wait"))
        waiting(first, context(), flows)
        first.on_kill()
        assert flows.get(FLOW_ID).wait(timeout=LONG).status.state is FlowState.CANCELLED
        valkey.gate.set()
        results = blocking(load("wait")).execute(context(**RETRIED))
        assert results == {"extract": 1, "load": "done"}
        assert generations(flows) == ["completed"]

    def test_it_goes_on_after_the_run_was_put_back_to_queued(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        with pytest.raises(GlideMQFlowFailed):
            blocking(load("fail")).execute(context())
        valkey.gate.set()
        later = FakeRun(start_date=datetime(2026, 1, 2, tzinfo=UTC))
        blocking(load("fail")).execute(context(**RETRIED, run=later))
        assert (valkey.ran, generations(flows)) == (["extract"], ["completed"])


class TestClear:
    @pytest.mark.parametrize("flow", [None, load("echo", 7)])
    def test_of_a_success_runs_anew_and_shows_no_old_result(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, flow: FlowSpec | None
    ) -> None:
        assert blocking().execute(context()) == {"extract": 1, "load": 2}
        results = blocking(flow).execute(context(**CLEARED))
        assert results == ({"extract": 3, "load": 4} if flow is None else {"extract": 3, "load": 7})
        assert generations(flows) == ["completed", "completed"]

    @pytest.mark.parametrize("on_existing", [None, "retry_failed"])
    def test_of_a_failure_runs_what_failed_and_of_a_success_all(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, on_existing: Any
    ) -> None:
        made = blocking(load("fail"), on_existing=on_existing)
        with pytest.raises(GlideMQFlowFailed, match="clear this task: the nodes that did not complete"):
            made.execute(context())
        with pytest.raises(GlideMQFlowFailed):
            made.execute(context(**CLEARED))
        assert valkey.ran == ["extract"]
        valkey.gate.set()
        assert made.execute(context(try_number=3, max_tries=3)) == {"extract": 1, "load": "repaired"}
        assert generations(flows) == ["completed"]
        again = context(try_number=4, max_tries=4)
        assert made.execute(again) == {"extract": 2, "load": "repaired"}, "the success was cleared"
        assert generations(flows) == ["completed", "completed"]

    @pytest.mark.parametrize("how", ["retry", "restart"])
    def test_shows_what_a_person_has_set_going_by_hand_and_then_runs_anew(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, how: str
    ) -> None:
        with pytest.raises(GlideMQFlowFailed):
            blocking(load("fail")).execute(context())
        valkey.gate.set()
        flow = flows.get(FLOW_ID)
        flow.retry_failed() if how == "retry" else flow.restart()
        ran = 1 if how == "retry" else 2
        for number in (2, 3):  # the second one died before it could tell of the end
            cleared = context(try_number=number, max_tries=2, run=FakeRun(clear_number=1))
            assert blocking(load("fail")).execute(cleared) == {"extract": ran, "load": "repaired"}
        assert len(valkey.ran) == ran
        now = context(try_number=4, max_tries=4, run=FakeRun(clear_number=2))
        assert blocking(load("fail")).execute(now) == {"extract": ran + 1, "load": "repaired"}

    def test_after_a_time_out_runs_what_did_not_complete(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        made = blocking(load("wait"))
        waiting(made, context(), flows)
        with pytest.raises(GlideMQFlowTimeout, match="clear this task"):
            made.resume_execution("__fail__", {"error": "Trigger timeout"}, context())
        flows.get(FLOW_ID).wait(timeout=LONG)
        valkey.gate.set()
        assert blocking(load("wait")).execute(context(**CLEARED)) == {"extract": 1, "load": "done"}

    def test_with_a_task_before_it_that_has_run_again_runs_anew(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        seconds = 1.5

        def task(**now: Any) -> Any:
            made = context(**now)
            rows = [{"task_id": "fetch", "map_index": -1, "state": "success", "duration": seconds}]
            made["ti"].get_task_breadcrumbs = lambda *_: [*rows, {**rows[0], "task_id": "other"}]
            return made

        def etl() -> Any:
            made = blocking(load("fail"))
            made.upstream_task_ids = {"fetch"}
            return made

        with pytest.raises(GlideMQFlowFailed):
            etl().execute(task())
        with pytest.raises(GlideMQFlowFailed):
            etl().execute(task(**CLEARED))
        assert valkey.ran == ["extract"]
        seconds = 1.6
        with pytest.raises(GlideMQFlowFailed):
            etl().execute(task(try_number=3, max_tries=4))
        assert valkey.ran == ["extract", "extract"]

    def test_a_run_that_was_created_again_runs_anew(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        blocking().execute(context())
        later = FakeRun(start_date=datetime(2026, 1, 2, tzinfo=UTC))
        assert blocking().execute(context(run=later)) == {"extract": 3, "load": 4}

    def test_a_worker_that_dies_after_submitting_does_not_begin_it_twice(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        deferred(blocking(load("wait")), context())
        for try_number in (2, 3, 3):
            deferred(blocking(load("wait")), context(**{**CLEARED, "try_number": try_number}))
        assert generations(flows) == ["cancelled", "running"]

    def test_two_tries_at_once_begin_one_generation(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        deferred(blocking(load("wait")), context())
        contexts = [context(**{**CLEARED, "try_number": 2}) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda one: deferred(blocking(load("wait")), one), contexts))
        assert generations(flows) == ["cancelled", "running"]

    def test_of_one_that_was_killed_runs_the_flow_anew(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        first = blocking(load("wait"))
        waiting(first, context(), flows)
        first.on_kill()
        flows.get(FLOW_ID).wait(timeout=LONG)
        valkey.gate.set()
        cleared = context(try_number=2, run=FakeRun(clear_number=1))
        assert blocking(load("wait")).execute(cleared) == {"extract": 2, "load": "done"}
        blocking(load("wait")).execute(context(try_number=3, run=FakeRun(clear_number=1)))
        assert generations(flows) == ["cancelled", "completed"]

    def test_after_retries_were_lowered_runs_anew_though_max_tries_stay(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        blocking(retries=2).execute(context(max_tries=2))
        now = {"try_number": 2, "max_tries": 2, "run": FakeRun(clear_number=1)}
        assert blocking(retries=1).execute(context(**now)) == {"extract": 3, "load": 4}
        assert blocking(retries=1).execute(context(**{**now, "try_number": 3})) == {"extract": 3, "load": 4}


class TestWhatIsLeftOfAnOldTry:
    async def test_a_trigger_ends_and_its_kill_touches_nothing(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = blocking(load("wait"))
        old = deferred(first, context())
        watching = asyncio.create_task(fired(old))
        await until(lambda: flows.get(FLOW_ID).status().completed)
        new = deferred(blocking(load("wait")), context(**CLEARED))
        payload = await watching
        assert (payload["status"], payload["generation"]) == ("superseded", 0)
        task_states(monkeypatch, {"r1": {"t": None}})
        await old.on_kill()
        first.on_kill()
        assert generations(flows) == ["cancelled", "running"]
        with pytest.raises(GlideMQFlowSuperseded, match="was restarted by a later try"):
            blocking(load("wait")).execute_complete(context(), payload)
        valkey.gate.set()
        payload = await fired(new)
        assert (payload["status"], payload["generation"]) == ("completed", 1)
        made = blocking(load("wait"))
        assert made.execute_complete(context(**CLEARED), payload) == {"extract": 2, "load": "done"}

    async def test_a_trigger_that_starts_late_sees_it_too(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        old = deferred(blocking(load("wait")), context())
        deferred(blocking(load("wait")), context(**CLEARED))
        assert (await fired(old))["status"] == "superseded"

    async def test_a_trigger_follows_what_was_begun_by_hand_and_leaves_it(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = context()
        trigger = deferred(blocking(load("wait")), made)
        watching = asyncio.create_task(fired(trigger))
        await until(lambda: flows.get(FLOW_ID).status().completed)
        flows.get(FLOW_ID).restart()
        flows.submit(load("wait", 1), flow_id=FLOW_ID, on_existing="restart", idempotency_key="a click")
        await until(lambda: trigger.generation == 2)
        task_states(monkeypatch, {"r1": {"t": "failed"}})
        await trigger.on_kill()
        assert generations(flows) == ["cancelled", "cancelled", "running"]
        valkey.gate.set()
        payload = await watching
        assert (payload["status"], payload["generation"]) == ("completed", 2)

    def test_a_worker_that_waits_without_deferring_ends(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        made, errors = blocking(load("wait")), list[BaseException]()

        def wait() -> None:
            try:
                made.execute(context())
            except GlideMQException as exc:
                errors.append(exc)

        thread = threading.Thread(target=wait)
        thread.start()
        while not valkey.ran:
            thread.join(0.01)
        deferred(blocking(load("wait")), context(**CLEARED))
        thread.join(20)
        assert [type(error) for error in errors] == [GlideMQFlowSuperseded]
        made.on_kill()
        with pytest.raises(GlideMQFlowTimeout):
            made.resume_execution("__fail__", {"error": "Trigger timeout"}, context())
        with pytest.raises(GlideMQFlowSuperseded):
            made.execute(context())
        assert generations(flows) == ["cancelled", "running"]

    def test_a_worker_follows_what_was_begun_by_hand(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        made = blocking(load("wait"))
        with ThreadPoolExecutor(1) as pool:
            executing = pool.submit(made.execute, context())
            while not valkey.ran:
                assert not executing.done()
            flows.get(FLOW_ID).restart()
            while len(valkey.ran) < 2:
                assert not executing.done()
            valkey.gate.set()
            assert executing.result(20) == {"extract": 2, "load": "done"}

    def test_a_sensor_waits_for_the_generation_that_is_current(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        blocking().execute(context())
        blocking(load("echo", 9)).execute(context(**CLEARED))
        sensor = GlideMQFlowSensor(task_id="s", flow_id=FLOW_ID, result="all")
        assert sensor.execute(context()) == {"extract": 3, "load": 9}

    async def test_a_sensor_s_trigger_follows(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        deferred(blocking(load("wait")), context())
        trigger = GlideMQFlowTrigger(flow_id=FLOW_ID, wait_for_flow=True)
        trigger.task_instance = FakeTask(task_id="sensor", run_id="r1")  # type: ignore[assignment]
        watching = asyncio.create_task(fired(trigger))
        await until(lambda: trigger.generation == 0)
        deferred(blocking(load("wait")), context(**CLEARED))
        await until(lambda: trigger.generation == 1)
        valkey.gate.set()
        payload = await watching
        assert (payload["status"], payload["generation"]) == ("completed", 1)


class TestKill:
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_while_the_flow_is_being_submitted(
        self,
        flows: FlowProducer,
        valkey: Valkey,
        context: Contexts,
        monkeypatch: pytest.MonkeyPatch,
        when: str,
    ) -> None:
        submit, made = FlowProducer.submit, blocking(load("wait"))

        def killed(self: FlowProducer, *args: Any, **kwargs: Any) -> Any:
            if when == "before":
                made.on_kill()
            flow = submit(self, *args, **kwargs)
            if when == "after":
                made.on_kill()
            return flow

        deferred(blocking(load("wait")), context())
        monkeypatch.setattr(FlowProducer, "submit", killed)
        with pytest.raises(GlideMQFlowCancelled, match="the Airflow task was killed"):
            made.execute(context(**CLEARED))
        assert generations(flows) == ["cancelled", "cancelled"]

    def test_before_a_restart_leaves_the_generation_of_a_stranger_alone(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = blocking(load("wait"), flow_id="shared")

        def lost(*_: Any, **__: Any) -> Any:
            made.on_kill()
            raise GlideMQException("the process ends here")

        flows.submit(load("wait"), flow_id="shared")
        monkeypatch.setattr(FlowProducer, "submit", lost)
        with pytest.raises(GlideMQException, match="ends here"):
            made.execute(context())
        assert generations(flows, "shared") == ["running"]

    @pytest.mark.parametrize("how", ["kill", "time-out"])
    def test_of_a_process_that_was_given_up_leaves_the_flow_to_the_retry(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, how: str
    ) -> None:
        """It was stopped for minutes, and is ended when it goes on: its retry waits for the flow by then."""
        given_up, retry = blocking(load("wait")), blocking(load("wait"))
        waiting(given_up, context(), flows)
        waiting(retry, context(**RETRIED), flows)
        if how == "kill":
            given_up.on_kill()
        else:
            with pytest.raises(GlideMQFlowTimeout, match="It continues: a later try of this task waits for"):
                given_up.resume_execution("__fail__", {"error": "Trigger timeout"}, context())
        assert generations(flows) == ["running"]
        retry.on_kill()
        assert generations(flows) == ["cancelled"]

    def test_after_resuming_cancels_too(self, flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
        deferred(blocking(load("wait")), context())
        resumed = blocking(load("wait"), deferrable=True)
        with pytest.raises(TaskDeferred):
            resumed.execute_complete(context(), {"status": "failed", "flow_id": FLOW_ID})
        resumed.on_kill()
        assert generations(flows) == ["cancelled"]


class TestAFlowOfSomebodyElse:
    def test_it_is_joined_and_never_begun_anew(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        flows.submit(load("fail"), flow_id="shared").wait(timeout=LONG)
        made = blocking(load("fail"), flow_id="shared")
        with pytest.raises(GlideMQFlowFailed):
            made.execute(context())
        valkey.gate.set()
        for now in (RETRIED, CLEARED, {**CLEARED, "run": FakeRun(start_date=None)}):
            assert made.execute(context(**now)) == {"extract": 1, "load": "repaired"}
        assert (valkey.ran, generations(flows, "shared")) == (["extract"], ["completed"])

    def test_one_that_has_ended_before_is_told(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where each DAG run is given the same id: the second one runs nothing, and shows the first."""
        made, told = blocking(flow_id="nightly"), list[str]()
        monkeypatch.setattr(made.log, "warning", lambda text, *args: told.append(text % args))
        first = made.execute(context())
        assert (made.execute(context(run_id="r2")), valkey.ran) == (first, ["extract", "load"])
        (line,) = told
        assert line.startswith(
            "Flow nightly had ended before (completed), and was begun by Airflow task d.t of "
        )
        assert "of run r1: nothing runs" in line

    @pytest.mark.parametrize("now", [{}, RETRIED, CLEARED])
    def test_it_is_never_changed(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts, now: dict[str, Any]
    ) -> None:
        blocking(load("wait"), flow_id="shared", deferrable=True)
        deferred(blocking(load("wait"), flow_id="shared"), context(task_id="other"))
        with pytest.raises(AirflowFailException, match="Only the task that began a flow can change it"):
            blocking(load("echo"), flow_id="shared").execute(context(**now))
        assert generations(flows, "shared") == ["running"]

    async def test_its_next_generation_is_followed(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        shared = {"flow_id": "odd: +/ü'\"~" + "x" * 200}
        deferred(blocking(load("wait"), **shared), context(task_id="other"))
        joined = deferred(blocking(load("wait"), **shared), context())
        watching = asyncio.create_task(fired(joined))
        await until(lambda: valkey.ran)
        deferred(blocking(load("wait"), **shared), context(task_id="other", **CLEARED))
        await until(lambda: joined.generation == 1)
        valkey.gate.set()
        assert (await watching)["status"] == "completed"


class _Died(BaseException):
    """The process ends here, by a kill -9."""


class TestDying:
    """A worker dies before or after any of its requests to the server; the next try goes on."""

    @pytest.fixture
    def dying(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        """Let the process die at its n-th request: an odd one is sent, an even one is not."""
        reply_to, left = SyncDriver._reply_to, [10**9]

        def request(self: SyncDriver, *args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise _Died
            reply = reply_to(self, *args)
            left[0] -= 1
            if left[0] == 0:
                raise _Died
            return reply

        def at(steps: int) -> None:
            left[0] = steps + 1

        monkeypatch.setattr(SyncDriver, "_reply_to", request)
        return at

    @pytest.mark.parametrize("kind", ["clear", "mended", "first"])
    def test_at_any_request(
        self,
        flows: FlowProducer,
        valkey: Valkey,
        context: Contexts,
        dying: Callable[[int], None],
        kind: str,
    ) -> None:
        deaths = 0
        for steps in range(200):
            run_id = f"{kind}{steps}"
            now = {"clear": CLEARED, "mended": RETRIED, "first": {}}[kind]
            mended = load("echo", 5) if kind == "mended" else load()
            if kind != "first":
                with suppress(GlideMQFlowFailed):
                    blocking(load("fail") if kind == "mended" else load()).execute(context(run_id=run_id))
            ran = len(valkey.ran)
            dying(steps)
            try:
                blocking(mended).execute(context(run_id=run_id, **now))
            except _Died:
                deaths += 1
                dying(10**9)
                again = {**now, "try_number": now.get("try_number", 1) + 1}
                results = blocking(mended).execute(context(run_id=run_id, **again))
                fresh = {"extract": ran + 1, "load": ran + 2}
                assert results == ({"extract": ran, "load": 5} if kind == "mended" else fresh), steps
            else:
                dying(10**9)
                break
            ends = generations(flows, flow_id_for("d", "t", run_id))
            assert ends == [*{"clear": ["completed"], "mended": ["failed"]}.get(kind, []), "completed"], steps
        assert 10 < deaths < 199


class TestChoices:
    def test_restart_runs_anew_on_each_try_whoever_began_it(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        flows.submit(load(), flow_id=FLOW_ID).wait(timeout=LONG)
        made = blocking(on_existing="restart")
        assert made.execute(context()) == {"extract": 3, "load": 4}
        assert made.execute(context()) == {"extract": 3, "load": 4}, "the same try, again"
        assert made.execute(context(**RETRIED)) == {"extract": 5, "load": 6}

    def test_attach_and_retry_failed_show_what_is_there_after_a_clear_too(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        with pytest.raises(GlideMQFlowFailed):
            blocking(load("fail")).execute(context())
        valkey.gate.set()
        with pytest.raises(GlideMQFlowFailed):
            blocking(load("fail"), on_existing="attach").execute(context(**CLEARED))
        repaired = blocking(load("fail"), on_existing="retry_failed").execute(context(**CLEARED))
        assert repaired == {"extract": 1, "load": "repaired"}
        assert generations(flows) == ["completed"]

    def test_a_flow_with_as_many_labels_as_there_may_be_is_still_told_apart(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        full = load(labels={f"label{n}": "x" for n in range(10)})
        assert blocking(full).execute(context()) == {"extract": 1, "load": 2}
        assert blocking(full).execute(context(**RETRIED)) == {"extract": 1, "load": 2}
        assert blocking(full).execute(context(**CLEARED)) == {"extract": 3, "load": 4}


class TestThePortablePath:
    """Flows whose queues are in several slots of a cluster."""

    @pytest.fixture(autouse=True)
    def _portable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(producer, "Reach", lambda _: Reach(has_functions=False))

    def test_a_retry_repairs(self, flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
        with pytest.raises(GlideMQFlowFailed):
            blocking(load("fail")).execute(context())
        valkey.gate.set()
        assert blocking(load("fail")).execute(context(**RETRIED)) == {"extract": 1, "load": "repaired"}

    def test_leaves_are_found(self, flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
        blocking().execute(context())
        made = GlideMQFlowOperator(task_id="t", flow=load(), result="leaves")
        event = {"status": "completed", "flow_id": FLOW_ID}
        assert made.execute_complete(context(), event) == {"load": 2}

    def test_a_clear_runs_anew(self, flows: FlowProducer, valkey: Valkey, context: Contexts) -> None:
        assert blocking().execute(context()) == {"extract": 1, "load": 2}
        assert blocking().execute(context(**CLEARED)) == {"extract": 3, "load": 4}

    def test_a_kill_cancels_and_the_clear_after_it_runs_anew(
        self, flows: FlowProducer, valkey: Valkey, context: Contexts
    ) -> None:
        first = blocking(load("wait"))
        waiting(first, context(), flows)
        first.on_kill()
        flows.get(FLOW_ID).wait(timeout=LONG)
        valkey.gate.set()
        results = blocking(load("wait")).execute(context(**CLEARED))
        assert results == {"extract": 2, "load": "done"}
