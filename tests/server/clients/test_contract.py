"""One contract for the blocking and the awaitable clients: same names, same signatures, same behaviour."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    AsyncBroadcast,
    AsyncClient,
    AsyncEventReader,
    AsyncFlow,
    AsyncFlowProducer,
    AsyncQueue,
    AsyncSchedules,
    Broadcast,
    Client,
    EventReader,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
    Queue,
    Schedules,
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
AT_ONCE = ("__init__", "watch", "watch_batches", "queue", "events", "schedules", "broadcast")
PAIRS = [
    (Queue, AsyncQueue),
    (FlowProducer, AsyncFlowProducer),
    (Client, AsyncClient),
    (Flow, AsyncFlow),
    (EventReader, AsyncEventReader),
    (Schedules, AsyncSchedules),
    (Broadcast, AsyncBroadcast),
]


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


@pytest.mark.parametrize(("sync", "other"), PAIRS)
def test_both_kinds_have_the_same_methods_with_the_same_signatures(sync: type, other: type) -> None:
    names = {name for name, _ in inspect.getmembers(sync, inspect.isfunction) if not name.startswith("_")}
    assert names == {
        name for name, _ in inspect.getmembers(other, inspect.isfunction) if not name.startswith("_")
    }
    assert names
    for name in [*names, "__init__"]:
        one, two = inspect.signature(getattr(sync, name)), inspect.signature(getattr(other, name))
        if name != "__init__" or sync is not Flow:
            assert list(one.parameters.values()) == list(two.parameters.values()), name
            assert str(one.return_annotation) == str(two.return_annotation).replace("Async", ""), name
        assert inspect.iscoroutinefunction(getattr(other, name)) == (name not in AT_ONCE), name


@pytest.mark.parametrize(("sync", "other"), PAIRS)
def test_both_kinds_have_the_same_properties(sync: type, other: type) -> None:
    found = [
        {name for name, _ in inspect.getmembers(kind, lambda v: isinstance(v, property))}
        for kind in (sync, other)
    ]
    assert found[0] == found[1]


class TestQueues:
    def test_an_added_job_waits_with_its_data(self, clients: Clients) -> None:
        queue = clients.queue()
        job_id = clients.do(queue.add("work", {"month": 1}))
        job = clients.do(queue.get_job(job_id))
        assert (job.name, job.state, job.data, job.queue) == ("work", JobState.WAITING, {"month": 1}, "etl")
        assert (job.result, job.failed_reason, job.attempts_made, job.flow_id) == (None, None, 0, None)
        assert job.created_at is not None

    def test_a_job_may_have_its_own_id_once(self, clients: Clients, dump: Dump) -> None:
        queue = clients.queue()
        assert clients.do(queue.add("work", 1, options=JobOptions(job_id="own"))) == "own"
        before = dump()
        with pytest.raises(InvalidJob, match="'own' already exists"):
            clients.do(queue.add("work", 2, options=JobOptions(job_id="own")))
        assert dump() == before
        assert clients.do(queue.get_job("own")).data == 1

    def test_a_delayed_job_is_delayed(self, clients: Clients) -> None:
        queue = clients.queue()
        job_id = clients.do(queue.add("work", options=JobOptions(delay=timedelta(hours=1), attempts=3)))
        job = clients.do(queue.get_job(job_id))
        assert (job.state, job.max_attempts) == (JobState.DELAYED, 3)

    def test_a_missing_job_is_reported(self, clients: Clients) -> None:
        with pytest.raises(JobNotFound, match="no job 99"):
            clients.do(clients.queue().get_job("99"))

    def test_prefixes_are_worlds_of_their_own(self, clients: Clients) -> None:
        job_id = clients.do(clients.queue(prefix="mine").add("work"))
        with pytest.raises(JobNotFound):
            clients.do(clients.queue().get_job(job_id))

    def test_a_job_runs_and_keeps_its_result(
        self, clients: Clients, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        run_worker(["etl"], {"double": lambda ctx: int(str(ctx.data)) * 2})
        queue = clients.queue()
        job_id = clients.do(queue.add("double", 21))
        eventually(lambda: clients.do(queue.get_job(job_id)).state == JobState.COMPLETED)
        job = clients.do(queue.get_job(job_id))
        assert (job.result, job.attempts_made) == (42, 0)
        # Two clients know the server's time within the round trip in which they asked for it.
        assert job.created_at - timedelta(milliseconds=20) <= job.started_at <= job.finished_at


class TestFlows:
    def test_a_flow_is_submitted_watched_and_read(self, clients: Clients, run_worker: RunWorker) -> None:
        run_worker(["etl"], {"work": lambda ctx: [ctx.data, dict(ctx.inputs)]})
        found = clients.do(clients.flows().submit(flow(), flow_id="f-1"))
        outcome = clients.do(found.wait(timeout=LONG))
        assert (found.id, found.home) == ("f-1", "etl")
        assert outcome.status.state is FlowState.COMPLETED
        assert outcome.results == {"a": [None, {}], "b": [{"x": 1}, {"a": [None, {}]}]}
        assert outcome.failed == []
        status = clients.do(found.status())
        assert (status.id, status.name, status.total, status.completed, status.failed) == (
            "f-1",
            "nightly",
            2,
            2,
            0,
        )
        assert status.created_at <= status.finished_at
        assert clients.do(found.result(timeout=LONG)) == clients.do(found.results()) == outcome.results
        nodes = clients.do(found.nodes())
        assert [(node.name, node.after, node.job_id) for node in nodes] == [
            ("a", (), "f-1~a"),
            ("b", ("a",), "f-1~b"),
        ]
        assert all(node.state is JobState.COMPLETED and node.seconds is not None for node in nodes)
        assert clients.do(found.outcome()) == outcome

    def test_the_status_of_many_flows_at_once(self, clients: Clients, redis_client: Any) -> None:
        flows = clients.flows()
        handles = [clients.do(flows.submit(flow(), flow_id=f"f-{number}")) for number in range(3)]
        clients.do(handles[1].restart())
        clients.do(handles[2].cancel("enough"))
        gone = clients.do(flows.submit(flow(), flow_id="gone"))
        redis_client.delete("glide:{etl}:gmo:flow:gone")
        found = clients.do(flows.statuses([*handles, gone]))
        assert [one and (one.id, one.generation, one.state) for one in found] == [
            ("f-0", 0, "running"), ("f-1", 1, "running"), ("f-2", 0, "cancelled"), None,
        ]  # fmt: skip
        assert clients.do(flows.statuses([])) == []

    def test_a_flow_without_an_id_gets_one(self, clients: Clients) -> None:
        flows = clients.flows()
        one, two = clients.do(flows.submit(flow())), clients.do(flows.submit(flow()))
        assert one.id != two.id
        assert clients.do(clients.do(flows.get(one.id)).status()).total == 2

    def test_what_asks_for_nothing_or_for_something_else_is_refused(
        self, clients: Clients, dump: Dump
    ) -> None:
        flows: Any = clients.flows()
        handle = clients.do(flows.submit(flow(), flow_id="f1"))
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
                clients.do(call())
        assert dump() == before

    def test_the_same_flow_again_attaches(self, clients: Clients, dump: Dump) -> None:
        flows = clients.flows()
        clients.do(flows.submit(flow(), flow_id="f"))
        before = dump()
        again = clients.do(flows.submit(flow(), flow_id="f"))
        assert again.id == "f"
        assert dump() == before

    def test_another_flow_under_the_id_is_refused_and_nothing_changed(
        self, clients: Clients, dump: Dump
    ) -> None:
        flows = clients.flows()
        clients.do(flows.submit(flow(), flow_id="f"))
        before = dump()
        with pytest.raises(FlowConflict, match="flow id f belongs to another flow"):
            clients.do(flows.submit(flow(job="other"), flow_id="f"))
        with pytest.raises(FlowConflict):  # another home
            clients.do(
                flows.submit(FlowSpec("nightly", [FlowNode("a", queue="elsewhere", job="work")]), flow_id="f")
            )
        assert dump() == before

    def test_an_unknown_flow_is_reported(self, clients: Clients) -> None:
        with pytest.raises(FlowNotFound, match="no flow nowhere"):
            clients.do(clients.flows().get("nowhere"))

    def test_a_failure_is_raised_by_result_and_returned_by_wait(
        self, clients: Clients, run_worker: RunWorker
    ) -> None:
        def work(ctx: Any) -> None:
            raise ValueError("boom")

        run_worker(["etl"], {"work": work})
        found = clients.do(clients.flows().submit(flow(), flow_id="f"))
        outcome = clients.do(found.wait(timeout=LONG))
        assert outcome.status.state is FlowState.FAILED
        with pytest.raises(FlowFailed, match="flow f failed: a: ValueError: boom") as failed:
            clients.do(found.result(timeout=LONG))
        assert [(node.name, node.reason) for node in failed.value.failed] == [
            ("a", "ValueError: boom"),
            ("b", "upstream failed: a"),
        ]

    def test_a_cancelled_flow_ends_and_says_why(self, clients: Clients) -> None:
        found = clients.do(clients.flows().submit(flow(), flow_id="f"))
        assert clients.do(found.cancel("too late")) is FlowState.RUNNING
        assert clients.do(found.cancel("again")) is FlowState.CANCELLED
        with pytest.raises(FlowCancelled, match="too late"):
            clients.do(found.result(timeout=LONG))

    def test_retrying_a_flow_that_runs_does_nothing(self, clients: Clients, dump: Dump) -> None:
        found = clients.do(clients.flows().submit(flow(), flow_id="f"))
        before = dump()
        assert clients.do(found.retry_failed()) is FlowState.RUNNING
        assert dump() == before

    def test_waiting_too_long_is_reported_and_the_flow_goes_on(self, clients: Clients) -> None:
        found = clients.do(clients.flows().submit(flow(), flow_id="f"))
        with pytest.raises(WaitTimeout, match="flow f is still running: 0 of 2 nodes completed after 20 ms"):
            clients.do(found.wait(timeout=timedelta(milliseconds=20)))
        with pytest.raises(WaitTimeout):
            clients.do(found.wait(timeout=timedelta(0)))
        assert clients.do(found.status()).state is FlowState.RUNNING

    def test_labels_come_back(self, clients: Clients) -> None:
        spec = FlowSpec("n", [FlowNode("a", queue="etl", job="work")], labels={"dag": "täglich", "try": "1"})
        found = clients.do(clients.flows().submit(spec))
        assert clients.do(found.status()).labels == {"dag": "täglich", "try": "1"}

    def test_missing_workers_and_handlers_are_reported_and_nothing_is_written(
        self, clients: Clients, run_worker: RunWorker, dump: Dump
    ) -> None:
        flows = clients.flows()
        with pytest.raises(QueueNotServed, match="queue etl"):
            clients.do(flows.submit(flow(), require_workers=True))
        assert dump() == {}
        running = run_worker(["etl"], {"other": lambda ctx: 1})
        before = {key: value for key, value in dump().items() if not is_a_workers(key)}
        with pytest.raises(HandlerNotFound, match=r"no handler for job work \(known: other\)"):
            clients.do(flows.submit(flow(), require_workers=True))
        assert {key: value for key, value in dump().items() if not is_a_workers(key)} == before
        clients.do(flows.submit(flow(job="other"), require_workers=True))
        running.stop()
        with pytest.raises(QueueNotServed):
            clients.do(flows.submit(flow(job="other"), require_workers=True))

    def test_a_bad_flow_is_refused_before_anything_is_sent(self, clients: Clients, dump: Dump) -> None:
        with pytest.raises(CycleError):
            clients.do(clients.flows().submit(flow("b")))
        assert dump() == {}


class TestEvents:
    def test_a_reader_sees_what_happens_after_its_start(self, clients: Clients) -> None:
        queue, reader = clients.queue(), clients.events()
        clients.do(queue.add("before"))
        start = clients.do(reader.start())
        assert clients.do(reader.start()) == start == reader.position
        assert clients.do(reader.read()) == []
        job_id = clients.do(queue.add("work"))
        (event,) = clients.do(reader.read(timedelta(seconds=5)))
        assert (event.kind, event.job_id, event.fields["name"]) == ("added", job_id, "work")
        assert reader.position == event.id
        assert clients.do(reader.read(timedelta(milliseconds=5))) == []

    def test_a_position_can_be_kept_and_used_again(self, clients: Clients) -> None:
        queue = clients.queue()
        for name in ("one", "two", "three"):
            clients.do(queue.add(name))
        first = clients.do(clients.events(position="0-0").read())
        assert [event.fields["name"] for event in first] == ["one", "two", "three"]
        rest = clients.do(clients.events(position=first[0].id).read())
        assert [event.fields["name"] for event in rest] == ["two", "three"]

    def test_a_reader_of_a_silent_queue_starts_with_its_first_event(self, clients: Clients) -> None:
        reader = clients.events()
        assert clients.do(reader.start()) == "0-0"
        clients.do(clients.queue().add("work"))
        assert len(clients.do(reader.read(timedelta(seconds=5)))) == 1

    def test_a_hundred_events_are_read_at_a_time(self, clients: Clients) -> None:
        queue, reader = clients.queue(), clients.events(position="0-0")
        for _ in range(101):
            clients.do(queue.add("work"))
        assert [len(clients.do(reader.read())) for _ in range(3)] == [100, 1, 0]

    def test_the_end_of_a_flow_is_an_event_of_its_home(self, clients: Clients, run_worker: RunWorker) -> None:
        reader = clients.events()
        clients.do(reader.start())
        run_worker(["etl"], {"work": lambda ctx: 1})
        clients.do(clients.do(clients.flows().submit(flow(), flow_id="f")).wait(timeout=LONG))
        ends = [event for event in clients.do(reader.read(LONG)) if event.flow_id]
        assert [(event.kind, event.flow_id, event.job_id) for event in ends] == [("flow.completed", "f", "")]


class TestConnections:
    def test_a_server_that_is_down_is_reported_with_its_place(self, clients: Clients) -> None:
        down = "valkey://user:hunter2@127.0.0.1:1"
        queue, flows = clients.queue(url=down), clients.flows(url=down)
        with pytest.raises(ConnectionFailed, match=r"//\*\*\*@127.0.0.1:1") as failed:
            clients.do(queue.add("x"))
        with pytest.raises(ConnectionFailed):
            clients.do(flows.get("x"))
        assert "hunter2" not in str(failed.value)

    def test_a_bad_password_is_a_setting(self, clients: Clients, url: str) -> None:
        queue = clients.queue(url=url.replace("//", "//nobody:hunter2@"))
        with pytest.raises(ConfigurationError, match="refused the user or password") as refused:
            clients.do(queue.add("x"))
        assert "hunter2" not in str(refused.value)

    def test_a_client_leaves_no_connection_behind(
        self, clients: Clients, redis_client: Any, eventually: Eventually
    ) -> None:
        before = len(redis_client.client_list())
        queue = clients.queue()

        async def many() -> None:
            await asyncio.gather(*(queue.add("work") for _ in range(20)))

        if clients.kind == "async":
            clients.do(many())
        else:
            threads = [threading.Thread(target=queue.add, args=("work",)) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert redis_client.xlen("glide:{etl}:stream") == 20
        clients.do(queue.close())
        clients.do(queue.close())
        eventually(lambda: len(redis_client.client_list()) == before)
        assert clients.do(queue.add("work"))

    def test_a_client_opens_nothing_before_its_first_call(self, clients: Clients) -> None:
        clients.queue(url="valkey://127.0.0.1:1")
        clients.flows(url="valkey://127.0.0.1:1")


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
