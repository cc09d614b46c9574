"""Slots that move while they are used: at once (Valkey 9), or key by key. What runs goes on afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import (
    Client,
    ConnectionSettings,
    FlowNode,
    FlowSpec,
    FlowState,
    JobState,
    NewJob,
    Queue,
)
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.clients.servers import Libraries
from glidemq_orchestrate.errors import ConfigurationError, ServerBusy
from glidemq_orchestrate.flows import NodeChange
from glidemq_orchestrate.io import delivery
from glidemq_orchestrate.server.findings import cluster_rule, rule
from tests.builders import slot_node
from tests.conftest import Eventually, RunWorker
from tests.server.conftest import Clients
from tests.server.connections.topologies import Move, Primaries, Redis7, Server, running_primaries

SECOND = timedelta(seconds=1)
QUEUES = ("b", "c", "q")  # one for each primary


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primaries]:
    with running_primaries(tmp_path_factory.mktemp("primaries")) as running:
        yield running


@pytest.fixture
def url(primaries: Primaries) -> str:
    for server in primaries.servers:
        server.client.flushall()
    return primaries.url


def _stored(primaries: Primaries) -> list[dict[str, bytes]]:
    """What each server has of the queue."""
    return [server.keys_in("q") for server in primaries.servers]


def _changes(client: Client) -> dict[str, Callable[[], Any]]:
    """Calls of many kinds, for a flow in one slot (``s``) and one in several (``p``)."""
    queue, staged, portable = client.queue("q"), client.flows.get("s"), client.flows.get("p")
    flow = FlowSpec("n", [FlowNode("x", queue="q"), FlowNode("y", queue="q", after=["x"])])
    across = FlowSpec("n", [slot_node("x", queue="q"), slot_node("y", "x")])
    return {
        "add": partial(queue.add, "work"),
        "add many": partial(queue.add_many, [NewJob("work"), NewJob("work")]),
        "promote": partial(queue.promote, "later"),
        "pause": queue.pause,
        "submit": partial(client.flows.submit, flow, flow_id="s2"),
        "submit across slots": partial(client.flows.submit, across, flow_id="p2"),
        "extend": partial(staged.extend, [FlowNode("more", queue="q")]),
        "cancel": partial(staged.cancel, "enough"),
        "cancel a node": partial(staged.cancel_node, "a", "enough"),
        "cancel a node across slots": partial(portable.cancel_node, "a", "enough"),
    }


@pytest.fixture(params=[Server, pytest.param(Redis7, marks=pytest.mark.long)])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Primaries]:
    """A cluster of either server."""
    if request.param is Server:
        request.getfixturevalue("url")
        yield request.getfixturevalue("primaries")
        return
    with running_primaries(tmp_path, request.param) as older:
        yield older


def test_a_slot_that_moves_key_by_key_is_never_half_written(
    either: Primaries, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(delivery, "PAUSES", (0.01,))
    monkeypatch.setattr(SyncFacade, "_is_patient", False)
    move = Move(either, "q")
    with Client(either.url) as client:
        client.queue("q").add("work", job_id="later", delay=100)
        within = [slot_node("a", queue="q"), slot_node("b", "a", queue="q")]
        client.flows.submit(FlowSpec("n", within), flow_id="s")
        client.flows.submit(FlowSpec("n", [slot_node("a", queue="q"), slot_node("b", "a")]), flow_id="p")
        changes = _changes(client)
        move.begin()
        for part in (0, 2, 5, 1000):
            move.carry(part)
            for what, change in changes.items():
                with subtests.test(what=what, part=part):
                    before = _stored(either)
                    with pytest.raises(ServerBusy, match="TRYAGAIN"):
                        change()
                    if "across" not in what:  # else it has written some keys by plain commands, and goes on
                        assert _stored(either) == before
        move.end()
        for what, change in changes.items():
            with subtests.test(what=what, part="after"):
                change()
        move.back()


def test_keys_of_a_slot_are_read_where_they_are_while_it_moves(primaries: Primaries, url: str) -> None:
    with Queue("q", url) as queue:
        before = {queue.add("work", n) for n in range(5)}
        move = Move(primaries, "q")
        move.begin()
        move.carry(2)
        assert {queue.get_job(job_id).state for job_id in before} == {JobState.WAITING}
        move.carry(1000)
        move.end()
        assert queue.add("work", 6) == "6"
        assert queue.counts()[JobState.WAITING] == 6
        move.back()
        assert queue.add("work", 7) == "7"


def test_a_call_waits_until_its_slot_has_moved(primaries: Primaries, twins: Clients) -> None:
    queue, move = twins.queue("q"), Move(primaries, "q")
    twins.do(queue.add("work"))
    move.begin()
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        ending = pool.submit(_end_after, move, 1.5)
        assert twins.do(queue.add("work")) == "2"
        assert 1.4 < time.monotonic() - begun < 5
        ending.result()
    move.back()


def _end_after(move: Move, seconds: float) -> None:
    time.sleep(seconds)
    move.carry(1000)
    move.end()


def test_a_move_that_does_not_end_is_reported_within_the_time_limit(primaries: Primaries, url: str) -> None:
    move = Move(primaries, "q")
    with Queue("q", ConnectionSettings(url, socket_timeout=2)) as queue:
        queue.add("work")
        move.begin()
        begun = time.monotonic()
        with pytest.raises(ServerBusy, match="TRYAGAIN"):
            queue.add("work")
        assert 1.4 < time.monotonic() - begun < 5
        move.carry(1000)
        move.end()
    move.back()


def _rest(ctx: Any) -> None:
    threading.Event().wait(0.01)


@pytest.mark.parametrize("how", ["at once", "key by key"])
def test_a_worker_outlives_the_move_of_the_slot_of_its_queue(
    primaries: Primaries, url: str, run_worker: RunWorker, eventually: Eventually, how: str
) -> None:
    run_worker(["q"], {"work": _rest}, url=url, concurrency=2, lease=SECOND)
    with Queue("q", url) as queue:
        queue.add_many([NewJob("work", n) for n in range(100)])
        move = Move(primaries, "q")
        _move(move, how)
        eventually(lambda: queue.counts()[JobState.COMPLETED] > 20, timeout=20)
        move.turn()
        _move(move, how)
        eventually(lambda: queue.counts()[JobState.COMPLETED] == 100, timeout=30)


def _move(move: Move, how: str) -> None:
    if how == "at once":
        move.at_once()
        return
    move.begin()
    while move.carry(20):
        time.sleep(0.1)
    move.end()


def test_a_moving_slot_stops_no_other_queue_of_its_worker(
    primaries: Primaries, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(QUEUES, {"work": _rest}, url=url, concurrency=2, lease=SECOND)
    with Client(url) as client:
        moving, *others = (client.queue(name) for name in QUEUES[::-1])
        for queue in (moving, *others):
            queue.add_many([NewJob("work", n) for n in range(50)])
        move = Move(primaries, "q")
        move.begin()
        eventually(lambda: all(one.counts()[JobState.COMPLETED] == 50 for one in others), timeout=10)
        time.sleep(2)  # longer than a lease
        for queue in others:
            assert queue.add_and_wait("work", timeout=SECOND * 5) is None
        move.carry(1000)
        move.end()
        eventually(lambda: moving.counts()[JobState.COMPLETED] == 50, timeout=10)
        move.back()


def test_what_a_handler_reports_arrives_when_the_slot_has_moved(
    primaries: Primaries, url: str, run_worker: RunWorker, eventually: Eventually
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check(ctx: Any) -> dict[str, bool]:
        begun.set()
        may_end.wait(20)
        ctx.log("a line")
        return {"passed": False}

    run_worker(["q"], {"check": check}, url=url)
    with Queue("q", url) as queue:
        job_id = queue.add("check", must_pass=True)
        assert begun.wait(10)
        move = Move(primaries, "q")
        move.begin()
        may_end.set()
        _end_after(move, 1.5)  # longer than a worker repeats a call
        eventually(lambda: queue.get_job(job_id).state is JobState.FAILED, timeout=10)
        assert queue.get_job(job_id).progress == {"passed": False}
        assert queue.logs(job_id).lines == ["a line"]
        move.back()


@pytest.mark.parametrize("how", ["at once", "key by key"])
def test_a_new_primary_gets_the_libraries_with_the_first_call_there(
    primaries: Primaries, twins: Clients, run_worker: RunWorker, tmp_path: Path, how: str
) -> None:
    run_worker(["q"], {"work": _rest}, url=twins.url)
    queue = twins.queue("q")
    assert twins.do(queue.add_and_wait("work", timeout=SECOND * 10)) is None
    with primaries.empty_primary(tmp_path) as empty:
        move = Move(primaries, "q", target=empty)
        _move(move, how)
        assert twins.do(queue.add_and_wait("work", timeout=SECOND * 10)) is None
        assert len(empty.client.function_list()) == 2
        move.turn()
        _move(move, how)
        assert twins.do(queue.add_and_wait("work", timeout=SECOND * 10)) is None


def test_who_may_not_load_libraries_is_told_who_must_and_works_once_they_are_loaded(
    primaries: Primaries, url: str, run_worker: RunWorker, tmp_path: Path
) -> None:
    words = f"{rule()} {cluster_rule()}".split()
    with primaries.empty_primary(tmp_path) as empty:
        for server in (*primaries.servers, empty):
            server.client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *words)
        settings = ConnectionSettings(url, user="worker", password="secret")
        with Queue("q", url) as queue:
            queue.add("work")
        run_worker(["q"], {"work": _rest}, url=settings)
        with Queue("q", settings) as queue:
            assert queue.add_and_wait("work", timeout=SECOND * 10) is None
            move = Move(primaries, "q", target=empty)
            move.at_once()
            with pytest.raises(ConfigurationError, match="glidemq library load"):
                queue.add("work")
            Libraries(url).load()
            assert queue.add_and_wait("work", timeout=SECOND * 10) is None
            move.turn()
            move.at_once()


def test_libraries_are_loaded_on_a_primary_before_it_gets_slots(
    primaries: Primaries, url: str, tmp_path: Path
) -> None:
    with primaries.empty_primary(tmp_path) as empty:
        for start in (
            url,
            f"valkey://127.0.0.1:{primaries.servers[0].port}",
            f"valkey://127.0.0.1:{empty.port}",
        ):
            empty.client.function_flush()
            assert len(Libraries(start).load()) == 4
            assert len(empty.client.function_list()) == 2
            assert len(Libraries(start).status()) == 4


@contextmanager
def _moving(move: Move, how: str) -> Iterator[None]:
    """Move a slot back and forth until the end of the block; then it is at home."""
    is_over = threading.Event()

    def go_on() -> int:
        moves = 0
        while not is_over.is_set() or moves % 2:
            _move(move, how)
            move.turn()
            moves += 1
            is_over.wait(0.5)  # others get their turn
        return moves

    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(go_on)
        try:
            yield
        finally:
            is_over.set()
        assert moved.result() >= 2


@pytest.mark.parametrize("path", ["staged", "portable"])
@pytest.mark.parametrize("how", ["at once", "key by key"])
def test_a_flow_runs_fails_is_repaired_and_cancelled_while_its_slot_moves(
    primaries: Primaries, url: str, run_worker: RunWorker, how: str, path: str
) -> None:
    """It grows, too, where it can; each change is reported once."""
    broken, seen = {"m3"}, list[tuple[str, str]]()

    def work(ctx: Any) -> str:
        time.sleep(0.1)
        if ctx.node == "a" and path == "staged":
            ctx.flow.add_nodes([FlowNode("grown", queue="q", job="work")], before=["m0"])
        if ctx.node in broken:
            raise ValueError("boom")
        if ctx.node == "forever":
            ctx.cancelled.wait(120)
        return str(ctx.node)

    run_worker(QUEUES, {"work": work}, url=url, concurrency=4)
    other = "q" if path == "staged" else "b"
    middle = [slot_node(f"m{number}", "a", queue=(other, "q")[number % 2]) for number in range(6)]
    nodes = [slot_node("a", queue="q"), *middle, slot_node("end", *(one.name for one in middle), queue=other)]
    names = {one.name for one in nodes} | ({"grown"} if path == "staged" else set())
    with Client(url) as client, _moving(Move(primaries, "q"), how):
        flow = client.flows.submit(FlowSpec("n", nodes), flow_id="f")
        lasting = client.flows.submit(FlowSpec("n", [slot_node("forever", queue="q")]), flow_id="g")
        seen += [(one.node, one.state) for one in flow.watch() if isinstance(one, NodeChange)]
        assert flow.status().state is FlowState.FAILED
        broken.clear()
        flow.retry_failed()
        assert flow.result(timeout=SECOND * 60) == {name: name for name in names}
        lasting.cancel("enough")
        assert lasting.wait(timeout=SECOND * 60).status.state is FlowState.CANCELLED
    ended = [(node, state) for node, state in seen if JobState(state).is_terminal]
    assert sorted(ended) == sorted(
        (name, "failed" if name in {"m3", "end"} else "completed") for name in names
    )
