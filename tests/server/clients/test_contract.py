"""What clients do; what is not the same by construction (``test_twins.py``) with each of the two kinds."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    FlowNode,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
    Queue,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    CycleError,
    FlowCancelled,
    FlowConflict,
    FlowFailed,
    FlowNotFound,
    HandlerNotFound,
    InvalidJob,
    JobNotFound,
    QueueNotServed,
    WaitTimeout,
)

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Dump

LONG = timedelta(seconds=30)


def is_a_workers(key: str) -> bool:
    """What a worker writes about itself and its chores, at times of its own."""
    return ":w:" in key or ":gmo:supervis" in key


def flow(*after: str, job: str = "work") -> FlowSpec:
    return FlowSpec(
        "nightly",
        [
            FlowNode("a", queue="etl", job=job),
            FlowNode("b", queue="etl", job=job, data={"x": 1}, after=["a", *after]),
        ],
    )


class TestQueues:
    def test_an_added_job_waits_with_its_data(self, clients: Clients) -> None:
        queue = clients.queue()
        job_id = queue.add("work", {"month": 1})
        job = queue.get_job(job_id)
        assert (job.name, job.state, job.data, job.queue) == ("work", JobState.WAITING, {"month": 1}, "etl")
        assert (job.result, job.failed_reason, job.attempts_made, job.flow_id) == (None, None, 0, None)
        assert job.created_at is not None

    def test_a_job_may_have_its_own_id_once(self, clients: Clients, dump: Dump) -> None:
        queue = clients.queue()
        assert queue.add("work", 1, options=JobOptions(job_id="own")) == "own"
        before = dump()
        with pytest.raises(InvalidJob, match="'own' already exists"):
            queue.add("work", 2, options=JobOptions(job_id="own"))
        assert dump() == before
        assert queue.get_job("own").data == 1

    def test_a_delayed_job_is_delayed(self, clients: Clients) -> None:
        queue = clients.queue()
        job_id = queue.add("work", options=JobOptions(delay=timedelta(hours=1), attempts=3))
        job = queue.get_job(job_id)
        assert (job.state, job.max_attempts) == (JobState.DELAYED, 3)

    def test_a_missing_job_is_reported(self, clients: Clients) -> None:
        with pytest.raises(JobNotFound, match="no job 99"):
            clients.queue().get_job("99")

    def test_prefixes_are_worlds_of_their_own(self, clients: Clients) -> None:
        job_id = clients.queue(prefix="mine").add("work")
        with pytest.raises(JobNotFound):
            clients.queue().get_job(job_id)

    def test_a_job_runs_and_keeps_its_result(
        self, twins: Clients, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        run_worker(["etl"], {"double": lambda ctx: int(str(ctx.data)) * 2})
        queue = twins.queue()
        job_id = twins.do(queue.add("double", 21))
        eventually(lambda: twins.do(queue.get_job(job_id)).state == JobState.COMPLETED)
        job = twins.do(queue.get_job(job_id))
        assert (job.result, job.attempts_made) == (42, 0)
        # Two twins know the server's time within the round trip in which they asked for it.
        assert job.created_at - timedelta(seconds=1) <= job.started_at <= job.finished_at


class TestFlows:
    def test_a_flow_is_submitted_watched_and_read(self, twins: Clients, run_worker: RunWorker) -> None:
        run_worker(["etl"], {"work": lambda ctx: [ctx.data, dict(ctx.inputs)]})
        found = twins.do(twins.flows().submit(flow(), flow_id="f-1"))
        outcome = twins.do(found.wait(timeout=LONG))
        assert (found.id, found.home) == ("f-1", "etl")
        assert outcome.status.state is FlowState.COMPLETED
        assert outcome.results == {"a": [None, {}], "b": [{"x": 1}, {"a": [None, {}]}]}
        assert outcome.failed == []
        status = twins.do(found.status())
        assert (status.id, status.name, status.total, status.completed, status.failed) == (
            "f-1",
            "nightly",
            2,
            2,
            0,
        )
        assert status.created_at <= status.finished_at
        assert twins.do(found.result(timeout=LONG)) == twins.do(found.results()) == outcome.results
        nodes = twins.do(found.nodes())
        assert [(node.name, node.after, node.job_id) for node in nodes] == [
            ("a", (), "f-1~a"),
            ("b", ("a",), "f-1~b"),
        ]
        assert all(node.state is JobState.COMPLETED and node.seconds is not None for node in nodes)
        assert twins.do(found.outcome()) == outcome

    def test_the_status_of_many_flows_at_once(self, clients: Clients, redis_client: Any) -> None:
        flows = clients.flows()
        handles = [flows.submit(flow(), flow_id=f"f-{number}") for number in range(3)]
        handles[1].restart()
        handles[2].cancel("enough")
        gone = flows.submit(flow(), flow_id="gone")
        redis_client.delete("glide:{etl}:gmo:flow:gone")
        found = flows.statuses([*handles, gone])
        assert [one and (one.id, one.generation, one.state) for one in found] == [
            ("f-0", 0, "running"), ("f-1", 1, "running"), ("f-2", 0, "cancelled"), None,
        ]  # fmt: skip
        assert flows.statuses([]) == []

    def test_a_flow_without_an_id_gets_one(self, clients: Clients) -> None:
        flows = clients.flows()
        one, two = flows.submit(flow()), flows.submit(flow())
        assert one.id != two.id
        assert flows.get(one.id).status().total == 2

    def test_what_asks_for_nothing_or_for_something_else_is_refused(
        self, clients: Clients, dump: Dump
    ) -> None:
        flows: Any = clients.flows()
        handle = flows.submit(flow(), flow_id="f1")
        before = dump()
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: flows.submit(flow(), flow_id=""), "flow id '' is not valid"),
            (lambda: flows.submit(flow(), idempotency_key="r"), "idempotency_key needs a flow_id"),
            (lambda: handle.restart(nodes=[]), "nodes is empty"),
            (lambda: handle.restart(nodes="a"), "must be a list"),
            (lambda: handle.restart(generation=True), "generation must be"),
            (lambda: handle.retry_failed(generation=True), "generation must be"),
            (lambda: handle.cancel(generation=True), "generation must be"),
            (lambda: handle.rerun(5), "node must be str"),
            (lambda: handle.rerun("a", dependents="no"), "dependents must be bool"),
            (lambda: handle.rerun("a", generation="0"), "generation must be"),
            (lambda: handle.cancel_node("a", generation=True), "generation must be"),
            (lambda: handle.complete_node("a", generation=True), "generation must be"),
            (lambda: handle.skip_node("a", generation=True), "generation must be"),
        ]
        for call, message in refused:
            with pytest.raises(ConfigurationError, match=message):
                call()
        assert dump() == before

    def test_the_same_flow_again_attaches(self, clients: Clients, dump: Dump) -> None:
        flows = clients.flows()
        flows.submit(flow(), flow_id="f")
        before = dump()
        again = flows.submit(flow(), flow_id="f")
        assert again.id == "f"
        assert dump() == before

    def test_another_flow_under_the_id_is_refused_and_nothing_changed(
        self, clients: Clients, dump: Dump
    ) -> None:
        flows = clients.flows()
        flows.submit(flow(), flow_id="f")
        before = dump()
        with pytest.raises(FlowConflict, match="flow id f belongs to another flow"):
            flows.submit(flow(job="other"), flow_id="f")
        with pytest.raises(FlowConflict):  # another home
            flows.submit(FlowSpec("nightly", [FlowNode("a", queue="elsewhere", job="work")]), flow_id="f")
        assert dump() == before

    def test_an_unknown_flow_is_reported(self, clients: Clients) -> None:
        with pytest.raises(FlowNotFound, match="no flow nowhere"):
            clients.flows().get("nowhere")

    def test_a_failure_is_raised_by_result_and_returned_by_wait(
        self, twins: Clients, run_worker: RunWorker
    ) -> None:
        def work(ctx: Any) -> None:
            raise ValueError("boom")

        run_worker(["etl"], {"work": work})
        found = twins.do(twins.flows().submit(flow(), flow_id="f"))
        outcome = twins.do(found.wait(timeout=LONG))
        assert outcome.status.state is FlowState.FAILED
        with pytest.raises(FlowFailed, match="flow f failed: a: ValueError: boom") as failed:
            twins.do(found.result(timeout=LONG))
        assert [(node.name, node.reason) for node in failed.value.failed] == [
            ("a", "ValueError: boom"),
            ("b", "upstream failed: a"),
        ]

    def test_a_cancelled_flow_ends_and_says_why(self, clients: Clients) -> None:
        found = clients.flows().submit(flow(), flow_id="f")
        assert found.cancel("too late") is FlowState.RUNNING
        assert found.cancel("again") is FlowState.CANCELLED
        with pytest.raises(FlowCancelled, match="too late"):
            found.result(timeout=LONG)

    def test_retrying_a_flow_that_runs_does_nothing(self, clients: Clients, dump: Dump) -> None:
        found = clients.flows().submit(flow(), flow_id="f")
        before = dump()
        assert found.retry_failed() is FlowState.RUNNING
        assert dump() == before

    def test_waiting_too_long_is_reported_and_the_flow_goes_on(self, twins: Clients) -> None:
        found = twins.do(twins.flows().submit(flow(), flow_id="f"))
        with pytest.raises(WaitTimeout, match="flow f is still running: 0 of 2 nodes completed after 20 ms"):
            twins.do(found.wait(timeout=timedelta(milliseconds=20)))
        with pytest.raises(WaitTimeout):
            twins.do(found.wait(timeout=timedelta(0)))
        assert twins.do(found.status()).state is FlowState.RUNNING

    def test_waiting_too_long_names_what_a_node_waits_for(self, clients: Clients) -> None:
        found = clients.flows().submit(flow(), flow_id="f")
        with pytest.raises(WaitTimeout, match="after 1000 ms; node a waits: no live worker serves queue etl"):
            found.result(timeout=1)

    def test_labels_come_back(self, clients: Clients) -> None:
        spec = FlowSpec("n", [FlowNode("a", queue="etl", job="work")], labels={"dag": "täglich", "try": "1"})
        found = clients.flows().submit(spec)
        assert found.status().labels == {"dag": "täglich", "try": "1"}

    def test_missing_workers_and_handlers_are_reported_and_nothing_is_written(
        self, clients: Clients, run_worker: RunWorker, dump: Dump
    ) -> None:
        flows = clients.flows()
        with pytest.raises(QueueNotServed, match="queue etl"):
            flows.submit(flow(), require_workers=True)
        assert dump() == {}
        running = run_worker(["etl"], {"other": lambda ctx: 1})
        before = {key: value for key, value in dump().items() if not is_a_workers(key)}
        with pytest.raises(HandlerNotFound, match=r"no handler for job work \(known: other\)"):
            flows.submit(flow(), require_workers=True)
        assert {key: value for key, value in dump().items() if not is_a_workers(key)} == before
        flows.submit(flow(job="other"), require_workers=True)
        running.stop()
        with pytest.raises(QueueNotServed):
            flows.submit(flow(job="other"), require_workers=True)

    def test_a_flow_that_has_ended_needs_no_workers_to_be_joined(
        self, clients: Clients, run_worker: RunWorker
    ) -> None:
        flows, spec = clients.flows(), flow(job="other")
        running = run_worker(["etl"], {"other": lambda ctx: 1})
        assert flows.submit(spec, flow_id="f", require_workers=True).result(timeout=LONG) == {"a": 1, "b": 1}
        running.stop()
        assert flows.submit(spec, flow_id="f", require_workers=True).result(timeout=LONG) == {"a": 1, "b": 1}
        for how in ("restart", "retry_failed"):  # may run nodes
            with pytest.raises(QueueNotServed):
                flows.submit(spec, flow_id="f", on_existing=how, require_workers=True)
        with pytest.raises(FlowConflict):
            flows.submit(flow(job="another"), flow_id="f", require_workers=True)
        flows.submit(spec, flow_id="g")
        with pytest.raises(QueueNotServed):  # it has not ended
            flows.submit(spec, flow_id="g", require_workers=True)

    def test_a_bad_flow_is_refused_before_anything_is_sent(self, clients: Clients, dump: Dump) -> None:
        with pytest.raises(CycleError):
            clients.flows().submit(flow("b"))
        assert dump() == {}


class TestEvents:
    def test_a_reader_sees_what_happens_after_its_start(self, twins: Clients) -> None:
        queue, reader = twins.queue(), twins.events()
        twins.do(queue.add("before"))
        start = twins.do(reader.start())
        assert twins.do(reader.start()) == start == reader.position
        assert twins.do(reader.read()) == []
        job_id = twins.do(queue.add("work"))
        (event,) = twins.do(reader.read(timedelta(seconds=5)))
        assert (event.kind, event.job_id, event.fields["name"]) == ("added", job_id, "work")
        assert reader.position == event.id
        assert twins.do(reader.read(timedelta(milliseconds=5))) == []

    def test_a_position_can_be_kept_and_used_again(self, clients: Clients) -> None:
        queue = clients.queue()
        for name in ("one", "two", "three"):
            queue.add(name)
        first = clients.events(position="0-0").read()
        assert [event.fields["name"] for event in first] == ["one", "two", "three"]
        rest = clients.events(position=first[0].id).read()
        assert [event.fields["name"] for event in rest] == ["two", "three"]

    def test_a_reader_of_a_silent_queue_starts_with_its_first_event(self, clients: Clients) -> None:
        reader = clients.events()
        assert reader.start() == "0-0"
        clients.queue().add("work")
        assert len(reader.read(timedelta(seconds=5))) == 1

    def test_a_hundred_events_are_read_at_a_time(self, clients: Clients) -> None:
        queue, reader = clients.queue(), clients.events(position="0-0")
        for _ in range(101):
            queue.add("work")
        assert [len(reader.read()) for _ in range(3)] == [100, 1, 0]

    def test_the_end_of_a_flow_is_an_event_of_its_home(self, clients: Clients, run_worker: RunWorker) -> None:
        reader = clients.events()
        reader.start()
        run_worker(["etl"], {"work": lambda ctx: 1})
        clients.flows().submit(flow(), flow_id="f").wait(timeout=LONG)
        ends = [event for event in reader.read(LONG) if event.flow_id]
        assert [(event.kind, event.flow_id, event.job_id) for event in ends] == [("flow.completed", "f", "")]


class TestConnections:
    def test_a_server_that_is_down_is_reported_with_its_place(self, twins: Clients) -> None:
        down = "valkey://user:hunter2@127.0.0.1:1"
        queue, flows = twins.queue(url=down), twins.flows(url=down)
        with pytest.raises(ConnectionFailed, match=r"//\*\*\*@127.0.0.1:1") as failed:
            twins.do(queue.add("x"))
        with pytest.raises(ConnectionFailed):
            twins.do(flows.get("x"))
        assert "hunter2" not in str(failed.value)

    def test_a_bad_password_is_a_setting(self, twins: Clients, url: str) -> None:
        queue = twins.queue(url=url.replace("//", "//nobody:hunter2@"))
        with pytest.raises(ConfigurationError, match="refused the user or password") as refused:
            twins.do(queue.add("x"))
        assert "hunter2" not in str(refused.value)

    def test_a_client_leaves_no_connection_behind(
        self, twins: Clients, redis_client: Any, eventually: Eventually
    ) -> None:
        before = len(redis_client.client_list())
        queue = twins.queue()

        async def many() -> None:
            await asyncio.gather(*(queue.add("work") for _ in range(20)))

        if twins.kind == "async":
            twins.do(many())
        else:
            threads = [threading.Thread(target=queue.add, args=("work",)) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert redis_client.xlen("glide:{etl}:stream") == 20
        twins.do(queue.close())
        twins.do(queue.close())
        eventually(lambda: len(redis_client.client_list()) == before)
        assert twins.do(queue.add("work"))

    def test_a_client_opens_nothing_before_its_first_call(self, twins: Clients) -> None:
        twins.queue(url="valkey://127.0.0.1:1")
        twins.flows(url="valkey://127.0.0.1:1")


def test_a_forked_process_opens_connections_of_its_own(queue: Queue, redis_client: Any) -> None:
    queue.add("parent")
    before = {client["id"] for client in redis_client.client_list()}
    child = os.fork()
    if child == 0:
        try:
            queue.add("child")
            os._exit(0)
        except BaseException:  # noqa: BLE001  the exit code shows it
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.add("parent")
    assert redis_client.xlen("glide:{etl}:stream") == 3
    assert before <= {client["id"] for client in redis_client.client_list()}
