"""Flows whose nodes are run by Node workers end, whatever happens to events, jobs and supervisors."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, FlowState, JobOptions
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.supervision import Supervision, TickResult
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.staged.submit import chunks, stage_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import NEAR, flow, node
from tests.node import PlainNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from glidemq_orchestrate import Flow
    from tests.server.conftest import Dump, Hand

ETL = QueueKeys("glide", "etl")
SPARK = QueueKeys("glide", NEAR)
MINUTE = 60_000


DIAMOND = flow(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"))


class Scene:
    """A clock that only the test moves, Node workers, and supervisors driven call by call."""

    def __init__(self, hand: Hand, client: Any, flows: FlowProducer) -> None:
        self.hand, self.client, self.flows = hand, client, flows
        self.now = SystemClock().now_ms()
        self.workers: list[PlainNode] = []

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()

    def node_worker(self, queue: str = "etl", consumer: str = "node-1") -> PlainNode:
        worker = PlainNode(self.client, queue, self.now, consumer)
        self.workers.append(worker)
        return worker

    def wait(self, ms: int) -> None:
        self.now += ms
        for worker in self.workers:
            worker.at = self.now

    def tick(self, queue: QueueKeys = ETL, token: str = "one") -> TickResult:
        return self.hand.run(supervise.tick(Supervision(queue, token), self))

    def lap(self, queue: QueueKeys = ETL) -> TickResult:
        """A tick whose walk over the open nodes begins from the start."""
        self.wait(supervise.LAP_MS)
        return self.tick(queue)

    def trim(self) -> None:
        """No event can be read."""
        for key in self.client.keys("*:events"):
            self.client.xtrim(key, maxlen=0, approximate=False)

    def job(self, name: str, queue: str = "etl") -> dict[str, str]:
        return dict(self.client.hgetall(f"glide:{{{queue}}}:job:f~{name}"))

    def ended(self) -> tuple[str, int, int]:
        status = self.flows.get("f").status()
        return status.state.value, status.completed, status.failed


@pytest.fixture
def scene(hand: Hand, redis_client: Any, flows: FlowProducer) -> Scene:
    return Scene(hand, redis_client, flows)


def test_a_flow_that_only_node_workers_run_completes(scene: Scene) -> None:
    found, worker = scene.flows.submit(DIAMOND, flow_id="f"), scene.node_worker()
    assert sorted(worker.run_all()) == ["f~a", "f~b", "f~c", "f~d"]
    scene.trim()
    assert scene.ended() == ("running", 0, 0)
    scene.tick()
    assert scene.ended() == ("completed", 4, 0)
    assert found.results() == {name: f"f~{name}" for name in "abcd"}


def test_what_a_node_worker_has_notified_counts_once(scene: Scene) -> None:
    """The Node worker counts the end of ``a`` for ``c``, and the supervisor notifies ``c`` again."""
    scene.flows.submit(flow(node("a"), node("b"), node("c", "a", "b")), flow_id="f")
    worker = scene.node_worker()
    job_id, entry_id = worker.begin_next() or ("", "")
    worker.end(job_id, entry_id)
    scene.tick()
    assert scene.ended() == ("running", 1, 0)
    assert (scene.job("c")["state"], scene.job("c")["depsCompleted"]) == ("waiting-children", "1")
    worker.run_all()
    scene.tick()
    assert scene.ended() == ("completed", 3, 0)


def test_the_call_that_ends_one_job_and_takes_the_next_is_seen_too(scene: Scene) -> None:
    scene.flows.submit(flow(node("a"), node("b")), flow_id="f")
    worker = scene.node_worker()
    first, entry_id = worker.begin_next() or ("", "")
    scene.client.xreadgroup("workers", "node-1", {worker.stream: ">"})
    worker.end_and_fetch(first, entry_id)
    scene.tick()
    assert scene.ended() == ("running", 1, 0)


def test_a_failure_in_node_reaches_every_dependent_in_every_queue(scene: Scene) -> None:
    spec = flow(
        node("a"), node("b", "a", queue=NEAR), node("c", "b"), node("free"), node("last", "c", "free")
    )
    scene.flows.submit(spec, flow_id="f")
    scene.node_worker().run_all("~a")
    scene.trim()
    scene.tick()
    assert scene.ended() == ("failed", 1, 4)
    assert scene.job("b", NEAR)["failedReason"] == "upstream failed: a"
    assert scene.job("last")["failedReason"] == "upstream failed: a"


def test_edges_across_queues_fire_for_node_workers(scene: Scene) -> None:
    spec = flow(node("a"), node("b", "a"), node("c", "b", queue=NEAR), node("d", "c"))
    scene.flows.submit(spec, flow_id="f")
    etl, spark = scene.node_worker(), scene.node_worker(NEAR)
    assert etl.run_all() == ["f~a", "f~b"]
    assert spark.run_all() == []
    scene.tick()
    assert spark.run_all() == ["f~c"]
    scene.tick(SPARK)
    assert etl.run_all() == ["f~d"]
    scene.tick()
    assert scene.ended() == ("completed", 4, 0)


def test_the_home_alone_finds_what_ended_in_a_queue_without_a_supervisor(scene: Scene) -> None:
    scene.flows.submit(flow(node("a"), node("b", "a", queue=NEAR)), flow_id="f")
    scene.node_worker().run_all()
    scene.tick()
    scene.node_worker(NEAR).run_all()
    scene.lap()
    assert scene.ended() == ("completed", 2, 0)


def test_the_delay_of_a_dependent_holds_across_queues_and_within(scene: Scene) -> None:
    late = JobOptions(delay=timedelta(seconds=5))
    spec = flow(node("a"), node("b", "a", options=late), node("c", "a", queue=NEAR, options=late))
    scene.flows.submit(spec, flow_id="f")
    etl, spark = scene.node_worker(), scene.node_worker(NEAR)
    taken = etl.begin_next()
    assert taken is not None
    etl.end(*taken)
    scene.tick()
    assert (etl.begin_next(), spark.begin_next()) == (None, None)
    assert (scene.job("b")["state"], scene.job("c", NEAR)["state"]) == ("delayed", "delayed")
    scene.wait(5_001)
    scene.tick()
    scene.tick(SPARK)
    assert (etl.run_all(), spark.run_all()) == (["f~b"], ["f~c"])


def test_a_node_revoked_by_others_ends_with_its_dependents(scene: Scene) -> None:
    scene.flows.submit(DIAMOND, flow_id="f")
    worker = scene.node_worker()
    assert worker.revoke("f~b") == "flagged"
    scene.lap()
    assert scene.job("b")["failedReason"] == "revoked"
    assert scene.job("d")["failedReason"] == "upstream failed: b"
    assert worker.revoke("f~a") == "revoked"
    scene.lap()
    assert scene.ended() == ("failed", 0, 4)


def test_a_result_that_node_removed_immediately_is_read_from_the_event(scene: Scene) -> None:
    spec = flow(node("a"), node("b", "a"), node("c", "a", queue=NEAR))
    found, worker = scene.flows.submit(spec, flow_id="f"), scene.node_worker()
    taken = worker.begin_next()
    assert taken is not None
    worker.end(*taken, '{"rows":7}', remove=True)
    scene.lap()
    assert scene.job("c", NEAR)["state"] == "waiting"
    assert found.results() == {"a": {"rows": 7}}
    assert (worker.run_all(), scene.node_worker(NEAR).run_all()) == (["f~b"], ["f~c"])
    scene.lap()
    assert scene.ended() == ("completed", 3, 0)


def test_a_notified_dependent_shows_that_a_removed_node_completed(scene: Scene) -> None:
    scene.flows.submit(flow(node("a"), node("b", "a"), node("c", "a", queue=NEAR)), flow_id="f")
    worker = scene.node_worker()
    taken = worker.begin_next()
    assert taken is not None
    worker.end(*taken, remove=True)
    scene.trim()
    scene.lap()
    assert scene.job("a")["state"] == "completed"
    assert scene.job("c", NEAR)["state"] == "waiting"


def test_a_node_that_another_client_removed_fails_with_its_dependents(scene: Scene) -> None:
    found = scene.flows.submit(DIAMOND, flow_id="f")
    worker = scene.node_worker()
    assert worker.remove("f~a") == 1
    scene.lap()
    assert scene.ended() == ("failed", 0, 4)
    reasons = {failed.name: failed.reason for failed in found.outcome().failed}
    assert reasons["a"] == "job f~a was removed from queue etl before its end was known"
    assert reasons["d"].startswith("upstream failed: ")


def test_what_a_late_worker_leaves_of_a_removed_job_is_not_its_end(scene: Scene) -> None:
    scene.flows.submit(flow(node("a"), node("b", "a")), flow_id="f")
    worker = scene.node_worker()
    worker.remove("f~a")
    scene.client.hset("glide:{etl}:job:f~a", mapping={"state": "completed", "returnvalue": "null"})
    scene.lap()
    assert scene.ended() == ("failed", 0, 2)


def waiting_without_entry(scene: Scene, worker: PlainNode) -> None:
    del worker
    scene.client.xtrim("glide:{etl}:stream", maxlen=0, approximate=False)


def waiting_in_an_entry_that_was_delivered_to_no_worker(scene: Scene, worker: PlainNode) -> None:
    scene.client.xreadgroup("workers", "dead", {worker.stream: ">"})
    scene.client.xgroup_delconsumer(worker.stream, "workers", "dead")


def active_with_a_worker_that_was_forgotten(scene: Scene, worker: PlainNode) -> None:
    worker.begin_next()
    scene.client.xgroup_delconsumer(worker.stream, "workers", "node-1")
    scene.wait(10 * MINUTE)


def delayed_but_not_scheduled(scene: Scene, worker: PlainNode) -> None:
    taken = worker.begin_next()
    assert taken is not None
    assert worker.end_as_failed(*taken, attempts=3) == "retrying"
    scene.client.delete("glide:{etl}:scheduled")


def woken_by_node_and_then_lost(scene: Scene, worker: PlainNode) -> None:
    taken = worker.begin_next()
    assert taken is not None
    worker.end(*taken)
    scene.tick()
    scene.client.xtrim("glide:{etl}:stream", maxlen=0, approximate=False)


@pytest.mark.parametrize(
    "lose",
    [
        waiting_without_entry,
        waiting_in_an_entry_that_was_delivered_to_no_worker,
        active_with_a_worker_that_was_forgotten,
        delayed_but_not_scheduled,
        woken_by_node_and_then_lost,
    ],
)
def test_a_node_that_nothing_leads_to_any_more_is_brought_back(
    scene: Scene, lose: Callable[[Scene, PlainNode], None]
) -> None:
    scene.flows.submit(flow(node("a"), node("b", "a")), flow_id="f")
    worker = scene.node_worker()
    lose(scene, worker)
    assert worker.begin_next() is None
    scene.lap()
    assert worker.run_all()
    scene.lap()
    assert worker.run_all() in ([], ["f~b"])
    scene.lap()
    assert scene.ended() == ("completed", 2, 0)
    assert scene.client.xlen(worker.stream) == 0


def test_nothing_is_brought_back_that_is_only_waiting_or_running(scene: Scene, dump: Dump) -> None:
    spec = flow(*(node(f"n{n}") for n in range(30)), node("end", *(f"n{n}" for n in range(30))))
    scene.flows.submit(spec, flow_id="f")
    worker, other = scene.node_worker(), scene.node_worker(consumer="node-2")
    for _ in range(5):
        worker.begin_next()
        other.begin_next()
    before = {key: value for key, value in dump(events=False).items() if "supervis" not in key}
    scene.lap()
    scene.lap()
    assert {key: value for key, value in dump(events=False).items() if "supervis" not in key} == before


def test_two_leaders_together_do_no_harm(scene: Scene) -> None:
    """Each call of one is followed by the next call of the other."""
    scene.flows.submit(DIAMOND, flow_id="f")
    scene.node_worker().run_all("~c")
    scene.wait(supervise.LAP_MS)
    watches = [Supervision(ETL, "one"), Supervision(ETL, "two")]
    running = [scene.hand.steps(step(watch, scene)) for step in supervise.STEPS for watch in watches]
    while running:
        running = [steps for steps in running if next(steps, None) is not None]
    scene.tick()
    assert scene.ended() == ("failed", 2, 2)
    assert [event for _, event in kinds(scene) if event.startswith("flow.")] == ["flow.failed"]


def kinds(scene: Scene) -> list[tuple[str, str]]:
    return [(fields["jobId"], fields["event"]) for _, fields in scene.client.xrange("glide:{etl}:events")]


def test_only_one_leads_and_another_takes_over_when_it_dies(scene: Scene) -> None:
    assert scene.tick(token="one").leading
    assert not scene.tick(token="two").leading
    assert scene.tick(token="one").leading
    assert 0 < scene.client.pttl(ETL.supervisor()) <= supervise.LOCK_TTL_MS
    scene.client.delete(ETL.supervisor())  # what its time to live does
    assert scene.tick(token="two").leading
    assert not scene.tick(token="one").leading
    scene.hand.run(supervise.resign(Supervision(ETL, "one")))
    assert not scene.tick(token="one").leading
    scene.hand.run(supervise.resign(Supervision(ETL, "two")))
    assert scene.tick(token="one").leading


def hard_scene(scene: Scene) -> None:
    """Something for every step: ended, failed, removed, revoked and lost nodes in two queues."""
    spec = flow(
        node("a"),
        node("b", "a"),
        node("c", "a", queue=NEAR),
        node("bad"),
        node("after", "bad"),
        node("gone"),
        node("left", "gone"),
        node("lost"),
        node("flagged", "lost"),
    )
    scene.flows.submit(spec, flow_id="f")
    worker = scene.node_worker()
    worker.remove("f~gone")
    for _ in range(2):
        taken = worker.begin_next()
        assert taken is not None
        (worker.end_as_failed if taken[0].endswith("bad") else worker.end)(*taken)
    scene.client.xtrim("glide:{etl}:stream", maxlen=0, approximate=False)
    worker.revoke("f~flagged")
    scene.trim()


def test_a_leader_that_dies_at_any_step_leaves_the_rest_to_the_next(scene: Scene) -> None:
    for cut in itertools.count():
        scene.client.flushdb()
        hard_scene(scene)
        scene.wait(supervise.LAP_MS)
        sent = scene.hand.run_until(supervise.tick(Supervision(ETL, "first"), scene), cut)
        if sent < cut:
            break
        scene.client.delete(ETL.supervisor())  # the lock of the dead has lapsed
        worker, spark = (
            PlainNode(scene.client, "etl", scene.now),
            PlainNode(scene.client, NEAR, scene.now),
        )
        for _ in range(3):
            scene.lap()
            scene.lap(SPARK)
            worker.at = spark.at = scene.now
            worker.run_all("~bad")  # which of the roots ran before is the server's choice
            spark.run_all()
        scene.lap()
        assert scene.ended() == ("failed", 4, 5), cut
    assert cut > 15


def test_many_ends_of_one_moment_are_all_seen(scene: Scene) -> None:
    names = [f"n{n}" for n in range(700)]
    scene.flows.submit(flow(*(node(name) for name in names)), flow_id="f")
    scene.node_worker().run_all()
    for _ in range(3):
        scene.tick()
    assert scene.ended() == ("completed", 700, 0)


def test_our_own_workers_cost_a_supervisor_a_few_calls_only(scene: Scene) -> None:
    scene.flows.submit(DIAMOND, flow_id="f")
    scene.lap()
    scene.hand.run(workers.open_queues([ETL]))
    asked = list(scene.hand.steps(supervise.tick(Supervision(ETL, "one"), scene)))
    assert len(asked) < 16


def test_a_flow_in_staging_is_left_alone(scene: Scene) -> None:
    checked = check_flow(DIAMOND)
    scene.client.set("glide:gmo:home:{f}", checked.home)
    (stage,) = stage_flow(QueueKeys("glide", checked.home), "f", checked, chunks(checked.nodes), scene.now)
    scene.hand.answer(stage)
    scene.lap()
    assert scene.flows.get("f").status().state is FlowState.STAGING
    assert scene.job("a")["state"] == "waiting-children"


def cancelled_while_node_runs(scene: Scene) -> Flow:
    """A flow that was cancelled, and of which a Node worker then reports a node as completed."""
    found, worker = scene.flows.submit(flow(node("a"), node("b", "a")), flow_id="f"), scene.node_worker()
    job_id, entry_id = worker.begin_next() or ("", "")
    found.cancel("enough")
    assert scene.ended() == ("cancelled", 0, 2)
    worker.end(job_id, entry_id)
    return found


def test_what_a_node_worker_reports_of_a_cancelled_node_does_not_last(scene: Scene) -> None:
    found = cancelled_while_node_runs(scene)
    scene.tick()
    assert {one.name: one.state for one in found.nodes()} == {"a": "failed", "b": "failed"}
    assert found.results() == {}
    assert scene.ended() == ("cancelled", 0, 2)
    counts = [scene.client.zcard(ETL.key(name)) for name in ("completed", "failed")]
    assert counts == [0, 2]


@pytest.mark.parametrize("again", ["restart", "retry_failed"])
def test_a_flow_runs_again_with_right_counts_after_a_late_report(scene: Scene, again: str) -> None:
    found = cancelled_while_node_runs(scene)
    getattr(found, again)()
    scene.tick()
    assert scene.ended() == ("running", 0, 0)
    scene.node_worker().run_all()
    scene.tick()
    assert scene.ended() == ("completed", 2, 0)


def test_a_cancel_keeps_what_a_node_worker_has_ended_before(scene: Scene) -> None:
    found = scene.flows.submit(flow(node("a"), node("b"), node("c", "a", "b")), flow_id="f")
    worker = scene.node_worker()
    taken = dict(worker.begin_next() or ("", "") for _ in range(2))
    worker.end("f~a", taken["f~a"], result='"kept"')
    worker.end_as_failed("f~b", taken["f~b"], reason="broken")
    found.cancel("enough")
    assert scene.ended() == ("cancelled", 1, 2)
    assert found.results() == {"a": "kept"}
    assert {one.name: one.reason for one in found.nodes() if one.name != "a"} == {
        "b": "broken",
        "c": "cancelled: enough",
    }
