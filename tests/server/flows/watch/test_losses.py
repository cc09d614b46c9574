"""Lost events, a killed worker and early reads of the nodes hide no change."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, Worker
from glidemq_orchestrate.flows import NodeChange
from glidemq_orchestrate.flows.watch import _changes, _read, begin_watch, next_changes
from glidemq_orchestrate.foundation.clock import SystemClock
from tests.builders import NEAR, flow, node
from tests.processes import spawned
from tests.server.flows.watch.changes import DIAMOND, LONG, Change, check, last_states, layers, steps

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Hand, Record


def test_a_reader_that_missed_every_event_gets_the_differences(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record], redis_client: Any
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
    queues, dice = ("etl", NEAR), random.Random(11)
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
    assert len(last_states(changes)) == 5 * 8 + 2 * len(queues)


@pytest.mark.long
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
