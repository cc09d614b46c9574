"""What can be done with a whole queue."""

from __future__ import annotations

import json
import math
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from glidemq_orchestrate import (
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    JobState,
    NewJob,
    Ordering,
    Queue,
    RateLimit,
)
from glidemq_orchestrate.attempts import dead_letters as letters
from glidemq_orchestrate.clients import HandlerCode
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowNotFound,
    InvalidJob,
    JobNotFound,
    JobStateConflict,
    QueueInUse,
)
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.call import ask, command
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.node import PlainNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Dump, Hand

HOUR = timedelta(hours=1)
P = "glide:{etl}:"
A_FLOW = FlowSpec(
    "n", [FlowNode("a", queue="etl", job="a"), FlowNode("b", queue="etl", job="b", after=["a"])]
)


def clean(_ctx: Any) -> None: ...


def clean_many(contexts: list[Any]) -> list[Any]:
    return contexts


def events(client: Any) -> list[tuple[str, str]]:
    return [(fields["event"], fields["jobId"]) for _, fields in client.xrange(f"{P}events")]


def test_a_queue_is_paused_and_resumed_as_glide_mq_does(clients: Clients, redis_client: Any) -> None:
    queue = clients.queue()
    assert queue.is_paused() is False
    queue.pause()
    assert (queue.is_paused(), redis_client.hget(f"{P}meta", "paused")) == (True, "1")
    queue.resume()
    assert queue.is_paused() is False
    assert events(redis_client) == [("paused", "0"), ("resumed", "0")]


WRONG: list[tuple[Callable[[Any], Any], type[Exception]]] = [
    (lambda queue: queue.clean(JobState.WAITING), ConfigurationError),
    (lambda queue: queue.clean(JobState.FAILED, grace=-HOUR), InvalidJob),
    (lambda queue: queue.clean(JobState.FAILED, limit=0), InvalidJob),
    (lambda queue: queue.retry_failed(0), InvalidJob),
    (lambda queue: queue.set_global_concurrency(0), InvalidJob),
    (lambda queue: queue.rate_limit_group("", HOUR), InvalidJob),
    (lambda queue: queue.rate_limit_group("k", timedelta(0)), InvalidJob),
    (lambda queue: queue.metrics(JobState.ACTIVE), ConfigurationError),
    (lambda queue: queue.set_dead_letter_queue("a:b"), ConfigurationError),
    (lambda queue: queue.set_dead_letter_queue("etl"), ConfigurationError),
]


def test_invalid_values_are_refused_and_nothing_is_written(queue: Queue, dump: Dump) -> None:
    for call, error in WRONG:
        before = dump()
        with pytest.raises(error):
            call(queue)
        assert dump() == before


class TestClean:
    def test_old_jobs_are_deleted_the_oldest_first(
        self, clients: Clients, queue: Queue, node: PlainNode, redis_client: Any
    ) -> None:
        for n in range(3):
            node.end(node.begin(queue.add("a", n)))
        redis_client.zadd(f"{P}completed", {"2": 1, "1": 2})
        mine = clients.queue()
        assert mine.clean(JobState.COMPLETED, grace=HOUR, limit=1) == ["2"]
        assert mine.clean(JobState.COMPLETED, grace=HOUR) == ["1"]
        assert mine.clean(JobState.COMPLETED, grace=HOUR) == []
        assert [job.id for job in queue.search()] == ["3"]
        assert events(redis_client)[-2:] == [("cleaned", "1")] * 2

    def test_many_jobs_are_deleted_in_slices(self, queue: Queue, redis_client: Any) -> None:
        queue.add_many([NewJob("a")] * 250)
        for n in range(1, 251):
            redis_client.hset(f"{P}job:{n}", "state", "failed")
            redis_client.zadd(f"{P}failed", {str(n): n})
        assert len(queue.clean(JobState.FAILED)) == 250
        assert redis_client.keys(f"{P}job:*") == []

    def test_nodes_of_a_running_flow_stay(self, queue: Queue, flows: FlowProducer, redis_client: Any) -> None:
        flow = flows.submit(A_FLOW, flow_id="f")
        redis_client.zadd(f"{P}completed", {"f~a": 1})
        assert queue.clean(JobState.COMPLETED) == []
        flow.cancel("why")
        assert queue.clean(JobState.COMPLETED) == ["f~a"]


class TestDrain:
    def fill(self, queue: Queue, node: PlainNode) -> None:
        queue.add_many([NewJob("o", n, options=JobOptions(ordering=Ordering("k"))) for n in range(3)])
        node.begin("1")
        node.park("2")
        queue.add("p", options=JobOptions(priority=3))
        node.promote(0)
        queue.add_many(
            [
                NewJob("a"),
                NewJob("l", None, options=JobOptions(lifo=True)),
                NewJob("p", None, options=JobOptions(priority=3)),
                NewJob("d", None, options=JobOptions(delay=HOUR)),
            ]
        )
        node.flow("up", ["down"])

    def test_what_waits_is_deleted_and_what_runs_or_is_delayed_stays(
        self, clients: Clients, queue: Queue, node: PlainNode
    ) -> None:
        self.fill(queue, node)
        assert clients.queue().drain() == 8, "the parent that waited for a deleted child too"
        assert {job.id: job.state for job in queue.search()} == {"1": "active", "8": "delayed"}
        assert clients.queue().drain(delayed=True) == 1
        assert {job.id for job in queue.search()} == {"1"}

    def test_an_empty_queue_is_drained_without_an_event(
        self, queue: Queue, redis_client: Any, dump: Dump
    ) -> None:
        queue.is_paused()
        before = dump()
        assert queue.drain(delayed=True) == 0
        assert dump() == before

    def test_many_jobs_are_deleted_and_their_number_is_emitted(self, queue: Queue, redis_client: Any) -> None:
        lifo = JobOptions(lifo=True)
        queue.add_many([NewJob("a")] * 150 + [NewJob("a", None, options=lifo)] * 150)
        assert queue.drain() == 300
        assert sum(int(count) for event, count in events(redis_client) if event == "drained") == 300
        assert set(redis_client.keys(f"{P}*")) <= {f"{P}id", f"{P}events", f"{P}stream"}

    def test_an_ordering_key_goes_on_after_it_was_drained(self, queue: Queue, node: PlainNode) -> None:
        ordered = JobOptions(ordering=Ordering("k"))
        queue.add_many([NewJob("o", n, options=ordered) for n in range(3)])
        assert queue.drain() == 3
        node.begin(queue.add("o", options=ordered))

    def test_nodes_of_flows_and_what_workers_hold_stay(
        self, queue: Queue, node: PlainNode, flows: FlowProducer
    ) -> None:
        node.begin(queue.add("a"))
        queue.add("b")
        node.read()
        flows.submit(A_FLOW, flow_id="f")
        assert queue.drain() == 0
        assert len(queue.search()) == 4


class TestObliterate:
    def test_nothing_of_the_queue_is_left(
        self, clients: Clients, queue: Queue, node: PlainNode, dump: Dump, flows: FlowProducer
    ) -> None:
        TestDrain().fill(queue, node)
        flows.submit(A_FLOW, flow_id="f")
        queue.add_log("1", "x")
        queue.set_global_concurrency(3)
        queue.set_dead_letter_queue("dead")
        mine = clients.queue()
        before = dump()
        with pytest.raises(QueueInUse, match="1 jobs of queue etl are active") as raised:
            mine.obliterate()
        assert (raised.value.active, dump()) == (1, before)
        mine.obliterate(force=True)
        assert dump() == {}
        with pytest.raises(FlowNotFound):
            flows.get("f")

    def test_other_queues_stay(self, queue: Queue, url: str) -> None:
        with Queue("etl2", url) as other:
            other.add("a")
            queue.add("a")
            queue.obliterate()
            assert len(other.search()) == 1

    def test_a_job_of_a_list_counts_as_active(self, queue: Queue, node: PlainNode) -> None:
        queue.add("a", options=JobOptions(lifo=True))
        node.begin_listed()
        with pytest.raises(QueueInUse):
            queue.obliterate()

    def test_a_repeat_does_nothing(self, queue: Queue) -> None:
        queue.obliterate()
        queue.obliterate()


class TestRetryFailed:
    def test_the_oldest_are_retried_and_nodes_of_flows_are_not(
        self, clients: Clients, queue: Queue, node: PlainNode, flows: FlowProducer, redis_client: Any
    ) -> None:
        flows.submit(A_FLOW, flow_id="f").cancel("why")
        for n in range(3):
            node.end_as_failed(node.begin(queue.add("a", n)))
        redis_client.zadd(f"{P}failed", {"gone": 0})
        mine = clients.queue()
        assert mine.retry_failed(1) == 1
        assert queue.get_job("1").state == JobState.WAITING
        assert mine.retry_failed() == 2
        assert {job.id for job in queue.get_jobs(JobState.FAILED)} == {"f~a", "f~b"}
        assert ("retried", "2") in events(redis_client)


class TestLimits:
    def test_the_global_concurrency_is_set_and_lifted(self, clients: Clients, redis_client: Any) -> None:
        queue = clients.queue()
        assert queue.global_concurrency() is None
        queue.set_global_concurrency(3)
        assert redis_client.hget(f"{P}meta", "globalConcurrency") == "3"
        assert queue.global_concurrency() == 3
        queue.set_global_concurrency(None)
        assert queue.global_concurrency() is None
        redis_client.hset(f"{P}meta", "globalConcurrency", "0")
        assert queue.global_concurrency() is None

    def test_the_global_rate_limit_is_set_and_lifted(self, clients: Clients, redis_client: Any) -> None:
        queue, limit = clients.queue(), RateLimit(10, timedelta(seconds=1))
        queue.set_global_rate_limit(limit)
        assert redis_client.hgetall(f"{P}meta") == {"rateLimitMax": "10", "rateLimitDuration": "1000"}
        assert queue.global_rate_limit() == limit
        queue.set_global_rate_limit(None)
        assert queue.global_rate_limit() is None

    def test_an_ordering_key_is_held_back_and_listed(
        self, clients: Clients, queue: Queue, node: PlainNode
    ) -> None:
        mine = clients.queue()
        queue.add_many([NewJob("o", n, options=JobOptions(ordering=Ordering("k", 1))) for n in range(2)])
        node.begin("1")
        node.park("2")
        until = mine.rate_limit_group("k", HOUR)
        assert timedelta(minutes=59) < until - datetime.now(UTC) <= HOUR
        (group,) = mine.groups()
        assert (group.key, group.active, group.concurrency, group.parked) == ("k", 1, 1, 1)
        assert (group.resumes_at, group.last_number) == (until, 2)
        shorter = mine.rate_limit_group("k", HOUR / 2)
        assert shorter == until
        assert mine.rate_limit_group("k", HOUR / 2, extend=False) < until

    def test_a_queue_without_ordering_has_no_groups(self, clients: Clients) -> None:
        assert clients.queue().groups() == []


def test_metrics_count_by_the_minute(clients: Clients, queue: Queue, redis_client: Any) -> None:
    fields = {"m:60000:c": "2", "m:60000:d": "30", "m:0:c": "1"}
    redis_client.hset(f"{P}metrics:failed", mapping=fields)
    points = clients.queue().metrics(JobState.FAILED)
    assert [(point.at.timestamp(), point.count) for point in points] == [(0, 1), (60, 2)]
    assert [point.mean for point in points] == [timedelta(0), timedelta(milliseconds=15)]
    assert clients.queue().metrics() == []


class TestWorkers:
    def test_our_workers_list_their_handlers(
        self, clients: Clients, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        assert clients.queue().workers() == []
        run_worker(["etl"], {"clean": lambda _: None})
        (worker,) = eventually(lambda: clients.queue().workers())
        assert worker.handlers == ("clean",)
        assert worker.pid > 0
        assert datetime.now(UTC) - worker.started_at < timedelta(minutes=1)

    def test_our_workers_tell_where_the_code_of_their_handlers_is(
        self, clients: Clients, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        handlers = Handlers()
        handlers.handler("clean")(clean)
        handlers.batch_handler("many", size=3)(clean_many)
        handlers.handler("builtin")(cast("Any", math.sqrt))
        run_worker(["etl"], handlers)
        (worker,) = eventually(lambda: clients.queue().workers())
        file = "tests/server/queues/test_admin.py"
        assert {name: str(code) for name, code in worker.code.items()} == {
            "clean": f"{__name__}:clean ({file}:{clean.__code__.co_firstlineno})",
            "many": f"{__name__}:clean_many ({file}:{clean_many.__code__.co_firstlineno})",
            "builtin": "math:sqrt",
        }
        assert worker.code["clean"].digest
        assert hash(worker) == hash(worker)

    def test_garbage_beside_it_does_not_stop_a_worker(
        self, queue: Queue, redis_client: Any, run_worker: RunWorker
    ) -> None:
        for at, garbage in enumerate((
            {"pid": "x", "addr": "h", "startedAt": 1, "code": {"clean": "other:clean 00000000"}},
            {"pid": 1, "addr": "h", "startedAt": 1, "code": ["clean"], "files": 7},
            ["clean"],
        )):  # fmt: skip
            redis_client.set(f"{P}w:gmo-worker-{at}", json.dumps(garbage))
            redis_client.zadd(f"{P}gmo:workers", {f"gmo-worker-{at}": 9e15})
        run_worker(["etl"], {"clean": clean})
        assert queue.add_and_wait("clean", timeout=20) is None
        assert [len(one.code) for one in queue.workers()] == [0, 0, 0, 1]

    def test_our_workers_report_what_they_use(
        self,
        queue: Queue,
        run_worker: RunWorker,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("glidemq_orchestrate.worker.services.worker.ANNOUNCE_SECONDS", 0.05)
        end = threading.Event()
        run_worker(["etl"], {"wait": lambda _: end.wait(20)}, concurrency=3)
        queue.add_many([NewJob("wait"), NewJob("wait")])
        (worker,) = eventually(lambda: [one for one in queue.workers() if one.running == 2])
        assert (worker.concurrency, worker.active_jobs) == (3, 2)
        assert worker.memory is not None
        assert 2**20 < worker.memory < 2**40
        assert worker.last_heartbeat is not None
        assert timedelta(0) <= queue.now() - worker.last_heartbeat < timedelta(seconds=10)
        end.set()

    def test_workers_of_node_are_listed_by_their_registration(self, queue: Queue, redis_client: Any) -> None:
        redis_client.xgroup_create(f"{P}stream", "workers", "0", mkstream=True)
        right = {"addr": "h", "pid": 7, "startedAt": 1_700_000_000_000, "activeJobs": 2}
        odd = right | {
            "pid": 8,
            "startedAt": 1_800_000_000_000,
            "memory": "x",
            "running": -1,
            "concurrency": True,
            "code": {"clean": 7, "load": "steps:load"},
            "files": ["x"],
        }
        lapsed: dict[str, Any] = {}
        wrong = {name: value for name, value in right.items() if name != "pid"}
        for name, registration in (
            ("worker-1", right),
            ("worker-2", wrong),
            ("worker-3", lapsed),
            ("worker-4", odd),
        ):
            redis_client.xgroup_createconsumer(f"{P}stream", "workers", name)
            if registration:
                redis_client.set(f"{P}w:{name}", json.dumps(registration))
        broken, worker, odd_one = queue.workers()
        assert (broken.id, broken.broken) == ("worker-2", True)
        assert (worker.id, worker.host, worker.pid, worker.broken) == ("worker-1", "h", 7, False)
        assert (worker.active_jobs, worker.handlers) == (2, None)
        for one in (worker, odd_one, broken):
            assert {one.memory, one.concurrency, one.running, one.last_heartbeat} == {None}
        assert [one.code for one in (worker, odd_one)] == [{}, {"load": HandlerCode("steps:load")}]


class TestDeadLetters:
    def dead_letter(self, hand: Hand, queue: Queue, node: PlainNode, data: Any = None) -> str:
        """The letter of a failed job."""
        queue.set_dead_letter_queue("dead")
        job_id = queue.add("a", data or {"n": 1})
        node.end_as_failed(node.begin(job_id), reason="no rows")
        hand.driver.run(ask(command("HSET", f"{P}gmo:letters", job_id, "1\n", decode=int)))
        (letter_id,) = hand.run(letters.write_noted([QueueKeys("glide", "etl")], SystemClock()))
        return str(letter_id)

    def test_a_letter_has_the_form_that_node_writes(
        self, clients: Clients, hand: Hand, queue: Queue, node: PlainNode, redis_client: Any
    ) -> None:
        letter_id = self.dead_letter(hand, queue, node)
        stored = redis_client.hgetall(f"glide:{{dead}}:job:{letter_id}")
        assert (stored["name"], stored["opts"]) == ("a", "{}")
        assert json.loads(stored["data"]) == {
            "originalQueue": "etl",
            "originalJobId": "1",
            "data": {"n": 1},
            "failedReason": "no rows",
            "attemptsMade": 1,
        }
        mine = clients.queue()
        (letter,) = mine.dead_letters()
        assert letter == mine.get_dead_letter(letter_id)
        assert (letter.job_id, letter.name, letter.data) == ("1", "a", {"n": 1})
        assert (letter.failed_reason, letter.attempts_made) == ("no rows", 1)

    def test_letters_of_other_queues_are_not_shown(
        self, clients: Clients, hand: Hand, queue: Queue, node: PlainNode
    ) -> None:
        letter_id = self.dead_letter(hand, queue, node)
        other = clients.queue("other")
        other.set_dead_letter_queue("dead")
        assert other.dead_letters() == []
        for call in (other.get_dead_letter, other.remove_dead_letter, other.replay_dead_letter):
            with pytest.raises(JobNotFound, match="not a dead letter of queue other"):
                call(letter_id)

    def test_a_replayed_job_runs_again_itself(
        self, clients: Clients, hand: Hand, queue: Queue, node: PlainNode
    ) -> None:
        letter_id = self.dead_letter(hand, queue, node)
        mine = clients.queue()
        assert mine.replay_dead_letter(letter_id) == "1"
        assert queue.get_job("1").state == JobState.WAITING
        assert mine.dead_letters() == []

    def test_a_missing_job_is_added_again(self, hand: Hand, queue: Queue, node: PlainNode) -> None:
        letter_id = self.dead_letter(hand, queue, node)
        queue.remove("1")
        job_id = queue.replay_dead_letter(letter_id)
        assert queue.get_job(job_id).data == {"n": 1}
        assert queue.dead_letters() == []

    def test_a_job_that_was_retried_meanwhile_is_not_run_twice(
        self, hand: Hand, queue: Queue, node: PlainNode
    ) -> None:
        letter_id = self.dead_letter(hand, queue, node)
        queue.retry("1")
        with pytest.raises(JobStateConflict):
            queue.replay_dead_letter(letter_id)
        assert len(queue.dead_letters()) == 1

    def test_a_letter_is_thrown_away(
        self, clients: Clients, hand: Hand, queue: Queue, node: PlainNode
    ) -> None:
        letter_id = self.dead_letter(hand, queue, node)
        clients.queue().remove_dead_letter(letter_id)
        assert queue.dead_letters() == []
        assert queue.get_job("1").state == JobState.FAILED

    def test_a_queue_without_dead_letters_has_none(
        self, clients: Clients, hand: Hand, queue: Queue, node: PlainNode
    ) -> None:
        mine = clients.queue()
        assert mine.dead_letter_queue() is None
        assert mine.dead_letters() == []
        with pytest.raises(JobNotFound, match="has no dead-letter queue"):
            mine.get_dead_letter("1")
        node.end_as_failed(node.begin(queue.add("a")))
        hand.driver.run(ask(command("HSET", f"{P}gmo:letters", "1", "1\n", decode=int)))
        assert hand.run(letters.write_noted([QueueKeys("glide", "etl")], SystemClock())) == []
        mine.set_dead_letter_queue("dead")
        assert mine.dead_letter_queue() == "dead"
        mine.set_dead_letter_queue(None)
        assert mine.dead_letter_queue() is None

    def test_data_that_does_not_fit_is_left_with_the_job(
        self, hand: Hand, queue: Queue, node: PlainNode
    ) -> None:
        self.dead_letter(hand, queue, node, "x" * 1_048_570)
        (letter,) = queue.dead_letters()
        assert (letter.job_id, letter.data) == ("1", None)
