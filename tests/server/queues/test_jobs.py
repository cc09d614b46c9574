"""What can be done with one job."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
    NewJob,
    Ordering,
    Queue,
)
from glidemq_orchestrate.clients.queue import Usage
from glidemq_orchestrate.errors import (
    ConfigurationError,
    EncodeError,
    InvalidJob,
    JobNotFound,
    JobStateConflict,
    PayloadTooLarge,
)
from glidemq_orchestrate.jobs.option_values import JobRef
from tests.builders import NEAR
from tests.node import PlainNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.conftest import Clients, Dump

HOUR = timedelta(hours=1)
P = "glide:{etl}:"
A_FLOW = FlowSpec(
    "n", [FlowNode("a", queue="etl", job="a"), FlowNode("b", queue="etl", job="b", after=["a"])]
)


@pytest.fixture
def flow(flows: FlowProducer) -> Any:
    """A flow of two nodes; the id of a node's job is the flow's id, a tilde and its name."""
    return flows.submit(A_FLOW, flow_id="f")


CALLS: list[Callable[[Any, str], Any]] = [
    lambda queue, job_id: queue.retry(job_id),
    lambda queue, job_id: queue.revoke(job_id),
    lambda queue, job_id: queue.remove(job_id),
    lambda queue, job_id: queue.change_priority(job_id, 1),
    lambda queue, job_id: queue.change_delay(job_id, HOUR),
    lambda queue, job_id: queue.promote(job_id),
    lambda queue, job_id: queue.add_log(job_id, "x"),
    lambda queue, job_id: queue.set_progress(job_id, 1),
    lambda queue, job_id: queue.update_data(job_id, 1),
    lambda queue, job_id: queue.report_tokens(job_id, 1),
    lambda queue, job_id: queue.parents(job_id),
    lambda queue, job_id: queue.suspend_info(job_id),
    lambda queue, job_id: queue.add_output(job_id, {"a": "b"}),
    lambda queue, job_id: queue.tag(job_id, ["x"]),
    lambda queue, job_id: queue.track(job_id),
    lambda queue, job_id: queue.take_back(job_id),
    lambda queue, job_id: queue.history(job_id),
    lambda queue, job_id: queue.depends_on(job_id, ["1"]),
    lambda queue, job_id: queue.depends_off(job_id),
    lambda queue, job_id: queue.report_usage(job_id, Usage(tokens={"input": 1})),
]


LATE = {"lastActive": "1"}
STUB = {"data": "1", "opts": "{}", "gmo:flow": "f", "gmo:home": "glide:{etl}:", "gmo:removed": "failed\nwork"}


@pytest.mark.parametrize("left", [{}, LATE, STUB], ids=["nothing", "a late write", "a node"])
def test_a_job_that_is_missing_is_reported_and_not_made(
    clients: Clients, redis_client: Any, dump: Dump, left: dict[str, str]
) -> None:
    for call in CALLS:
        queue = clients.queue()
        if left:
            redis_client.hset("glide:{etl}:job:99", mapping=left)
        before = dump()
        with pytest.raises(JobNotFound, match="no job 99 in queue etl"):
            call(queue, "99")
        assert dump() == before


WRONG: list[tuple[Callable[[Any], Any], type[Exception]]] = [
    (lambda queue: queue.change_priority("1", 2049), InvalidJob),
    (lambda queue: queue.change_priority("1", -1), InvalidJob),
    (lambda queue: queue.change_delay("1", -HOUR), InvalidJob),
    (lambda queue: queue.add_log("1", "x" * 1_048_577), PayloadTooLarge),
    (lambda queue: queue.add_log("1", 5), InvalidJob),
    (lambda queue: queue.set_progress("1", {1: 2}), EncodeError),
    (lambda queue: queue.update_data("1", "x" * 1_048_577), PayloadTooLarge),
    (lambda queue: queue.report_tokens("1", -1), InvalidJob),
    (lambda queue: queue.signal("1", ""), InvalidJob),
    (lambda queue: queue.signal("1", "go", float("nan")), EncodeError),
    (lambda queue: queue.add_output("1", {}), InvalidJob),
    (lambda queue: queue.add_output("1", {"a": 1}), InvalidJob),
    (lambda queue: queue.add_output("1", {"a": "x" * 1_048_577}), PayloadTooLarge),
    (lambda queue: queue.read_output("1", limit=0), ConfigurationError),
    (lambda queue: queue.logs("1", limit=-1), ConfigurationError),
]


def test_invalid_values_are_refused_and_nothing_is_written(queue: Queue, dump: Dump) -> None:
    for call, error in WRONG:
        queue.add("a")
        before = dump()
        with pytest.raises(error):
            call(queue)
        assert dump() == before


class TestRetry:
    def test_a_failed_job_is_ready_immediately(self, clients: Clients, queue: Queue, node: PlainNode) -> None:
        job_id = queue.add("a", options=JobOptions(delay=timedelta(milliseconds=1)))
        queue.promote(job_id)
        node.end_as_failed(node.begin(job_id))
        clients.queue().retry(job_id)
        job = queue.get_job(job_id)
        assert (job.state, job.failed_reason, job.attempts_made, job.finished_at) == (
            "waiting",
            None,
            0,
            None,
        )
        assert queue.get_jobs(JobState.FAILED) == []
        node.end(node.begin(job_id))
        assert queue.get_job(job_id).state == JobState.COMPLETED

    def test_a_job_with_a_priority_goes_to_its_list(self, queue: Queue, node: PlainNode) -> None:
        job_id = queue.add("a", options=JobOptions(priority=4))
        node.promote(0)
        node.end_as_failed(node.begin_listed())
        queue.retry(job_id)
        assert node.begin_listed() == job_id

    def test_a_revoked_job_may_run_again(self, queue: Queue, node: PlainNode) -> None:
        job_id = queue.add("a")
        queue.revoke(job_id)
        queue.retry(job_id)
        assert not queue.get_job(job_id).revoked
        node.begin(job_id)

    def test_a_job_that_has_not_failed_is_left_alone(self, clients: Clients, dump: Dump) -> None:
        queue = clients.queue()
        job_id = queue.add("a")
        before = dump()
        with pytest.raises(JobStateConflict, match="is waiting, not failed") as raised:
            queue.retry(job_id)
        assert (raised.value.actual, dump()) == ("waiting", before)

    def test_a_node_of_a_flow_is_retried_with_its_flow(self, queue: Queue, flow: Any) -> None:
        flow.cancel("why")
        with pytest.raises(JobStateConflict, match="retry the flow"):
            queue.retry("f~a")


class TestRevoke:
    def test_a_waiting_job_fails_and_leaves_the_stream(
        self, clients: Clients, queue: Queue, redis_client: Any
    ) -> None:
        job_id = queue.add("a")
        assert clients.queue().revoke(job_id) == "revoked"
        job = queue.get_job(job_id)
        assert (job.state, job.failed_reason, job.revoked) == ("failed", "revoked", True)
        assert redis_client.xlen(f"{P}stream") == 0

    @pytest.mark.parametrize(
        "options",
        [
            JobOptions(delay=HOUR),
            JobOptions(priority=3),
            JobOptions(lifo=True),
            JobOptions(delay=HOUR, priority=3),
        ],
        ids=range(4),
    )
    def test_wherever_it_waits_nothing_can_start_it(
        self, queue: Queue, redis_client: Any, options: JobOptions
    ) -> None:
        assert queue.revoke(queue.add("a", options=options)) == "revoked"
        assert not redis_client.exists(f"{P}scheduled", f"{P}lifo", f"{P}priority")

    def test_an_entry_far_from_its_place_is_found(
        self, queue: Queue, redis_client: Any, node: PlainNode
    ) -> None:
        queue.add_many([NewJob("w")] * 3000)
        redis_client.hset(f"{P}job:2900", "timestamp", "1")
        queue.revoke("2900")
        entries = {fields["jobId"] for _, fields in redis_client.xrange(f"{P}stream")}
        assert len(entries) == 2999
        assert "2900" not in entries

    def test_a_parked_job_fails_and_the_next_of_its_key_goes_on(self, queue: Queue, node: PlainNode) -> None:
        first, second, third = queue.add_many(
            [NewJob("o", n, options=JobOptions(ordering=Ordering("k"))) for n in range(3)]
        )
        node.begin(str(first))
        node.park(str(second))
        node.park(str(third))
        assert queue.revoke(str(second)) == "revoked"
        node.end(str(first))
        assert node.begin(str(third)) == third

    def test_a_running_job_is_flagged(self, clients: Clients, queue: Queue, node: PlainNode) -> None:
        job_id = node.begin(queue.add("a"))
        assert clients.queue().revoke(job_id) == "flagged"
        job = queue.get_job(job_id)
        assert (job.state, job.revoked) == ("active", True)

    def test_a_suspended_job_and_one_that_waits_for_others_end(
        self, queue: Queue, node: PlainNode, redis_client: Any
    ) -> None:
        job_id = queue.add("a")
        node.suspend(node.begin(job_id))
        node.flow("up", ["down"])
        assert queue.revoke(job_id) == queue.revoke("2") == "revoked"
        assert [job.id for job in queue.get_jobs(JobState.FAILED)] == [job_id, "2"]
        assert not redis_client.exists(f"{P}suspended")

    def test_an_ended_job_is_left_alone(
        self, clients: Clients, queue: Queue, node: PlainNode, dump: Dump
    ) -> None:
        node.end(node.begin(queue.add("a")))
        before = dump()
        with pytest.raises(JobStateConflict, match="is already completed"):
            clients.queue().revoke("1")
        assert dump() == before

    @pytest.mark.parametrize("name", ["a", "b"])
    def test_the_flow_of_a_revoked_node_ends(self, clients: Clients, flow: Any, name: str) -> None:
        assert clients.queue().revoke(f"f~{name}") == "revoked"
        status = flow.status()
        assert status.failed == (2 if name == "a" else 1)
        assert status.state == (FlowState.FAILED if name == "a" else FlowState.RUNNING)


class TestRemove:
    def test_nothing_of_the_job_is_left(self, clients: Clients, queue: Queue, dump: Dump) -> None:
        mine = clients.queue()
        mine.is_paused()
        job_id = queue.add("a")
        queue.add_log(job_id, "x")
        queue.add_output(job_id, {"a": "b"})
        mine.remove(job_id)
        left = dump(events=False)
        assert {key: value for key, value in left.items() if value != []} == {f"{P}id": "1"}
        with pytest.raises(JobNotFound):
            mine.remove(job_id)

    @pytest.mark.parametrize(
        "options", [JobOptions(delay=HOUR), JobOptions(priority=3), JobOptions(lifo=True)], ids=range(3)
    )
    def test_wherever_it_waits_nothing_is_left(self, queue: Queue, dump: Dump, options: JobOptions) -> None:
        queue.remove(queue.add("a", options=options))
        assert set(dump(events=False)) == {f"{P}id"}

    def test_an_entry_far_from_its_place_is_found(
        self, queue: Queue, redis_client: Any, node: PlainNode
    ) -> None:
        queue.add_many([NewJob("w")] * 3000)
        redis_client.hset(f"{P}job:2900", "timestamp", "1")
        queue.remove("2900")
        entries = {fields["jobId"] for _, fields in redis_client.xrange(f"{P}stream")}
        assert len(entries) == 2999
        assert "2900" not in entries

    def test_a_running_job_is_removed_and_its_worker_changes_nothing(
        self, queue: Queue, node: PlainNode, redis_client: Any
    ) -> None:
        job_id = node.begin(queue.add("a"))
        queue.remove(job_id)
        node.end(job_id)
        assert queue.counts()[JobState.COMPLETED] == 0
        assert redis_client.xpending(f"{P}stream", "workers")["pending"] == 0

    @pytest.mark.parametrize("home", ["etl", NEAR])
    def test_a_parent_waits_no_longer(self, queue: Queue, node: PlainNode, url: str, home: str) -> None:
        node.flow("up", ["down", "down"], queue=home)
        children = ["2", "3"] if home == "etl" else ["1", "2"]
        with Queue(home, url) as place:
            place.remove(children[0])
            assert queue.get_job("1").state == JobState.WAITING_CHILDREN
            place.remove(children[1])
        assert queue.get_job("1").state == JobState.WAITING

    def test_a_missing_parent_elsewhere_is_not_made(self, url: str, queue: Queue, redis_client: Any) -> None:
        with Queue(NEAR, url) as up:
            up.add("up", options=JobOptions(job_id="7"))
        child = queue.add("a", options=JobOptions(parent=JobRef(NEAR, "7")))
        redis_client.delete(f"glide:{{{NEAR}}}:job:7")
        queue.remove(child)
        assert not redis_client.exists(f"glide:{{{NEAR}}}:job:7")

    def test_a_node_of_a_running_flow_stays(self, queue: Queue, flow: Any, dump: Dump) -> None:
        before = dump()
        with pytest.raises(JobStateConflict, match="cancel the flow"):
            queue.remove("f~a")
        assert dump() == before
        flow.cancel("why")
        queue.remove("f~a")


class TestChanges:
    def test_the_priority_of_a_waiting_job_changes(self, clients: Clients, queue: Queue) -> None:
        job_id = queue.add("a")
        clients.queue().change_priority(job_id, 7)
        job = queue.get_job(job_id)
        assert (job.state, job.priority) == ("prioritized", 7)
        clients.queue().change_priority(job_id, 0)
        assert queue.get_job(job_id).state == JobState.WAITING

    def test_the_delay_of_a_job_changes_and_it_can_be_promoted(self, clients: Clients, queue: Queue) -> None:
        mine, job_id = clients.queue(), queue.add("a")
        mine.change_delay(job_id, HOUR)
        job = queue.get_job(job_id)
        assert (job.state, job.delay) == ("delayed", HOUR)
        mine.promote(job_id)
        assert queue.get_job(job_id).state == JobState.WAITING
        with pytest.raises(JobStateConflict, match="is not delayed"):
            mine.promote(job_id)

    def test_a_running_job_cannot_be_moved(self, queue: Queue, node: PlainNode, dump: Dump) -> None:
        job_id = node.begin(queue.add("a"))
        before = dump()
        with pytest.raises(JobStateConflict, match="does not allow this"):
            queue.change_priority(job_id, 1)
        with pytest.raises(JobStateConflict, match="does not allow this"):
            queue.change_delay(job_id, HOUR)
        assert dump() == before

    def test_data_progress_and_tokens_are_replaced(
        self, clients: Clients, queue: Queue, redis_client: Any
    ) -> None:
        mine, job_id = clients.queue(), queue.add("a", 1)
        mine.update_data(job_id, {"n": 2})
        mine.set_progress(job_id, 50)
        mine.report_tokens(job_id, 7)
        job = queue.get_job(job_id)
        assert (job.data, job.progress, job.tokens) == ({"n": 2}, 50, 7)
        (_, event) = redis_client.xrevrange(f"{P}events", count=1)[0]
        assert event == {"event": "progress", "jobId": job_id, "data": "50"}


def test_log_lines_are_kept_in_order(clients: Clients, queue: Queue) -> None:
    mine, job_id = clients.queue(), queue.add("a")
    for n in range(5):
        mine.add_log(job_id, f"line {n}")
    found = mine.logs(job_id, offset=1, limit=2)
    assert (found.lines, found.total) == (["line 1", "line 2"], 5)
    assert mine.logs("99").total == 0
    assert mine.logs(job_id, limit=0).lines == []


class TestRelations:
    def test_the_results_of_children_are_read_across_queues(
        self, clients: Clients, queue: Queue, node: PlainNode, redis_client: Any
    ) -> None:
        node.flow("up", ["a", "b"])
        node.end(node.begin("2"), result='{"n":1}')
        redis_client.sadd(f"{P}deps:1", "glide:{other}:9", "rubbish")
        redis_client.hset("glide:{other}:job:9", mapping={"state": "completed", "returnvalue": "[2]"})
        found = clients.queue().children_values("1")
        assert found == {JobRef("etl", "2"): {"n": 1}, JobRef("other", "9"): [2]}

    def test_parents_are_listed_for_trees_and_graphs(
        self, clients: Clients, queue: Queue, node: PlainNode, redis_client: Any, flow: Any
    ) -> None:
        mine = clients.queue()
        assert mine.parents("f~a") == [JobRef("etl", "f~b")]
        assert mine.parents("f~b") == []
        clients.queue(NEAR).add("up", options=JobOptions(job_id="7"))
        job_id = queue.add("a", options=JobOptions(parent=JobRef(NEAR, "7")))
        assert mine.parents(job_id) == [JobRef(NEAR, "7")]
        redis_client.sadd(f"{P}parents:{job_id}", "glide:{d}:2")
        redis_client.hset(f"{P}job:{job_id}", mapping={"parentIds": '["3"]', "parentQueues": '["e"]'})
        assert mine.parents(job_id) == [JobRef("d", "2"), JobRef(NEAR, "7"), JobRef("e", "3")]


class TestSuspension:
    def test_a_suspended_job_is_described_and_woken_by_a_signal(
        self, clients: Clients, queue: Queue, node: PlainNode, redis_client: Any
    ) -> None:
        mine, job_id = clients.queue(), queue.add("a")
        assert mine.suspend_info(job_id) is None
        assert mine.signal(job_id, "go") is False
        node.suspend(node.begin(job_id), "approval", 60_000)
        info = mine.suspend_info(job_id)
        assert (info.reason, info.deadline - info.suspended_at) == ("approval", timedelta(minutes=1))
        assert [job.id for job in mine.get_jobs(JobState.SUSPENDED)] == [job_id]
        assert mine.signal(job_id, "go", {"by": "me"}) is True
        (stored,) = json.loads(redis_client.hget(f"{P}job:{job_id}", "signals"))
        assert (stored["name"], json.loads(stored["data"])) == ("go", {"by": "me"})
        assert queue.get_job(job_id).state == JobState.WAITING

    def test_earlier_signals_are_listed_when_it_is_suspended_again(
        self, queue: Queue, node: PlainNode
    ) -> None:
        job_id = queue.add("a")
        node.suspend(node.begin(job_id))
        queue.signal(job_id, "first")
        node.suspend(node.begin(job_id))
        info = queue.suspend_info(job_id)
        assert info is not None
        assert (info.reason, info.deadline) == (None, None)
        assert [(signal.name, signal.data) for signal in info.signals] == [("first", None)]


class TestOutput:
    def test_what_a_job_puts_out_is_read_from_a_place(self, clients: Clients, queue: Queue) -> None:
        mine, job_id = clients.queue(), queue.add("a")
        ids = [mine.add_output(job_id, {"type": "text", "content": str(n)}) for n in range(3)]
        chunks = mine.read_output(job_id)
        assert [chunk.id for chunk in chunks] == ids
        assert chunks[0].fields == {"type": "text", "content": "0"}
        later = mine.read_output(job_id, after=ids[0], limit=1)
        assert [chunk.id for chunk in later] == [ids[1]]
        assert mine.read_output(job_id, after=ids[2], timeout=timedelta(milliseconds=10)) == []
