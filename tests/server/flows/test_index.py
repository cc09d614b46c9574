"""Listing flows, and what is left of them: retention, tombstones, abandoned submissions."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, FlowState
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowConflict,
    FlowExpired,
    FlowNotFound,
    InvalidFlow,
    ProtocolError,
)
from glidemq_orchestrate.flows import index
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Dump, Hand

ETL = QueueKeys("glide", "etl")
DAY = timedelta(days=1)
LONG = timedelta(seconds=30)


class Hours:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()


@pytest.fixture
def clock() -> Hours:
    return Hours()


@pytest.fixture
def timed(url: str, clock: Hours) -> Iterator[FlowProducer]:
    with FlowProducer(url, clock=clock) as producer:
        yield producer


def spec(name: str = "n", nodes: int = 1, queue: str = "etl", **kw: Any) -> FlowSpec:
    return FlowSpec(name, [FlowNode(f"n{n}", queue=queue, job="work") for n in range(nodes)], **kw)


def ids(found: Any) -> list[str]:
    return [flow.id for flow in found]


class TestListing:
    def test_flows_are_listed_from_new_to_old_over_all_queues(self, clients: Clients) -> None:
        clock = Hours()
        flows = clients.flows(clock=clock)
        for number in range(4):
            clock.now += 1000
            flows.submit(spec(queue=f"q{number % 2}"), flow_id=f"f{number}")
        found = flows.list()
        assert ids(found) == ["f3", "f2", "f1", "f0"]
        assert (found[0].state, found[0].home, found[0].total) == (FlowState.RUNNING, "q1", 1)
        assert ids(flows.list(limit=2)) == ["f3", "f2"]
        assert ids(flows.list(since=datetime.fromtimestamp(1003, UTC))) == ["f3", "f2"]

    def test_filters_by_state_and_label_can_be_joined(self, clients: Clients) -> None:
        flows = clients.flows()
        for number in range(6):
            labels = {"dag": "etl" if number % 2 else "ml", "run": str(number)}
            flows.submit(spec(labels=labels), flow_id=f"f{number}")
        for number in (0, 1):
            flows.get(f"f{number}").cancel()

        def listed(**kw: Any) -> list[str]:
            return sorted(ids(flows.list(**kw)))

        assert listed(state="cancelled") == ["f0", "f1"]
        assert listed(state=FlowState.RUNNING) == ["f2", "f3", "f4", "f5"]
        assert listed(label=("dag", "etl")) == ["f1", "f3", "f5"]
        assert listed(label=("run", "4")) == ["f4"]
        assert listed(label=("dag", "etl"), state="running") == ["f3", "f5"]
        assert listed(label=("dag", "none")) == []
        assert listed(state="completed") == []

    def test_labels_that_share_an_entry_are_kept_apart(self, flows: FlowProducer) -> None:
        flows.submit(spec(labels={"a": "b=c"}), flow_id="one")
        flows.submit(spec(labels={"a=b": "c"}), flow_id="two")
        assert ids(flows.list(label=("a", "b=c"))) == ["one"]
        assert ids(flows.list(label=("a=b", "c"))) == ["two"]

    def test_pages_miss_nothing_and_repeat_nothing(self, timed: FlowProducer, clock: Hours) -> None:
        for number in range(25):  # several at the same millisecond, in two homes
            clock.now += number % 5 == 0
            timed.submit(spec(queue=f"q{number % 2}"), flow_id=f"f{number:02}")
        seen: list[str] = []
        last = None
        while page := timed.list(limit=4, before=last):
            seen += ids(page)
            last = page[-1]
        assert seen == ids(timed.list())
        assert sorted(seen) == [f"f{number:02}" for number in range(25)]

    def test_more_flows_than_a_page_holds_are_listed(self, timed: FlowProducer, clock: Hours) -> None:
        for number in range(230):
            clock.now += 1
            timed.submit(spec(labels={"odd": str(number % 2)}), flow_id=f"f{number}")
        assert len(timed.list(limit=1000)) == 230
        assert ids(timed.list(limit=3, label=("odd", "1"))) == ["f229", "f227", "f225"]
        timed.get("f0").cancel()
        assert ids(timed.list(state="cancelled", label=("odd", "0"))) == ["f0"]

    def test_an_invalid_filter_is_refused(self, flows: FlowProducer) -> None:
        filters: list[dict[str, Any]] = [
            {"state": "done"},
            {"label": "dag=etl"},
            {"label": ("a", "b", "c")},
            {"since": datetime(2026, 1, 1)},  # noqa: DTZ001  the point of the test
            {"limit": 0},
            {"limit": 10_001},
        ]
        for wrong in filters:
            with pytest.raises(ConfigurationError, match=next(iter(wrong))):
                flows.list(**wrong)

    def test_labels_that_cannot_be_listed_are_refused(self, flows: FlowProducer, dump: Dump) -> None:
        for labels in [{str(n): "x" for n in range(33)}, {"": "x"}, {"x": ""}, {"x": "y" * 257}, {"x": 1}]:
            before = dump()
            with pytest.raises(InvalidFlow, match="label"):
                flows.submit(spec(labels=labels))
            assert dump() == before

    def test_a_flow_is_listed_under_the_state_it_has(
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        broken = itertools.count()

        def work(ctx: Any) -> None:
            if next(broken) == 0:
                raise ValueError("first")

        run_worker(["etl"], {"work": work})
        flow = flows.submit(spec(), flow_id="f")
        assert flow.wait(timeout=LONG).status.state is FlowState.FAILED
        assert ids(flows.list(state="failed")) == ["f"]
        assert ids(flows.list(state="running")) == []
        flow.retry_failed()
        assert flow.wait(timeout=LONG).status.state is FlowState.COMPLETED
        assert ids(flows.list(state="completed")) == ["f"]
        assert ids(flows.list(state="failed")) == []


def end(hand: Hand, flows: FlowProducer, flow_id: str = "f") -> None:
    flows.get(flow_id).cancel("over")


def sweep(hand: Hand, clock: Hours, **kw: Any) -> bool:
    return hand.run(index.sweep([ETL], clock, **kw))


class TestRetention:
    def test_nothing_is_removed_without_it_or_before_its_time(
        self, hand: Hand, timed: FlowProducer, clock: Hours, dump: Dump
    ) -> None:
        for name, retention in (("keep", None), ("day", DAY)):
            timed.submit(spec(retention=retention), flow_id=name).cancel()
        timed.submit(spec(retention=timedelta(0)), flow_id="runs")
        before = dump()
        clock.now += 86_399_999
        assert sweep(hand, clock) is False
        assert dump() == before
        clock.now += 1
        sweep(hand, clock)
        assert sorted(ids(timed.list())) == ["keep", "runs"]

    def test_afterwards_a_tombstone_holds_the_verdict(
        self, hand: Hand, timed: FlowProducer, clock: Hours, redis_client: Any
    ) -> None:
        again = spec("nightly", 250, labels={"dag": "x"}, retention=DAY)
        timed.submit(again, flow_id="f").cancel("why")
        clock.now += 86_400_000
        assert sweep(hand, clock) is False
        status = timed.get("f").status()
        assert (status.state, status.name, status.reason) == (FlowState.CANCELLED, "nightly", "why")
        assert (status.total, status.failed, status.labels) == (250, 250, {"dag": "x"})
        assert timed.list() == []
        left = {key for key in redis_client.keys("*") if not key.endswith((":events", ":stream"))}
        assert left == {"glide:gmo:home:{f}", "glide:{etl}:gmo:flow:f", "glide:{etl}:gmo:expiring"}
        assert 29 * 86400 < redis_client.ttl("glide:gmo:home:{f}") <= 30 * 86400
        assert 29 * 86400 < redis_client.ttl("glide:{etl}:gmo:flow:f") <= 30 * 86400

    def test_a_flow_that_cannot_be_removed_holds_up_no_other(
        self, hand: Hand, timed: FlowProducer, clock: Hours, redis_client: Any
    ) -> None:
        for name in ("broken", "fine"):
            timed.submit(spec(name, retention=DAY), flow_id=name).cancel()
            clock.now += 1
        redis_client.delete("glide:{etl}:gmo:flow:broken:nodes")
        redis_client.set("glide:{etl}:gmo:flow:broken:nodes", "odd")
        clock.now += 86_400_000
        with pytest.raises(ProtocolError, match="flow broken: WRONGTYPE"):
            sweep(hand, clock)
        assert sweep(hand, clock) is False
        assert timed.get("fine").status().state is FlowState.CANCELLED
        with pytest.raises(FlowExpired):
            timed.get("fine").nodes()
        redis_client.delete("glide:{etl}:gmo:flow:broken:nodes")
        clock.now += 3_600_000
        sweep(hand, clock)
        with pytest.raises(FlowExpired):
            timed.get("broken").nodes()

    def test_a_tombstone_is_attached_to_and_has_no_results(
        self, hand: Hand, timed: FlowProducer, clock: Hours, dump: Dump
    ) -> None:
        timed.submit(spec(retention=DAY), flow_id="f").cancel()
        clock.now += 86_400_000
        sweep(hand, clock)
        before = dump()
        again = timed.submit(spec(retention=DAY), flow_id="f")
        assert again.status().state is FlowState.CANCELLED
        for asked in (again.results, again.nodes, again.leaves, again.wait, again.retry_failed):
            with pytest.raises(FlowExpired, match="retention"):
                asked()
        with pytest.raises(FlowExpired, match="retention"):
            again.results(["a"])
        with pytest.raises(FlowExpired):
            timed.submit(spec(retention=DAY), flow_id="f", on_existing="retry_failed")
        with pytest.raises(FlowExpired):
            again.extend([FlowNode("more", queue="etl", job="work")])
        with pytest.raises(FlowConflict):
            timed.submit(spec("another"), flow_id="f")
        assert again.cancel() is FlowState.CANCELLED
        assert dump() == before

    def test_the_id_is_free_after_the_tombstone_whoever_asked_for_it_meanwhile(
        self, hand: Hand, timed: FlowProducer, clock: Hours, redis_client: Any
    ) -> None:
        timed.submit(spec(retention=DAY), flow_id="f").cancel()
        clock.now += 86_400_000
        sweep(hand, clock, tombstone=DAY)
        timed.submit(spec(retention=DAY), flow_id="f")
        clock.now += 86_400_000
        sweep(hand, clock, tombstone=DAY)  # the clock of the server is behind: the tombstone is still there
        assert redis_client.exists("glide:{etl}:gmo:flow:f")
        redis_client.delete("glide:{etl}:gmo:flow:f")
        clock.now += 86_400_001
        sweep(hand, clock, tombstone=DAY)
        assert not [key for key in redis_client.keys("*") if not key.endswith((":events", ":stream"))]

    def test_nodes_that_are_added_to_a_tombstone_are_refused_as_such(
        self, hand: Hand, timed: FlowProducer, clock: Hours
    ) -> None:
        flow = timed.submit(spec(retention=DAY), flow_id="f")
        flow.cancel()
        clock.now += 86_400_000
        sweep(hand, clock)
        known = spec().nodes[0]
        with pytest.raises(FlowExpired, match="retention"):
            flow.extend([FlowNode("more", queue="etl", job="work", after=[known.name])])

    def test_a_tombstone_lives_as_long_as_it_is_set_to(
        self, hand: Hand, timed: FlowProducer, clock: Hours, eventually: Eventually
    ) -> None:
        timed.submit(spec(retention=DAY), flow_id="f").cancel()
        clock.now += 86_400_000
        sweep(hand, clock, tombstone=timedelta(milliseconds=1))

        def gone() -> bool:
            try:
                timed.get("f").status()
            except FlowNotFound:
                return True
            return False

        assert eventually(gone)
        assert timed.submit(spec("another"), flow_id="f").status().state is FlowState.RUNNING

    def test_a_sweep_that_died_is_finished_by_the_next(
        self, hand: Hand, timed: FlowProducer, clock: Hours, redis_client: Any
    ) -> None:
        for died_after in range(5):
            redis_client.flushdb()
            timed.submit(spec(nodes=250, retention=DAY), flow_id="f").cancel()
            clock.now += 86_400_000
            hand.run_until(index.sweep([ETL], clock), died_after)
            if died_after:  # half a flow is not shown as one
                with pytest.raises(FlowExpired):
                    timed.get("f").results()
            sweep(hand, clock)
            assert redis_client.keys("*:job:*") == []
            assert timed.get("f").status().state is FlowState.CANCELLED

    def test_a_retry_stops_the_time(self, hand: Hand, timed: FlowProducer, clock: Hours) -> None:
        flow = timed.submit(spec(retention=DAY), flow_id="f")
        flow.cancel()
        flow.retry_failed()
        clock.now += 200_000_000
        sweep(hand, clock)
        assert flow.status().state is FlowState.RUNNING
        assert len(flow.nodes()) == 1

    def test_a_negative_retention_is_refused(self, flows: FlowProducer) -> None:
        with pytest.raises(InvalidFlow, match="retention"):
            flows.submit(spec(retention=timedelta(seconds=-1)))

    @pytest.mark.usefixtures("frequent_chores")
    def test_workers_sweep_their_queues(
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually, redis_client: Any
    ) -> None:
        run_worker(["etl"], {"work": lambda ctx: 1})
        flow = flows.submit(spec(nodes=120, retention=timedelta(0)), flow_id="f")
        assert eventually(lambda: redis_client.hget("glide:{etl}:gmo:flow:f", "expired_at"), 20)
        assert eventually(lambda: redis_client.keys("*:job:*") == [], 20)
        assert flow.status().state is FlowState.COMPLETED


CLAIMED = 7  # calls before the first chunk


class TestAbandoned:
    def test_a_half_submitted_flow_is_removed_without_a_trace(
        self, hand: Hand, timed: FlowProducer, clock: Hours, dump: Dump, redis_client: Any
    ) -> None:
        for calls in range(CLAIMED + 1, CLAIMED + 4):
            redis_client.flushdb()
            before = dump(events=False)
            half = check_flow(spec(nodes=130, labels={"a": "b"}))
            hand.run_until(submit_flow("glide", half, "f", "attach", clock), calls)
            assert ids(timed.list(state="staging")) == ["f"]
            clock.now += 15 * 60_000 - 1
            assert sweep(hand, clock) is False
            assert ids(timed.list()) == ["f"]
            clock.now += 1
            assert sweep(hand, clock) is False
            assert dump(events=False) == before
            assert timed.submit(spec(nodes=130), flow_id="f").status().state is FlowState.RUNNING

    def test_one_that_cannot_be_removed_holds_up_no_other(
        self, hand: Hand, timed: FlowProducer, clock: Hours, redis_client: Any
    ) -> None:
        for name in ("broken", "fine"):
            half = submit_flow("glide", check_flow(spec(nodes=130)), name, "attach", clock)
            hand.run_until(half, CLAIMED + 1)
            clock.now += 1
        redis_client.set("glide:{etl}:gmo:flow:broken", "odd")
        clock.now += 15 * 60_000
        with pytest.raises(ProtocolError, match="flow broken: WRONGTYPE"):
            sweep(hand, clock)
        assert sweep(hand, clock) is False
        assert redis_client.keys("*gmo:flow:fine*") == []

    def test_a_submitter_that_is_alive_is_left_alone(
        self, hand: Hand, timed: FlowProducer, clock: Hours
    ) -> None:
        slow = submit_flow("glide", check_flow(spec(nodes=130)), "f", "attach", clock)
        hand.run_until(slow, CLAIMED + 1)
        clock.now += 10 * 60_000
        other = submit_flow("glide", check_flow(spec(nodes=130)), "f", "attach", clock)
        hand.run_until(other, CLAIMED + 2)
        clock.now += 10 * 60_000
        sweep(hand, clock)
        assert ids(timed.list(state="staging")) == ["f"]

    def test_a_submitter_that_wakes_up_amid_the_sweep_succeeds(
        self, hand: Hand, timed: FlowProducer, clock: Hours, redis_client: Any
    ) -> None:
        for slices in range(1, 4):
            for calls in range(CLAIMED + 1, CLAIMED + 4):
                redis_client.flushdb()
                half = check_flow(spec(nodes=130))
                hand.run_until(submit_flow("glide", half, "f", "attach", clock), calls)
                clock.now += 15 * 60_000
                hand.run_until(index.sweep([ETL], clock), slices)
                hand.run(submit_flow("glide", half, "f", "attach", clock))
                sweep(hand, clock)
                assert timed.get("f").status().state is FlowState.RUNNING
                assert redis_client.xlen("glide:{etl}:stream") == 130
                assert ids(timed.list(state="running")) == ["f"]

    def test_a_sweep_between_the_chunks_of_a_submission_is_healed(
        self, hand: Hand, timed: FlowProducer, clock: Hours, redis_client: Any
    ) -> None:
        first = submit_flow("glide", check_flow(spec(nodes=130)), "f", "attach", clock)
        claiming: Any = next(first)
        trip = first.send([hand.answer(call) for call in claiming.calls])
        answers = [hand.answer(call) for call in trip.calls[:4]]  # type: ignore[union-attr]  # a batch
        late = Hours()
        late.now = clock.now + 15 * 60_000
        hand.run(index.sweep([ETL], late))
        answers += [hand.answer(call) for call in trip.calls[4:]]  # type: ignore[union-attr]  # a batch
        try:
            request = first.send(answers)
            while True:
                calls = getattr(request, "calls", None)
                reply: Any = [hand.answer(call) for call in calls] if calls else hand.answer(request)
                request = first.send(reply)
        except StopIteration:
            pass
        assert redis_client.xlen("glide:{etl}:stream") == 130
        assert timed.get("f").status().state is FlowState.RUNNING
