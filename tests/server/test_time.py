"""Leases and due times are the server's: no wall clock of a client decides anything."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import (
    AsyncQueue,
    Flow,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    JobState,
    Queue,
)
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, OutcomeUnknown
from glidemq_orchestrate.foundation.clock import ServerClock
from glidemq_orchestrate.server.calls import learn_time
from glidemq_orchestrate.wire.replies import error_from

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.handlers.context import Context
    from tests.conftest import Eventually, RunWorker

SECOND = timedelta(seconds=1)
HOUR_NS = 3_600 * 10**9


class Wall:
    """The wall clock of this process, so much off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off_ns, self._really = 0, time.time_ns
        monkeypatch.setattr(
            "glidemq_orchestrate.foundation.clock.time.time_ns", lambda: self._really() + self.off_ns
        )


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


def server_ms(redis_client: Any) -> int:
    seconds, micros = redis_client.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_delay_is_by_the_clock_of_the_server(url: str, redis_client: Any, wall: Wall, hours: int) -> None:
    wall.off_ns = hours * HOUR_NS
    with Queue("etl", url) as queue:
        job_id = queue.add("work", options=JobOptions(delay=timedelta(minutes=5)))
        created = queue.get_job(job_id).created_at
    now = server_ms(redis_client)
    (score,) = dict(redis_client.zrange("glide:{etl}:scheduled", 0, -1, withscores=True)).values()
    assert abs(int(score) % 2**42 - (now + 300_000)) < 2_000
    assert created is not None
    assert abs(created.timestamp() * 1000 - now) < 2_000


async def test_also_for_async_clients(url: str, redis_client: Any, wall: Wall) -> None:
    wall.off_ns = HOUR_NS
    async with AsyncQueue("etl", url) as queue:
        job_id = await queue.add("work")
        created = (await queue.get_job(job_id)).created_at
    assert created is not None
    assert abs(created.timestamp() * 1000 - server_ms(redis_client)) < 2_000


@pytest.mark.parametrize("options", [JobOptions(priority=1), JobOptions(lifo=True), JobOptions()], ids=str)
def test_a_worker_whose_clock_is_ahead_takes_no_job_from_a_live_one(
    url: str, run_worker: RunWorker, eventually: Eventually, wall: Wall, options: JobOptions
) -> None:
    runs: list[int] = []
    go = threading.Event()

    def slow(ctx: Context) -> str:
        runs.append(ctx.attempt)
        go.wait(30)
        return "done"

    with Queue("etl", url) as queue:
        run_worker(["etl"], {"slow": slow}, lease=SECOND)
        job_id = queue.add("slow", options=options)
        eventually(lambda: runs == [1])
        wall.off_ns = HOUR_NS
        run_worker(["etl"], {"slow": slow}, lease=SECOND)
        time.sleep(2.5)  # two leases long
        go.set()
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED)
        assert runs == [1]
        assert queue.get_job(job_id).lost_attempts == 0


def test_a_step_of_the_wall_clock_stops_no_chore(
    url: str, run_worker: RunWorker, redis_client: Any, eventually: Eventually, wall: Wall
) -> None:
    """A lease is renewed all the while, and delayed jobs come in time."""
    go = threading.Event()
    with Queue("etl", url) as queue:
        run_worker(["etl"], {"slow": lambda ctx: go.wait(30), "quick": lambda ctx: 1}, lease=SECOND)
        slow = queue.add("slow")
        eventually(lambda: queue.get_job(slow).state is JobState.ACTIVE)
        wall.off_ns = -HOUR_NS
        before = int(redis_client.hget(f"glide:{{etl}}:job:{slow}", "lastActive") or 0)
        key = f"glide:{{etl}}:job:{slow}"
        eventually(lambda: int(redis_client.hget(key, "lastActive") or 0) > before + 500)
        quick = queue.add("quick", options=JobOptions(delay=timedelta(milliseconds=200)))
        eventually(lambda: queue.get_job(quick).state is JobState.COMPLETED)
        go.set()


class TestServerClock:
    def test_it_is_the_wall_clock_until_the_server_has_sent_its_time(self) -> None:
        assert abs(ServerClock().now_ms() - time.time_ns() // 1_000_000) < 1_000

    def test_then_it_is_the_servers(self, wall: Wall) -> None:
        made = ServerClock()
        made.learn(1_000_000_000, made.monotonic_us())
        wall.off_ns = HOUR_NS
        assert 1_000_000 <= made.now_ms() < 1_001_000

    def test_a_slow_answer_corrects_nothing_that_is_known_better(self) -> None:
        made = ServerClock()
        made.learn(1_000_000_000, made.monotonic_us())
        made.learn(990_000_000, made.monotonic_us() - 60_000_000)
        assert abs(made.now_ms() - 1_000_000) < 1_000

    def test_a_server_whose_clock_was_set_is_followed(self) -> None:
        made = ServerClock()
        made.learn(1_000_000_000, made.monotonic_us())
        made.learn(5_000_000_000, made.monotonic_us() - 2_000_000)
        assert abs(made.now_ms() - 5_001_000) < 1_000

    def test_the_server_is_asked_now_and_then_and_after_a_loss(self) -> None:
        made = ServerClock()
        assert made.begin_sync()
        assert not made.begin_sync()
        assert made.begin_sync(every_ms=0)
        made.forget_sync()
        assert made.begin_sync()

    @pytest.mark.parametrize("error", [OutcomeUnknown("gone"), ConfigurationError("refused the password")])
    def test_where_nothing_was_replied_nothing_changes(
        self, error: GlideMQError, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = ServerClock()
        before = made.now_ms()
        op = learn_time(made)
        next(op)
        with pytest.raises(StopIteration):
            op.throw(error)
        assert abs(made.now_ms() - before) < 1_000
        assert made.begin_sync(), "the next call asks again"
        assert "TIME" not in caplog.text

    def test_a_server_that_refuses_it_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        made = ServerClock()
        op = learn_time(made)
        next(op)
        with pytest.raises(StopIteration):
            op.throw(error_from("NOPERM this user has no permissions to run the 'time' command"))
        assert "allow the user to run TIME" in caplog.text
        assert not made.begin_sync()


def test_flows_are_shown_by_the_time_of_the_server(
    wall: Wall, url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall.off_ns = HOUR_NS
    with FlowProducer(url) as flows:
        flow = flows.submit(
            FlowSpec("n", [FlowNode("a", queue="etl", job="work")]), flow_id="n", require_workers=False
        )
        now_ms = server_ms(redis_client)
        for now in (flows.now(), flow.now()):
            assert abs(now.timestamp() * 1000 - now_ms) < 5_000
    redis_client.hset("glide:{etl}:job:n~a", mapping={"state": "active", "processedOn": now_ms})
    later = datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(hours=2)
    for kind in (Flow, FlowProducer):
        monkeypatch.setattr(kind, "now", lambda _: later)
    shell = CliRunner(env={"GLIDEMQ_URL": url})
    (row,) = (line for line in shell.invoke(app, ["flow", "show", "n"]).stdout.splitlines() if "▶ a" in line)
    assert "2 h 00 min" in row
    assert "2 h 00 min" in shell.invoke(app, ["flow", "list"]).stdout
    assert "No flows match" in shell.invoke(app, ["flow", "list", "--since", "1h"]).stdout
