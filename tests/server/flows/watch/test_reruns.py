"""Watching flows whose nodes run again: a position tells the runs of a node apart."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows import FlowChange, NodeChange
from glidemq_orchestrate.flows import watch as flow_watch
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.call import Op
from tests.builders import node
from tests.profile import IS_ALL
from tests.server.conftest import STAGED
from tests.server.flows.watch.changes import Change, watched
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Hand

pytestmark = pytest.mark.usefixtures("path")


def pair(**kw: Any) -> FlowSpec:
    return FlowSpec("w", [node("a", **kw), node("b", "a")])


def told(changes: Sequence[Change]) -> list[tuple[str, str]]:
    return [(getattr(one, "node", "flow"), str(one.state)) for one in changes]


ENDED = [("a", "completed"), ("b", "completed"), ("flow", "completed")]
RESULTS: dict[str, Callable[[Any], Any]] = {
    "rerun": lambda flow: flow.rerun("a"),
    "complete": lambda flow: flow.complete_node("a", "by hand"),
}


class TestTheSameEndAgain:
    @pytest.mark.parametrize("again", list(RESULTS))
    def test_it_is_reported_once_with_all_that_follows(self, twins: Clients, work: Work, again: str) -> None:
        flow = twins.do(twins.flows().submit(pair(), flow_id="w"))
        position = watched(twins, flow)[-1].position
        for _ in range(2):
            twins.do(RESULTS[again](flow) if again == "rerun" else flow.complete_node("a", position[-9:]))
            twins.do(flow.wait(timeout=LONG))
            changes = watched(twins, flow, after=position)
            assert told(changes) == ENDED
            for number, change in enumerate(changes[:-1]):
                assert told(watched(twins, flow, after=change.position)) == ENDED[number + 1 :]
            position = changes[-1].position
            assert watched(twins, flow, after=position) == []

    def test_the_same_failure_again(self, flows: FlowProducer, work: Work) -> None:
        work.ends["a"] = "failed"
        flow = flows.submit(pair(), flow_id="w")
        position = list(flow.watch(timeout=LONG))[-1].position
        flow.retry_failed()
        flow.wait(timeout=LONG)
        changes = list(flow.watch(after=position))
        assert told(changes) == [("a", "failed"), ("b", "failed"), ("flow", "failed")]
        assert list(flow.watch(after=changes[-1].position)) == []

    def test_a_node_that_is_skipped_again(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(FlowSpec("w", [node("skipped.a"), node("b", "skipped.a")]), flow_id="w")
        position = list(flow.watch(timeout=LONG))[-1].position
        flow.rerun("skipped.a", dependents=False)
        flow.wait(timeout=LONG)
        assert told(list(flow.watch(after=position))) == [("skipped.a", "skipped"), ("flow", "completed")]

    @pytest.mark.usefixtures("frequent_chores")
    def test_while_the_flow_still_runs(self, flows: FlowProducer, work: Work, eventually: Eventually) -> None:
        flow = flows.submit(pair(), flow_id="w")
        position = list(flow.watch(timeout=LONG))[-1].position
        work.held["b"] = threading.Event()
        flow.rerun("a")
        eventually(lambda: states(flow) == {"a": "completed", "b": "active"})
        watching = flow.watch(after=position, timeout=LONG)
        first, second = next(watching), next(watching)
        assert told([first, second]) == [("a", "completed"), ("b", "active")]
        resumed = flow.watch(after=first.position, timeout=LONG)
        assert told([next(resumed)]) == [("b", "active")]
        work.held["b"].set()
        for rest in (watching, resumed, flow.watch(after=second.position, timeout=LONG)):
            assert told(list(rest)) == ENDED[1:]

    @STAGED
    def test_another_attempt_in_the_same_state(
        self, flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        go = threading.Semaphore(0)

        def work(ctx: Any) -> str:
            assert go.acquire(timeout=30)
            if ctx.attempt < 3:
                raise ValueError("not yet")
            return "done"

        flow = flows.submit(FlowSpec("w", [node("a", options=JobOptions(attempts=3))]))
        run_worker(["etl"], {"work": work})
        eventually(lambda: states(flow) == {"a": "active"})
        change = next(flow.watch())
        go.release()
        eventually(lambda: flow.node("a").attempts == 2 and states(flow) == {"a": "active"})
        change = next(flow.watch(after=change.position))
        assert (str(change.state), change.attempts) == ("active", 2)  # type: ignore[union-attr]
        go.release(2)
        assert told(list(flow.watch(after=change.position, timeout=LONG)))[-2:] == [
            ("a", "completed"),
            ("flow", "completed"),
        ]

    @STAGED
    def test_nodes_that_were_added_run_again(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(pair(), flow_id="w")
        flow.wait(timeout=LONG)
        flow.extend([node("c", "b")])
        position = list(flow.watch(timeout=LONG))[-1].position
        flow.rerun("c")
        flow.wait(timeout=LONG)
        assert told(list(flow.watch(after=position))) == [("c", "completed"), ("flow", "completed")]

    @STAGED
    def test_a_job_that_was_removed_since_is_not_reported_again(
        self, flows: FlowProducer, work: Work, redis_client: Any
    ) -> None:
        flow = flows.submit(pair(), flow_id="w")
        flow.wait(timeout=LONG)
        flow.rerun("a")
        position = list(flow.watch(timeout=LONG))[-1].position
        redis_client.delete("glide:{etl}:job:w~a")
        assert list(flow.watch(after=position)) == []

    def test_each_run_has_its_number(self, flows: FlowProducer, work: Work) -> None:
        flow = flows.submit(pair(), flow_id="w")
        flow.wait(timeout=LONG)
        runs = [tuple(one.reruns for one in flow.nodes())]
        for name in ("b", "a", "b"):
            flow.rerun(name)
            flow.wait(timeout=LONG)
            runs.append(tuple(one.reruns for one in flow.nodes()))
        first, second = zip(*runs, strict=True)
        assert first[0] == first[1] == 0 < first[2] == first[3]
        assert 0 == second[0] < second[1] < second[2] < second[3]


class TestWhileItBeginsAgain:
    """The record is read, then nodes run again, then they are read."""

    def test_an_end_before_the_events_are_followed_is_seen_at_once(
        self, flows: FlowProducer, work: Work, hand: Hand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work.held["b"] = threading.Event()
        flow = flows.submit(pair(), flow_id="w")
        hold = flow_watch._hold_streams

        def hold_later(watch: flow_watch.Watch, found: flow_watch.FoundNodes) -> Op[bool]:
            work.held["b"].set()
            flow.wait(timeout=LONG)
            return (yield from hold(watch, found))

        monkeypatch.setattr(flow_watch, "_hold_streams", hold_later)
        watch = flow_watch.begin_watch(flow._ref, None, 60_000, SystemClock())
        assert told(hand.run(flow_watch.next_changes(watch))) == ENDED

    @pytest.mark.parametrize("has_ended", [False, True])
    def test_the_end_before_is_not_the_last_change(
        self, flows: FlowProducer, work: Work, hand: Hand, monkeypatch: pytest.MonkeyPatch, *, has_ended: bool
    ) -> None:
        flow = flows.submit(pair(), flow_id="w")
        flow.wait(timeout=LONG)
        work.held["b"] = threading.Event()
        way = backend_of(flow._ref)
        read, reads = way.ranked, count(1)

        def read_later(ref: FlowRef) -> Op[flow_watch.FoundNodes]:
            if next(reads) == 2:
                flow.rerun("a")
                if has_ended:
                    work.held["b"].set()
                    flow.wait(timeout=LONG)
            return (yield from read(ref))

        monkeypatch.setattr(type(way), "ranked", staticmethod(read_later))
        watch = flow_watch.begin_watch(flow._ref, None, 60_000, SystemClock())
        first = hand.run(flow_watch.next_changes(watch))
        assert not [one for one in first if isinstance(one, FlowChange)]
        work.held["b"].set()
        changes = list(first)
        while not watch.is_over:
            changes += hand.run(flow_watch.next_changes(watch))
        assert told(changes)[-1] == ("flow", "completed")
        assert dict(told(changes)) == dict(ENDED)
        assert changes[-1].at == flow.status().finished_at
        assert list(flow.watch(after=changes[-1].position)) == []

    def test_a_dependency_is_reported_before_what_follows_it(
        self, flows: FlowProducer, work: Work, hand: Hand
    ) -> None:
        flow = flows.submit(FlowSpec("w", [node("a"), node("b", "a", queue="spark")]), flow_id="w")
        flow.wait(timeout=LONG)
        watch = flow_watch.begin_watch(flow._ref, None, 60_000, SystemClock())
        hand.run(flow_watch.next_changes(watch))
        flow.rerun("a")
        flow.wait(timeout=LONG)
        late = hand.run(flow_watch._read(watch, ["b"]))
        assert told(hand.run(flow_watch._changes(watch, late))) == ENDED[:-1]
        assert hand.run(flow_watch._changes(watch, late)) == []


class Mirror:
    """What a consumer keeps of a flow by the changes it is told, and the position after the last of them."""

    def __init__(self, flow: Any) -> None:
        self.flow, self.position = flow, None
        self.results: dict[str, Any] = {}
        self.is_ended = False

    def take(self, change: Change) -> None:
        self.position = change.position  # type: ignore[assignment]
        self.is_ended = isinstance(change, FlowChange)
        if isinstance(change, NodeChange):
            self.results.pop(change.node, None)
            if change.state == "completed":
                self.results |= self.flow.results([change.node])

    def read(self, most: int | None = None) -> int:
        """Take up to so many changes; None: all until the end. Returns how many there were."""
        watching = self.flow.watch(after=self.position, timeout=LONG)
        taken = 0
        for change in watching:
            self.take(change)
            taken += 1
            if taken == most:
                break
        return taken


@pytest.mark.parametrize("seed", range(3 if IS_ALL else 1))
def test_a_mirror_kept_by_positions_has_the_results_at_each_end(
    flows: FlowProducer, run_worker: RunWorker, seed: int
) -> None:
    dice, results = random.Random(seed), count()
    names = [f"n{number}" for number in range(8)]
    broken = {"n3"}

    def work(ctx: Any) -> int:
        if ctx.node in broken:
            raise ValueError("broken")
        return next(results)  # another one in each run

    run_worker(["etl"], {"work": work}, concurrency=4)
    nodes = [
        FlowNode(name, queue="etl", job="work", after=dice.sample(names[:at], min(at, dice.randrange(3))))
        for at, name in enumerate(names)
    ]
    flow = flows.submit(FlowSpec("w", nodes), flow_id="w")
    mirror = Mirror(flow)
    actions: list[Callable[[], Any]] = [
        lambda: flow.rerun(dice.choice(names)),
        lambda: flow.rerun(nodes=dice.sample(names, 2), dependents=False),
        lambda: flow.complete_node(dice.choice(names), next(results)),
        lambda: flow.complete_node(dice.choice(names), "always the same"),
        lambda: flow.skip_node(dice.choice(names)),
        flow.retry_failed,
        lambda: broken.symmetric_difference_update({dice.choice(names)}),
    ]
    ends = 0
    for _ in range(30):
        for _ in range(dice.randrange(1, 4)):
            with suppress(GlideMQError):  # a node that has not ended does not run again
                dice.choice(actions)()
            if dice.random() < 0.3:
                mirror.read(dice.randrange(1, 6))
        ended = flow.wait(timeout=LONG)
        taken = mirror.read()
        assert mirror.is_ended
        assert mirror.results == ended.results == flow.results()
        assert mirror.read() == 0
        ends += bool(taken)
    assert ends > 3
