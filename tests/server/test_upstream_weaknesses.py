"""What glide-mq does badly for orchestrators, row by row of its list of weaknesses, and that it holds here.

The Node side is written as raw calls; a supervisor maintains the queue as it would beside Node workers.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, FlowState, JobOptions
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.errors import FlowConflict
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.node import PlainNode

if TYPE_CHECKING:
    from tests.server.conftest import Dump, Hand


def node(name: str, *after: str, queue: str = "etl", **options: Any) -> FlowNode:
    return FlowNode(name, queue=queue, job="work", after=list(after), options=JobOptions(**options))


DIAMOND = FlowSpec("n", [node("a"), node("b", "a"), node("c", "a", queue="spark"), node("d", "b", "c")])


class Fleet:
    """Node workers of two queues, and supervisors of both; the test sets the time."""

    def __init__(self, hand: Hand, client: Any) -> None:
        self.hand, self.client, self.now = hand, client, SystemClock().now_ms()
        self.queues = [QueueKeys("glide", "etl"), QueueKeys("glide", "spark")]
        self.etl, self.spark = (PlainNode(client, queue.queue, self.now) for queue in self.queues)

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()

    def supervise(self, seconds: int = 20) -> None:
        self.now += seconds * 1000
        self.etl.at = self.spark.at = self.now
        for queue in self.queues:
            self.hand.run(supervise.tick(Supervision(queue, "one"), self))

    def run(self, *broken: str) -> list[str]:
        """Run everything to its end; the names in the order in which they ended."""
        order: list[str] = []
        while ended := [*self.etl.run_all(*broken), *self.spark.run_all(*broken)]:
            order += [job_id.removeprefix("f~") for job_id in ended]
            self.supervise()
        return order


@pytest.fixture
def fleet(hand: Hand, redis_client: Any) -> Fleet:
    return Fleet(hand, redis_client)


def test_row_1_a_refused_submission_leaves_nothing(
    flows: FlowProducer, redis_client: Any, dump: Dump
) -> None:
    redis_client.hset("glide:{etl}:job:f~a", mapping={"id": "f~a", "state": "completed"})
    before = dump()
    with pytest.raises(FlowConflict):
        flows.submit(DIAMOND, flow_id="f")
    after = dump()
    assert {key: value for key, value in after.items() if not key.endswith(":events")} == before


def test_row_2_a_repeated_submission_attaches_wherever_the_first_was_cut(
    flows: FlowProducer, fleet: Fleet, hand: Hand, redis_client: Any
) -> None:
    for cut in range(20):
        redis_client.flushdb()
        sent = hand.run_until(submit_flow("glide", check_flow(DIAMOND), "f", "attach", fleet), cut)
        found = flows.submit(DIAMOND, flow_id="f")
        assert found.status().total == len(redis_client.keys("*:job:*")) == 4
        if sent < cut:
            return
    raise AssertionError("never done")


def test_row_3_a_failed_dependency_ends_its_dependents_and_the_flow(
    flows: FlowProducer, fleet: Fleet
) -> None:
    found = flows.submit(DIAMOND, flow_id="f")
    assert fleet.run("~a") == ["a"]
    outcome = found.outcome()
    assert outcome.status.state is FlowState.FAILED
    assert {failed.name: failed.reason for failed in outcome.failed}["d"] == "upstream failed: a"


def test_row_4_blocked_nodes_are_seen(flows: FlowProducer) -> None:
    found = flows.submit(DIAMOND, flow_id="f")
    assert [(seen.name, seen.state) for seen in found.nodes()] == [
        ("a", "waiting"),
        ("b", "waiting-children"),
        ("c", "waiting-children"),
        ("d", "waiting-children"),
    ]


def test_row_5_edges_across_queues_fire(flows: FlowProducer, fleet: Fleet) -> None:
    spec = FlowSpec("n", [node("a"), node("b", "a"), node("c", "b", queue="spark"), node("d", "c", "a")])
    found = flows.submit(spec, flow_id="f")
    assert fleet.run() == ["a", "b", "c", "d"]
    assert found.status().state is FlowState.COMPLETED


def test_row_6_no_dependent_starts_before_all_its_dependencies_are_done(
    flows: FlowProducer, hand: Hand, redis_client: Any
) -> None:
    """Wherever the submission stands, Node workers find nothing to run, or what has no open dependency."""
    spec = FlowSpec("n", [node("a"), node("b", "a"), node("x"), node("y"), node("d", "b", "x", "y")])
    for cut in range(20):
        redis_client.flushdb()
        fleet = Fleet(hand, redis_client)
        sent = hand.run_until(submit_flow("glide", check_flow(spec), "f", "attach", fleet), cut)
        ended = fleet.etl.run_all()
        assert "f~d" not in ended or set(ended[:-1]) == {"f~a", "f~b", "f~x", "f~y"}
        flows.submit(spec, flow_id="f")
        fleet.supervise()
        fleet.run()
        assert flows.get("f").status().completed == 5
        if sent < cut:
            return
    raise AssertionError("never done")


def test_row_7_a_dependency_that_ran_at_once_releases_its_dependent(
    flows: FlowProducer, fleet: Fleet
) -> None:
    taken: list[Any] = []
    flows.submit(FlowSpec("n", [node("a"), node("b", "a"), node("c", "b")]), flow_id="f")
    taken.append(fleet.etl.begin_next())
    flows.submit(FlowSpec("n", [node("a"), node("b", "a"), node("c", "b")]), flow_id="f")
    fleet.etl.end(*taken[0])
    assert fleet.run() == ["b", "c"]


def test_row_8_what_node_removed_at_its_end_has_its_value_and_releases(
    flows: FlowProducer, fleet: Fleet
) -> None:
    found = flows.submit(DIAMOND, flow_id="f")
    taken = fleet.etl.begin_next()
    assert taken is not None
    fleet.etl.end(*taken, '"kept"', remove=True)
    fleet.supervise()
    assert fleet.run() == ["b", "c", "d"]
    assert found.results()["a"] == "kept"
    assert found.status().state is FlowState.COMPLETED


def test_row_9_a_flow_has_an_id_a_status_a_list_a_retry_and_a_cancel(
    flows: FlowProducer, fleet: Fleet
) -> None:
    flows.submit(DIAMOND, flow_id="f")
    fleet.run("~b")
    found = flows.get("f")
    assert (found.status().state, found.status().completed, found.status().failed) == ("failed", 2, 2)
    assert found.retry_failed() is FlowState.RUNNING
    assert fleet.run() == ["b", "d"]
    assert found.status().state is FlowState.COMPLETED
    other = flows.submit(DIAMOND, flow_id="g")
    other.cancel("enough")
    assert other.status().state is FlowState.CANCELLED
    assert {seen.id for seen in flows.list()} == {"f", "g"}


def test_row_10_a_cancel_ends_all_nodes_whatever_node_reports_later(
    flows: FlowProducer, fleet: Fleet
) -> None:
    found = flows.submit(DIAMOND, flow_id="f")
    taken = fleet.etl.begin_next()
    assert taken is not None
    found.cancel("enough")
    assert (found.status().state, found.status().failed) == ("cancelled", 4)
    fleet.etl.end(*taken)
    fleet.supervise()
    assert (found.status().state, found.status().completed) == ("cancelled", 0)
    assert fleet.run() == []


def test_row_10_a_revoked_blocked_node_ends(flows: FlowProducer, fleet: Fleet) -> None:
    found = flows.submit(DIAMOND, flow_id="f")
    fleet.etl.revoke("f~d")
    fleet.supervise()
    assert {failed.name: failed.reason for failed in found.outcome().failed} == {"d": "revoked"}


def test_row_13_the_delay_of_a_dependent_holds_when_it_is_released(flows: FlowProducer, fleet: Fleet) -> None:
    late = timedelta(seconds=30)
    flows.submit(
        FlowSpec("n", [node("a"), node("b", "a", delay=late), node("c", "a", queue="spark", delay=late)]),
        flow_id="f",
    )
    taken = fleet.etl.begin_next()
    assert taken is not None
    fleet.etl.end(*taken)
    fleet.supervise(seconds=1)
    assert fleet.run() == []
    fleet.supervise(seconds=31)
    assert fleet.run() == ["b", "c"]
