"""Which session host a step gets; the hosts themselves are stand-ins for processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.failures import SessionGone, StepCancelled
from glidemq_orchestrate.spark.hosts import pool
from glidemq_orchestrate.spark.hosts.pool import SHARED, Hosts
from glidemq_orchestrate.spark.hosts.wire import StepOutcome
from glidemq_orchestrate.spark.setup.request import SessionRequest
from glidemq_orchestrate.worker.handlers.context import Context, Reporter
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from tests.conftest import Eventually

OWN = SessionRequest(is_own=True)
BIG = SessionRequest((("spark.driver.memory", "9g"),))


class FakeHost:
    made: list[FakeHost]
    killed = 0

    def __init__(self, settings: Any) -> None:
        self.settings, self.steps, self.since, self.pid = settings, 0, time.monotonic(), id(self)
        self.is_retired = self.has_ended = self.has_started = False
        self.silent = 0.0
        self.made.append(self)

    def start(self) -> None:
        if self.settings.conf.get("spark.driver.memory") == "none":
            raise ConfigurationError("no such memory")
        if self.killed > len(self.made):
            self.stop()
            raise SessionGone("killed")
        self.has_started = True

    def run(self, ctx: Context, title: str) -> StepOutcome:
        del title
        step: Any = ctx.data
        found: Any = step(self)  # a real one returns JSON
        return StepOutcome(found, [])

    def probe(self) -> float:
        return self.silent

    def stop(self) -> None:
        self.is_retired = self.has_ended = True

    kill = stop


class Log(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


def context(data: Any) -> Context:
    return Context("spark", "j", "spark.python", 1, data, {}, None, None, Log())


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(pool, "REPORT_WAIT_SECONDS", 0.1)
    FakeHost.made = []
    made: Any = FakeHost
    found = Hosts(made)
    yield found
    found.stop()
    assert all(host.has_ended for host in FakeHost.made)


@pytest.fixture
def begin() -> Iterator[Callable[..., tuple[Future[Any], threading.Event, Context]]]:
    """Start a step that ends when its event is set; with the host that it got as its result."""
    with ThreadPoolExecutor(10) as threads:
        events: list[threading.Event] = []

        def begun(
            hosts: Hosts, wanted: SessionRequest = SHARED, **how: Any
        ) -> tuple[Future[Any], threading.Event, Context]:
            go = threading.Event()
            events.append(go)

            def step(host: FakeHost) -> FakeHost:
                go.wait(20)
                return host

            ctx = context(step)
            return threads.submit(lambda: hosts.run(ctx, "step", wanted, **how).result), go, ctx

        yield begun
        for go in events:
            go.set()


def run(hosts: Hosts, wanted: SessionRequest = SHARED, **how: Any) -> FakeHost:
    found: Any = hosts.run(context(lambda host: host), "step", wanted, **how).result
    host: FakeHost = found
    return host


def test_steps_share_a_host_and_those_with_settings_have_another(hosts: Hosts) -> None:
    hosts.start()
    assert run(hosts) is run(hosts)
    big = run(hosts, BIG)
    assert big is run(hosts, BIG)
    assert big is not run(hosts)
    assert big.settings.conf["spark.driver.memory"] == "9g"
    assert len(FakeHost.made) == 2


@contextmanager
def limits(hosts: Hosts, **changes: Any) -> Iterator[None]:
    hosts.start()
    hosts._limits = replace(hosts._limits, **changes)
    yield


def test_a_step_with_its_own_waits_for_another_and_is_told_so(
    hosts: Hosts, begin: Any, eventually: Eventually
) -> None:
    with limits(hosts, sessions=2):
        first, go, _ = begin(hosts, OWN)
        second, other, ctx = begin(hosts, OWN)
        third, _, cancelled = begin(hosts, OWN)
        eventually(lambda: ctx.reporter.lines and cancelled.reporter.lines, 5)
        assert "all 2 Spark sessions of this worker are in use" in ctx.reporter.lines[0]
        cancelled.cancelled.set()
        with pytest.raises(StepCancelled):
            third.result(5)
        go.set()
        other.set()
        assert first.result(5) is not second.result(5)  # which would find what the first has left
        assert len(FakeHost.made) == 3


def test_an_idle_session_makes_room_for_one_with_other_settings(hosts: Hosts, eventually: Eventually) -> None:
    with limits(hosts, sessions=2):
        big = run(hosts, BIG)
        other = run(hosts, SessionRequest((("spark.driver.memory", "8g"),)))
        assert big.has_ended
        assert not other.has_ended
        assert run(hosts).has_started


def test_a_fresh_one_is_for_one_step_and_not_waited_for_without_end(
    hosts: Hosts, begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with limits(hosts, sessions=2):
        one = run(hosts, fresh=True)
        assert one.has_ended
        assert one is not run(hosts)
        monkeypatch.setattr(pool, "FRESH_SECONDS", 0.2)
        _, go, _ = begin(hosts, OWN)
        assert run(hosts, fresh=True) is run(hosts)
        go.set()


def test_a_wrong_patience_is_told_before_the_first_step(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIDEMQ_SPARK_EXECUTOR_TIMEOUT", "abc")
    with pytest.raises(
        ConfigurationError, match="GLIDEMQ_SPARK_EXECUTOR_TIMEOUT must be a duration such as 30"
    ):
        hosts.start()
    assert not FakeHost.made


def test_a_session_that_was_killed_while_it_was_built_is_built_again(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeHost, "killed", 3)
    hosts.start()
    assert [host.has_ended for host in FakeHost.made] == [True, True, False]
    monkeypatch.setattr(FakeHost, "killed", 99)
    FakeHost.made[-1].stop()
    with pytest.raises(SessionGone):
        hosts.start()


def test_a_lost_session_is_replaced_and_says_whether_the_step_was_alone(
    hosts: Hosts, eventually: Eventually
) -> None:
    def lost(host: FakeHost) -> None:
        host.stop()
        raise SessionGone("gone")

    for fresh in (False, True):
        with pytest.raises(SessionGone) as caught:
            hosts.run(context(lost), "step", SessionRequest(), fresh=fresh)
        assert caught.value.is_alone is fresh
    assert not run(hosts).has_ended
    eventually(lambda: [host for host in FakeHost.made if not host.has_ended] == FakeHost.made[-1:], 5)


@pytest.mark.parametrize("change", [{"steps": 2}, {"age": 0.0}])
def test_a_worn_one_takes_steps_until_the_next_is_there(
    hosts: Hosts, begin: Any, eventually: Eventually, change: dict[str, Any]
) -> None:
    hosts.start()
    (old,) = FakeHost.made
    slow, go, _ = begin(hosts)
    run(hosts)
    with limits(hosts, **change):
        eventually(lambda: len(FakeHost.made) >= 2, 5)
        hosts._limits = replace(hosts._limits, steps=1e9, age=1e9)
        eventually(lambda: run(hosts) is not old, 5)
        assert not old.has_ended  # a step still runs there
        go.set()
        assert slow.result(5) is old
        eventually(lambda: old.has_ended, 5)


def test_one_that_does_not_reply_gets_no_more_steps_and_is_ended(
    hosts: Hosts, begin: Any, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(pool, "MEASURE_SECONDS", 0.05)
    step, go, _ = begin(hosts)
    eventually(lambda: FakeHost.made and FakeHost.made[0].has_started, 5)
    (stuck,) = FakeHost.made
    stuck.silent = pool.SILENT_SECONDS
    eventually(lambda: len(FakeHost.made) == 2, 5)
    assert run(hosts) is FakeHost.made[1]
    assert not stuck.has_ended
    stuck.silent = pool.KILL_SECONDS
    eventually(lambda: stuck.has_ended, 5)
    go.set()
    step.result(5)


def test_a_replacement_that_is_still_to_start_ends_with_the_others(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    go = threading.Event()
    hosts.start()
    monkeypatch.setattr(FakeHost, "start", lambda _: go.wait(20))
    with limits(hosts, steps=0):
        eventually(lambda: len(FakeHost.made) == 2, 5)
    hosts.stop()
    eventually(lambda: all(host.has_ended for host in FakeHost.made), 5)
    go.set()


def test_nothing_is_started_after_the_end_and_a_worker_may_begin_again(hosts: Hosts) -> None:
    hosts.start()
    hosts.stop()
    for late in (lambda: run(hosts), lambda: hosts.publish([], 1)):
        with pytest.raises(SessionGone, match="the worker is stopping"):
            late()
    assert len(FakeHost.made) == 1
    hosts.start()
    assert not run(hosts).has_ended


def test_a_step_that_is_cancelled_does_not_wait_for_a_session_to_start(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.start()
    go = threading.Event()
    monkeypatch.setattr(FakeHost, "start", lambda _: go.wait(20))
    ctx = context(lambda host: host)
    ctx.cancelled.set()
    with pytest.raises(StepCancelled):
        hosts.run(ctx, "step", BIG)
    go.set()


def test_a_worn_one_with_settings_takes_no_more_steps(hosts: Hosts, begin: Any) -> None:
    with limits(hosts, sessions=4, steps=1):
        step, go, _ = begin(hosts, BIG)
        time.sleep(0.1)
        assert run(hosts, BIG) is not FakeHost.made[1]
        go.set()
        step.result(5)


def test_an_unused_one_ends_but_the_shared(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.1)
    shared, big = run(hosts), run(hosts, BIG)
    eventually(lambda: big.has_ended, 5)
    assert not shared.has_ended


def test_impossible_settings_fail_only_the_step_that_asks(hosts: Hosts) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no such memory"):
            run(hosts, SessionRequest((("spark.driver.memory", "none"),)))
    assert run(hosts).has_started


def test_a_spark_connect_server_has_settings_of_its_own(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIDEMQ_SPARK_MASTER", "sc://host")
    with pytest.raises(InvalidCall, match=r"spark\.driver\.memory: the settings of a Spark Connect server"):
        run(hosts, BIG)
    assert run(hosts, OWN) is run(hosts)
