"""What a step does in bad times: outages, no workers, terminations, other runs that want the same flow."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._check import CheckError
from dagster_glidemq import GlideMQResource, flow_run, glidemq_flow_assets

from glidemq_orchestrate import Context, EmbeddedServer, FlowNode, FlowProducer, FlowSpec, JobOptions, Owner
from glidemq_orchestrate.runs import following, steps
from tests.profile import sampled
from tests.providers.dagster.builders import run_op

RunWorker = Callable[..., Any]
TWO = FlowSpec(
    "two",
    [
        FlowNode("first", queue="etl", job="step"),
        FlowNode("second", queue="etl", job="step", after=["first"]),
    ],
)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """With files: what an interrupt breaks off in a database in memory leaves its tables locked."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


@pytest.fixture
def gate(run_worker: RunWorker) -> Iterator[threading.Event]:
    """Opens the handler of the flow, which waits."""
    opened = threading.Event()

    def step(ctx: Context) -> str:
        while not ctx.cancelled.is_set() and not opened.wait(0.02):
            pass
        return str(ctx.node)

    run_worker(["etl"], {"step": step}, lease=timedelta(seconds=1))
    yield opened
    opened.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a step begins to wait for its flow."""
    begun, announce = threading.Event(), flow_run._announce

    def told(*given: Any) -> None:
        announce(*given)
        begun.set()

    monkeypatch.setattr(flow_run, "_announce", told)
    return begun


def run_interrupted(glidemq: GlideMQResource, instance: dg.DagsterInstance) -> list[str]:
    """Run the flow ``mine`` in a step that is terminated; returns what it logs."""

    @dg.asset
    def step(context: dg.AssetExecutionContext) -> None:
        glidemq.run_flow(context, TWO, flow_id="mine")

    with pytest.raises((dg.DagsterExecutionInterruptedError, KeyboardInterrupt)):
        dg.materialize([step], instance=instance)
    return [entry.user_message for entry in instance.all_logs(instance.get_runs(limit=1)[0].run_id)]


def error_of(result: dg.ExecuteInProcessResult) -> tuple[str, str]:
    (event,) = result.get_step_failure_events()
    failure: Any = event.step_failure_data.user_failure_data
    assert failure is not None, event.step_failure_data.error
    return failure.metadata["glidemq/error"].value, failure.description


def wait_for(predicate: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while not (found := predicate()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)
    return found


def test_the_first_event_names_the_flow_and_the_flow_names_the_run(
    url: str, instance: dg.DagsterInstance, gate: threading.Event
) -> None:
    gate.set()
    glidemq = GlideMQResource(url=url, dashboard_url="https://mq/f/{flow_id}")
    result = run_op(
        glidemq, instance, lambda context, res: res.run_flow(context, TWO, flow_id="a b").status.labels
    )
    labels = result.output_for_node("step")
    assert labels == {
        "dagster_run": result.run_id,
        "dagster_root_run": result.run_id,
        "dagster_job": "job",
        "dagster_step": "step",
    }
    logs = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    (event,) = [one.dagster_event for one in logs if one.dagster_event and one.dagster_event.step_key]
    metadata: Any = event.engine_event_data.metadata
    assert event.message == "Flow a b (two) has 2 nodes on queue etl"
    assert metadata["glidemq/flow"].value == "https://mq/f/a%20b"
    assert metadata["glidemq/nodes"].value == 2


@pytest.mark.long
def test_what_a_worker_logs_or_raises_forges_no_event(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    forged = "\n2026-01-01 - dagster - ERROR - job - all \x1b[31mis lost"

    def step(ctx: Context) -> None:
        ctx.log(f"a line{forged}")
        raise ValueError(f"broken{forged}")

    run_worker(["etl"], {"step": step})
    result = run_op(GlideMQResource(url=url), instance, lambda context, res: res.run_flow(context, TWO))
    texts = [entry.user_message for entry in instance.all_logs(result.run_id)]
    _, description = error_of(result)
    shown = [text for text in (*texts, description) if "is lost" in text]
    assert len(shown) >= 3, "the log of the node, its end, the failure of the step"
    assert not [text for text in shown if "\n2026" in text or "\x1b" in text]


@pytest.mark.long
def test_labels_of_the_flow_s_own_stay(url: str, instance: dg.DagsterInstance, gate: threading.Event) -> None:
    gate.set()
    own = {f"k{number}": "v" for number in range(14)} | {"dagster_job": "mine"}
    spec = FlowSpec("two", TWO.nodes, labels=own)
    result = run_op(
        GlideMQResource(url=url), instance, lambda context, res: res.run_flow(context, spec).status.labels
    )
    assert result.output_for_node("step") == own | {"dagster_run": result.run_id}


@pytest.mark.long
def test_the_server_may_be_away_while_results_are_read(
    tmp_path: Path, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    server = EmbeddedServer(data_dir=tmp_path / "data").start()
    port = int(server.url.rsplit(":", 1)[1])
    again = EmbeddedServer(data_dir=tmp_path / "data", port=port)
    back = threading.Timer(1.0, again.start)

    def body(context: dg.OpExecutionContext, res: GlideMQResource) -> Any:
        found: dict[str, Any] = {}
        for change in res.stream_flow(context, TWO):
            if back.ident is None:
                server.stop()
                back.start()
            found |= change.results()
        return found

    run_worker(["etl"], {"step": lambda ctx: str(ctx.node)}, url=server.url)
    try:
        result = run_op(GlideMQResource(url=server.url), instance, body)
        assert result.output_for_node("step") == {"first": "first", "second": "second"}
    finally:
        if back.ident:
            back.join()
        again.stop()


@pytest.mark.long
def test_a_consumer_that_takes_its_time_misses_none_and_is_told_at_once(
    url: str, instance: dg.DagsterInstance, gate: threading.Event
) -> None:
    gate.set()

    def body(context: dg.OpExecutionContext, res: GlideMQResource) -> Any:
        told, waited = [], []
        for change in res.stream_flow(context, FlowSpec("one", TWO.nodes[:1])):
            told += [node.name for node in change.ended]
            time.sleep(1.5)
            waited.append(time.monotonic())
        return told, time.monotonic() - waited[-1]

    told, after = run_op(GlideMQResource(url=url), instance, body).output_for_node("step")
    assert (told, after < 1) == (["first"], True)


def test_a_flow_that_nobody_serves_is_warned_of_and_ended(
    url: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "EVERY_SECONDS", 0.1)
    monkeypatch.setattr(following, "WARN_AFTER_SECONDS", 0.1)
    glidemq = GlideMQResource(url=url, require_workers=False, worker_timeout=4)
    result = run_op(glidemq, instance, lambda context, res: res.run_flow(context, TWO, flow_id="mine"))
    name, text = error_of(result)
    assert name == "QueueNotServed"
    assert "no worker serves queue etl" in text
    lines = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert sum("flow mine waits: no worker serves queue etl" in line for line in lines) == 1
    with FlowProducer(url) as producer:
        assert producer.get("mine").status().state == "cancelled"


def test_a_flow_whose_only_worker_goes_is_ended(
    url: str, instance: dg.DagsterInstance, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "EVERY_SECONDS", 0.1)
    held = threading.Event()
    worker = run_worker(["etl"], {"step": lambda _: held.wait(20)}, shutdown_timeout=timedelta(0))

    def body(context: dg.OpExecutionContext, res: GlideMQResource) -> Any:
        threading.Timer(1.0, worker.stop).start()
        return res.run_flow(context, TWO)

    assert error_of(run_op(GlideMQResource(url=url, worker_timeout=2), instance, body))[0] == "QueueNotServed"
    held.set()


def interrupt_when(event: Callable[[], Any]) -> threading.Thread:
    def go() -> None:
        wait_for(event)
        os.kill(os.getpid(), signal.SIGINT)  # how Dagster terminates the process of a step

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread


@pytest.mark.long
@pytest.mark.parametrize("moment", ["in a call", "between two tries"])
def test_a_termination_while_the_server_is_away_is_made_up_for(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    waits: threading.Event,
    *,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    monkeypatch.setattr(steps, "reconnect_pauses", lambda: repeat(0.5))
    server = EmbeddedServer(data_dir=tmp_path / "data").start()
    port = int(server.url.rsplit(":", 1)[1])
    again = EmbeddedServer(data_dir=tmp_path / "data", port=port)
    back, url = threading.Timer(1.0, again.start), server.url
    glidemq = GlideMQResource(url=url, require_workers=False)

    def is_there() -> bool:
        if not waits.is_set():
            return False
        server.stop()
        if moment == "between two tries":
            wait_for(lambda: "retrying in" in caplog.text)  # logged before the pause
        back.start()
        return True

    thread = interrupt_when(is_there)
    try:
        run_interrupted(glidemq, instance)
        thread.join(30)
        with FlowProducer(url) as producer:
            assert producer.get("mine").status().state == "cancelled"
    finally:
        if back.ident:
            back.join()
        again.stop()


@pytest.mark.parametrize("other", ["somebody else", "a run that has ended"])
def test_a_termination_leaves_a_flow_that_others_want(
    url: str, instance: dg.DagsterInstance, gate: threading.Event, waits: threading.Event, other: str
) -> None:
    ended = run_op(GlideMQResource(url=url), instance, lambda *_: None).run_id
    name = "ada" if other == "somebody else" else f"Dagster run {ended}, step step"

    def own() -> bool:
        if not waits.is_set():
            return False
        with FlowProducer(url) as producer:
            producer.get("mine", owner=Owner(name)).renew()
            return len(producer.get("mine").owners()) == 2

    thread = interrupt_when(own)
    lines = run_interrupted(GlideMQResource(url=url), instance)
    thread.join(30)
    with FlowProducer(url) as producer:
        assert producer.get("mine").status().state == ("running" if other == "somebody else" else "cancelled")
    assert ("Flow mine is not cancelled: flow mine continues for ada" in lines) is (other == "somebody else")
    assert not gate.is_set()


@pytest.mark.long
@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize("ending", sampled(["report_run_canceling", "report_run_failed", "delete"]))
def test_a_step_whose_run_has_ended_ends_without_a_signal(
    url: str,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    *,
    waits: threading.Event,
    ending: str,
) -> None:
    monkeypatch.setattr(flow_run, "POLL_SECONDS", 0.2)

    def end() -> None:
        waits.wait(30)
        time.sleep(1)
        (run,) = instance.get_runs(limit=1)
        if ending == "delete":
            instance.run_storage.delete_run(run.run_id)
        else:
            getattr(instance, ending)(run)

    ender = threading.Thread(target=end)
    ender.start()
    # Dagster looks for the run at its end, too.
    with suppress(CheckError, dg.DagsterExecutionInterruptedError):
        glidemq = GlideMQResource(url=url)
        run_op(glidemq, instance, lambda context, res: res.run_flow(context, TWO, flow_id="mine"))
    ender.join()
    with FlowProducer(url) as producer:
        status = producer.get("mine").status()
    assert (status.state, status.reason.endswith("was terminated")) == ("cancelled", True)


@pytest.mark.long
@pytest.mark.parametrize("is_canceled", [True, False])
def test_the_last_step_of_a_canceled_run_cancels_what_its_steps_share(
    url: str,
    instance: dg.DagsterInstance,
    run_worker: RunWorker,
    is_canceled: bool,  # noqa: FBT001
) -> None:
    run_worker(["etl"], {"step": lambda ctx: ctx.node == "first" or ctx.cancelled.wait(30)})

    def body(context: dg.OpExecutionContext, res: GlideMQResource) -> None:
        changes: Any = res.stream_flow(context, TWO, flow_id="mine")
        next(changes)
        with FlowProducer(url) as producer:
            producer.get("mine", owner=Owner(f"Dagster run {context.run.run_id}, step other")).renew()
        if is_canceled:
            context.instance.report_run_canceling(context.run)
        changes.close()

    run_op(GlideMQResource(url=url), instance, body)
    with FlowProducer(url) as producer:
        assert producer.get("mine").status().state == ("cancelled" if is_canceled else "running")
        producer.get("mine").cancel()


@pytest.mark.long
def test_a_flow_that_somebody_else_began_is_not_cancelled(
    url: str, instance: dg.DagsterInstance, gate: threading.Event, waits: threading.Event
) -> None:
    with FlowProducer(url) as producer:
        flow = producer.submit(TWO, flow_id="mine")
        thread = interrupt_when(waits.is_set)
        run_interrupted(GlideMQResource(url=url), instance)
        thread.join(30)
        assert flow.status().state == "running"
        assert flow.owners() == []
    assert not gate.is_set()


@pytest.mark.long
def test_a_generation_of_a_person_is_followed_and_not_cancelled(
    url: str, instance: dg.DagsterInstance, gate: threading.Event, waits: threading.Event
) -> None:
    with FlowProducer(url) as producer:

        def restarted() -> bool:
            if not waits.is_set():
                return False
            producer.get("mine").restart(idempotency_key="a click")
            time.sleep(2)
            return True

        thread = interrupt_when(restarted)
        lines = run_interrupted(GlideMQResource(url=url), instance)
        thread.join(30)
        assert any("which this task waits for now" in line for line in lines)
        assert any("another client has begun flow mine" in line for line in lines)
        assert [one.state for one in producer.get("mine").history()] == ["cancelled", "running"]
        assert not gate.is_set()
        producer.get("mine").cancel()


@pytest.mark.long
class TestChanged:
    """Re-executions from failure of flows that are not what they were."""

    @pytest.fixture
    def broken(self, run_worker: RunWorker) -> list[str]:
        """What fails, once."""
        names = ["report"]

        def step(ctx: Context) -> str:
            if ctx.node in names:
                names.remove(str(ctx.node))
                raise ValueError("broken")
            if ctx.node == "load":
                ctx.flow.add_nodes([FlowNode("more", queue="etl", job="step")], before=["report"])
            return str(ctx.node)

        run_worker(["etl"], {"step": step})
        return names

    @pytest.mark.parametrize("attempts", [1, 3], ids=["grown", "with other options"])
    def test_it_goes_on(
        self, url: str, instance: dg.DagsterInstance, broken: list[str], attempts: int
    ) -> None:
        def flow(attempts: int) -> FlowSpec:
            options = JobOptions(attempts=attempts)
            return FlowSpec(
                "grows",
                [
                    FlowNode("load", queue="etl", job="step"),
                    FlowNode("report", queue="etl", job="step", after=["load"], options=options),
                ],
            )

        specs = [flow(1), flow(attempts)]
        assets = glidemq_flow_assets(flow=flow(1), build=lambda _: specs.pop(0), nodes=["load"])
        defs = dg.Definitions(
            assets=[assets],
            jobs=[dg.define_asset_job("all")],
            resources={"glidemq": GlideMQResource(url=url)},
        )
        job = defs.resolve_job_def("all")
        first = job.execute_in_process(instance=instance, raise_on_error=False)
        assert (first.success, broken) == (False, [])
        parent = first.run_id
        second = job.execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey("report")],
            tags={
                "dagster/root_run_id": parent,
                "dagster/parent_run_id": parent,
                "dagster/is_asset_resume_retry": "true",
            },
            raise_on_error=False,
        )
        assert second.success
        assert [one.asset_key for one in second.get_asset_materialization_events()] == [dg.AssetKey("report")]
