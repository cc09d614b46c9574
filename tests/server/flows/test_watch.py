"""Watching flows: every difference once, in order, whatever became of the events and of the reader."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, FlowSpec, FlowState, JobOptions, Worker
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, NodeNotFound, WaitTimeout
from glidemq_orchestrate.flows import FlowChange, NodeChange
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.flows.watch import _changes, _read, begin_watch, next_changes
from glidemq_orchestrate.foundation.clock import SystemClock
from tests.builders import flow, node
from tests.processes import spawned

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Hand, Record

LONG = timedelta(seconds=60)
Change = NodeChange | FlowChange


NO_DIAMOND = flow(node("a"), node("b", "a"), node("c", "a"), node("d", "c"))
DIAMOND = flow(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"))


def layers(width: int, depth: int, queues: Sequence[str] = ("etl",)) -> FlowSpec:
    """Each node waits for two of the layer before; the queues take turns."""
    nodes = []
    for layer in range(depth):
        for at in range(width):
            after = [f"{layer - 1}-{at}", f"{layer - 1}-{(at + 1) % width}"] if layer else []
            nodes.append(node(f"{layer}-{at}", *after, queue=queues[(layer + at) % len(queues)]))
    return flow(*nodes)


def last_states(changes: Sequence[Change]) -> dict[str, str]:
    return {one.node: str(one.state) for one in changes if isinstance(one, NodeChange)}


def steps(changes: Sequence[Change]) -> list[tuple[str, str]]:
    return [(one.node, str(one.state)) for one in changes if isinstance(one, NodeChange)]


def check(spec: FlowSpec, changes: Sequence[Change]) -> None:
    """No state twice in a row, and no start before the dependencies were reported to have ended."""
    now: dict[str, str] = {}
    after: dict[str, Sequence[str]] = {one.name: one.after for one in spec.nodes}
    for change in changes:
        if isinstance(change, FlowChange):
            assert change is changes[-1]
            continue
        assert now.get(change.node) != change.state or change.state == "active", change
        now[change.node] = str(change.state)
        if change.state in ("waiting", "active", "completed"):
            assert all(now.get(name) == "completed" for name in after.get(change.node, ())), change


class TestWatching:
    def test_every_node_is_reported_in_order_and_then_the_end(
        self, twins: Clients, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        found = twins.do(twins.flows().submit(DIAMOND))
        run_worker(["etl"], {"work": recorder()})
        changes = watched(twins, found, timeout=LONG)
        check(DIAMOND, changes)
        assert last_states(changes) == dict.fromkeys("abcd", "completed")
        end = changes[-1]
        assert isinstance(end, FlowChange)
        assert (end.flow, end.state, end.reason) == (found.id, "completed", "")
        assert [one.node for one in changes[:-1] if one.state == "completed"][::3] == ["a", "d"]

    def test_a_flow_that_has_ended_is_reported_and_nothing_more(
        self, twins: Clients, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        found = twins.do(twins.flows().submit(DIAMOND))
        run_worker(["etl"], {"work": recorder("b")})
        twins.do(found.wait(timeout=LONG))
        changes = watched(twins, found)
        assert steps(changes[:-1]) == [
            ("a", "completed"), ("b", "failed"), ("c", "completed"), ("d", "failed")
        ]  # fmt: skip
        assert [one.reason for one in changes[:-1]] == [
            "",
            "ValueError: b is broken",
            "",
            "upstream failed: b",
        ]
        assert (changes[-1].state, changes[-1].reason) == ("failed", "b: ValueError: b is broken")
        assert all(one.at.tzinfo for one in changes)
        assert watched(twins, found, after=changes[-1].position) == []

    def test_progress_and_attempts_are_reported(self, flows: FlowProducer, run_worker: RunWorker) -> None:
        go, attempts = threading.Semaphore(0), iter([1, 2])

        def work(ctx: Any) -> str:
            attempt = next(attempts)
            ctx.progress(50 + attempt)
            assert go.acquire(timeout=30)
            if attempt == 1:
                raise ValueError("not yet")
            return "done"

        found = flows.submit(flow(node("a", options=JobOptions(attempts=2))))
        run_worker(["etl"], {"work": work})
        changes = list[NodeChange]()
        for change in found.watch(timeout=LONG):
            if not isinstance(change, NodeChange):
                break
            changes.append(change)
            if (change.attempts, change.progress) in ((1, 51), (2, 52)):
                go.release()
        active = [(one.attempts, one.progress) for one in changes if one.state == "active"]
        assert (1, 51) in active
        assert (2, 52) in active
        assert (changes[-1].state, changes[-1].attempts) == ("completed", 2)

    def test_nodes_in_several_queues_are_reported_in_order(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        queues = ("etl", "spark", "bi")
        spec = layers(6, 12, queues)
        found = flows.submit(spec)
        record = recorder()
        for queue in queues:
            run_worker([queue], {"work": record}, concurrency=4)
        changes = list(found.watch(timeout=LONG))
        check(spec, changes)
        assert set(last_states(changes).values()) == {"completed"}
        assert len(last_states(changes)) == 72

    def test_a_cancelled_flow_is_reported_to_its_end(self, flows: FlowProducer) -> None:
        found = flows.submit(DIAMOND)
        watching = found.watch(timeout=LONG)
        assert steps([next(watching)]) == [("a", "waiting")]
        found.cancel("enough")
        changes = list(watching)
        assert last_states(changes) == dict.fromkeys("abcd", "failed")
        assert (changes[-1].state, changes[-1].reason) == ("cancelled", "enough")

    def test_nodes_that_are_added_meanwhile_are_reported_too(
        self, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        def work(ctx: Any) -> None:
            if ctx.node == "a":
                ctx.flow.add_nodes([node("more-1", queue="late"), node("more-2", "more-1", queue="late")])

        run_worker(["etl", "late"], {"work": work})
        found = flows.submit(flow(node("a"), node("z", "a")))
        changes = list(found.watch(timeout=LONG))
        assert last_states(changes) == dict.fromkeys(["a", "z", "more-1", "more-2"], "completed")
        again = list(found.watch(after=changes[-3].position))
        assert [replace(one, position="") for one in again] == [
            replace(one, position="") for one in changes[-2:]
        ]  # a position has several texts

    def test_skipped_nodes_and_those_that_wait_for_one_of_many_are_reported(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        held = threading.Event()

        def work(ctx: Any) -> None:
            if ctx.node == "slow":
                assert held.wait(30)
            if ctx.node == "broken":
                raise ValueError("broken")

        run_worker(["etl"], {"work": work}, concurrency=4)
        found = flows.submit(
            flow(
                node("broken", on_failure="skip"),
                node("skipped", "broken"),
                node("quick"),
                node("slow"),
                node("eager", "quick", "slow", rule="one_success"),
            )
        )
        changes: list[Change] = []
        for change in found.watch(timeout=LONG):
            changes.append(change)
            if last_states(changes).get("eager") == "completed":
                held.set()
        assert last_states(changes) == {
            "broken": "failed", "skipped": "skipped", "quick": "completed", "slow": "completed",
            "eager": "completed",
        }  # fmt: skip
        order = [name for name, state in steps(changes) if state in ("completed", "failed", "skipped")]
        assert order.index("quick") < order.index("eager") < order.index("slow")
        assert order.index("broken") < order.index("skipped")
        assert list(found.watch(after=changes[-1].position)) == []
        assert [one.position for one in found.watch(after=changes[-2].position)] == [changes[-1].position]

    def test_patience_ends_and_the_flow_goes_on(self, twins: Clients) -> None:
        found = twins.do(twins.flows().submit(DIAMOND))
        with pytest.raises(WaitTimeout, match="continue after the last position"):
            watched(twins, found, timeout=timedelta(milliseconds=50))
        assert twins.do(found.status()).state is FlowState.RUNNING


class TestGoingOn:
    def test_a_reader_that_goes_on_after_any_change_gets_the_rest_once(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        spec = layers(4, 8, ("etl", "bi"))
        found = flows.submit(spec)
        run_worker(["etl", "bi"], {"work": recorder()}, concurrency=3)
        dice, changes = random.Random(7), list[Change]()
        position: str | None = None
        while not changes or isinstance(changes[-1], NodeChange):
            watching = flows.get(found.id).watch(after=position, timeout=LONG)
            for _, change in zip(range(dice.randrange(1, 9)), watching, strict=False):
                changes.append(change)
                position = change.position
        check(spec, changes)
        assert set(last_states(changes).values()) == {"completed"}

    def test_events_that_were_trimmed_away_hide_nothing(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record], redis_client: Any
    ) -> None:
        spec = layers(3, 10)
        found = flows.submit(spec)
        run_worker(["etl"], {"work": recorder()})
        changes = []
        for change in found.watch(timeout=LONG):
            changes.append(change)
            redis_client.xtrim("glide:{etl}:events", maxlen=0, approximate=False)
        check(spec, changes)
        assert last_states(changes) == dict.fromkeys((one.name for one in spec.nodes), "completed")

    def test_a_reader_that_slept_through_everything_gets_the_differences(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record], redis_client: Any
    ) -> None:
        found = flows.submit(DIAMOND)
        watching = found.watch(timeout=LONG)
        first = next(watching)
        run_worker(["etl"], {"work": recorder()})
        found.wait(timeout=LONG)
        redis_client.delete("glide:{etl}:events")
        expected = [(name, "completed") for name in "abcd"]
        assert steps(list(watching)[:-1]) == expected
        rest = list(flows.get(found.id).watch(after=first.position))
        assert steps(rest[:-1]) == expected

    def test_another_process_goes_on_from_the_stored_position(
        self, url: str, flows: FlowProducer, run_worker: RunWorker
    ) -> None:
        held = threading.Event()
        run_worker(["etl"], {"work": lambda ctx: ctx.node in ("a", "b") or held.wait(30)}, concurrency=1)
        found = flows.submit(flow(node("a"), node("b", "a"), node("c", "b")))
        changes: list[Change] = []
        for change in found.watch(timeout=LONG):
            changes.append(change)
            if last_states(changes).get("b") == "completed":
                break
        held.set()
        code = (
            "import sys; from glidemq_orchestrate import FlowProducer\n"
            "flow = FlowProducer(sys.argv[1]).get(sys.argv[2])\n"
            "for c in flow.watch(after=sys.argv[3]): print(getattr(c, 'node', 'flow'), c.state)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, url, found.id, changes[-1].position],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert lines[-2:] == ["c completed", "flow completed"]
        assert not [line for line in lines if line.startswith(("a ", "b "))]

    def test_a_retry_is_reported_to_readers_that_go_on(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        record = recorder("b")
        run_worker(["etl"], {"work": record})
        found = flows.submit(DIAMOND)
        first = list(found.watch(timeout=LONG))
        record.broken.clear()
        found.retry_failed()
        rest = list(found.watch(after=first[-1].position, timeout=LONG))
        assert last_states(rest) == {"b": "completed", "d": "completed"}
        assert rest[-1].state == "completed"

    def test_a_position_is_short_and_belongs_to_its_flow(
        self, flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
    ) -> None:
        run_worker(["etl"], {"work": recorder()}, concurrency=16)
        found = flows.submit(layers(40, 10))
        positions = [change.position for change in found.watch(timeout=LONG)]
        assert max(map(len, positions)) < 1_000
        assert len(set(positions)) == len(positions)
        other = flows.submit(DIAMOND)
        with pytest.raises(ConfigurationError, match=f"belongs to flow {found.id}"):
            other.watch(after=positions[0])
        for broken in ("", "0-0", "1.eJw.", positions[0][:-4] + "!", "1..1a"):
            with pytest.raises(ConfigurationError, match="not a position of a watched flow"):
                other.watch(after=broken)

    def test_a_missing_flow_is_refused(self, flows: FlowProducer, redis_client: Any) -> None:
        found = flows.submit(DIAMOND)
        redis_client.flushall()
        with pytest.raises(FlowNotFound):
            next(found.watch())


@contextmanager
def vanishing_events(redis_client: Any, queues: Sequence[str]) -> Iterator[None]:
    """Nearly every event is trimmed away before any client can read it."""
    over = threading.Event()

    def trim() -> None:
        while not over.wait(0.003):
            for queue in queues:
                redis_client.xtrim(f"glide:{{{queue}}}:events", maxlen=1, approximate=False)

    trimming = threading.Thread(target=trim)
    trimming.start()
    try:
        yield
    finally:
        over.set()
        trimming.join(timeout=20)


def test_readers_of_a_flow_that_changes_lose_and_repeat_nothing(
    flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    queues, dice = ("etl", "spark", "bi"), random.Random(11)
    spec = layers(5, 8, queues)
    broken = {"3-1"}

    def work(ctx: Any) -> None:
        if ctx.node in broken:
            raise ValueError("broken")
        if ctx.node in ("1-2", "5-0"):
            ctx.flow.add_nodes([node(f"{ctx.node}+{queue}", queue=queue) for queue in queues])

    for queue in queues:
        run_worker([queue], {"work": work}, concurrency=4)
    found, changes = flows.submit(spec), list[Change]()
    position: str | None = None
    with vanishing_events(redis_client, queues):
        for expected in ("failed", "completed"):
            start = len(changes)
            while len(changes) == start or isinstance(changes[-1], NodeChange):
                watching = found.watch(after=position, timeout=LONG)
                changes += [change for _, change in zip(range(dice.randrange(1, 20)), watching, strict=False)]
                position = changes[-1].position
            assert changes[-1].state == expected
            broken.clear()
            found.retry_failed()
    check(spec, [change for change in changes if isinstance(change, NodeChange)])
    assert last_states(changes) == {one.name: str(one.state) for one in found.nodes()}
    assert len(last_states(changes)) == 46


def test_a_killed_worker_shows_as_another_attempt(
    url: str, flows: FlowProducer, eventually: Eventually
) -> None:
    found = flows.submit(flow(node("a"), node("b", "a")))
    code = (
        "import datetime, sys, time; from glidemq_orchestrate import Worker\n"
        "lock = datetime.timedelta(seconds=1)\n"
        "worker = Worker(url=sys.argv[1], queues=['etl'], lease=lock)\n"
        "worker.handler('work')(lambda ctx: time.sleep(60))\n"
        "worker.run()"
    )
    watching = found.watch(timeout=LONG)
    changes: list[Change] = []
    with spawned([sys.executable, "-c", code, url]):  # and killed
        for change in watching:
            changes.append(change)
            if change.state == "active":
                break
    worker = Worker(url=url, queues=["etl"], lease=timedelta(seconds=1))
    worker.handler("work")(lambda ctx: "done")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        changes += watching
    finally:
        worker.stop()
        thread.join(timeout=60)
    assert last_states(changes) == {"a": "completed", "b": "completed"}
    assert changes[-1].state == "completed"
    assert max(one.attempts for one in changes if isinstance(one, NodeChange) and one.node == "a") == 1


def test_a_dependency_that_was_read_too_early_is_read_again(
    flows: FlowProducer, hand: Hand, run_worker: RunWorker, eventually: Eventually
) -> None:
    """The page with ``a`` is read, then ``a`` completes, then the page with its dependent is read."""
    found = flows.submit(flow(node("a"), node("b", "a", queue="bi")))
    watch = begin_watch(found._ref, None, None, SystemClock())
    assert steps(hand.run(next_changes(watch))) == [("a", "waiting")]
    run_worker(["etl"], {"work": lambda ctx: "done"})
    eventually(lambda: found.nodes()[1].state == "waiting")
    late = hand.run(_read(watch, ["b"]))
    assert (late["b"][1].state, watch.nodes["a"][1].state) == ("waiting", "waiting")
    changes = hand.run(_changes(watch, late))
    assert steps(changes) == [("a", "completed"), ("b", "waiting")]


def test_a_portable_flow_is_watched_and_moved_on(
    hand: Hand, run_worker: RunWorker, recorder: type[Record]
) -> None:
    spec = flow(node("a"), node("b", "a", queue="bi"), node("c", "b"))
    ref = hand.run(
        submit_flow(
            "glide", check_flow(spec), "p1", "attach", SystemClock(), reach=Reach(has_functions=False)
        )
    )
    assert ref.path == "portable"
    run_worker(["etl", "bi"], {"work": lambda ctx: ctx.node})
    watch = begin_watch(ref, None, 60_000, SystemClock())
    changes: list[Change] = []
    while not watch.is_over:
        changes += hand.run(next_changes(watch))
    check(spec, changes)
    assert last_states(changes) == dict.fromkeys("abc", "completed")
    assert changes[-1].state == "completed"


def test_single_nodes_and_the_results_of_a_fan_in_are_read_by_name(
    clients: Clients, run_worker: RunWorker, recorder: type[Record]
) -> None:
    found = clients.flows().submit(flow(node("a"), node("b", "a"), node("c", "a"), node("d", "c")))
    run_worker(["etl"], {"work": recorder("c")})
    found.wait(timeout=LONG)
    one = found.node("c")
    assert (one.name, one.state, one.after, one.queue) == ("c", "failed", ("a",), "etl")
    assert found.node("b") == found.nodes()[1]
    assert found.results(["b", "c", "a", "b"]) == {"b": "b!", "a": "a!"}
    assert found.results([]) == {}
    with pytest.raises(NodeNotFound, match=f"flow {found.id} has no node x"):
        found.node("x")
    with pytest.raises(NodeNotFound, match=f"flow {found.id} has no node x"):
        found.results(["a", "x"])
    with pytest.raises(ConfigurationError, match="the text 'ab'"):
        found.results("ab")


def watched(twins: Clients, found: Any, **kw: Any) -> list[Any]:
    if twins.runner is None:
        return list(found.watch(**kw))

    async def collect() -> list[Any]:
        return [change async for change in found.watch(**kw)]

    return twins.runner.run(collect())


def test_a_dependency_that_was_read_again_too_early_is_read_once_more(
    flows: FlowProducer, hand: Hand, run_worker: RunWorker, eventually: Eventually
) -> None:
    """``x`` has failed and ``a`` not ended: it is read, ends, and only then is its dependent ``y`` read."""
    found = flows.submit(
        flow(
            node("a", queue="late"),
            node("broken"),
            node("x", "a", "broken"),
            node("y", "a", queue="nobody"),
            node("w", "y", "broken"),
            node("u", "w"),
        )
    )
    watch = begin_watch(found._ref, None, None, SystemClock())
    assert steps(hand.run(next_changes(watch))) == [("a", "waiting"), ("broken", "waiting")]

    def fail(_: Any) -> None:
        raise ValueError("broken")

    run_worker(["etl"], {"work": fail})
    eventually(lambda: found.node("u").state == "failed")

    def end_a() -> None:
        run_worker(["late"], {"work": lambda ctx: "done"})
        eventually(lambda: found.node("y").state == "waiting")

    news = hand.run(_read(watch, ["x", "u"]))
    changes = hand.run(interrupted(_changes(watch, news), 2, end_a))
    reported = steps(changes)
    assert ("y", "waiting") in reported
    assert ("a", "completed") in reported[: reported.index(("y", "waiting"))]


def interrupted(op: Any, number: int, act: Any) -> Any:
    """The operation; before its request of this number something else happens."""
    request, count = next(op), 1
    try:
        while True:
            if count == number:
                act()
            request, count = op.send((yield request)), count + 1
    except StopIteration as stop:
        return stop.value
