"""What may pass is repeated for a time; what is an answer is raised at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed, FlowNotFound, GlideMQError
from glidemq_orchestrate.runs import Patience, adrive, drive


class Clock:
    """Monotonic time that passes when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.lines: list[str] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def warning(self, text: str, *args: object) -> None:
        self.lines.append(text % args)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def failing(error: GlideMQError, times: int | None = None) -> tuple[Callable[[], str], list[None]]:
    calls: list[None] = []

    def call() -> str:
        calls.append(None)
        if times is None or len(calls) <= times:
            raise error
        return "found"

    return call, calls


def test_a_server_that_is_away_is_waited_for_and_told_of(clock: Clock) -> None:
    call, calls = failing(ConnectionFailed("away"), 3)
    assert Patience(5.0, what="Flow f cannot be watched", log=clock)(call) == "found"
    assert len(calls) == 4
    assert len(clock.lines) == 3
    assert clock.lines[0].startswith("Flow f cannot be watched, retrying in 0.")
    assert clock.lines[0].endswith(" s: away")


def test_it_is_tried_at_the_last_moment_and_not_after_it(clock: Clock) -> None:
    call, calls = failing(ConnectionFailed("away"))
    with pytest.raises(ConnectionFailed):
        Patience(30.0, log=clock)(call)
    assert clock.now == pytest.approx(1030.0)
    assert len(calls) > 10


def test_each_call_has_the_time_for_itself(clock: Clock) -> None:
    patience = Patience(10.0, log=clock)
    for _ in range(3):
        call, _calls = failing(ConnectionFailed("away"), 6)
        patience(call)
        clock.now += 8


def test_an_answer_is_raised_at_once(clock: Clock) -> None:
    call, calls = failing(FlowNotFound("no flow"))
    for patience in (Patience(None, other=600.0), Patience(9.0)):
        with pytest.raises(FlowNotFound):
            patience(call)
        with pytest.raises(FlowNotFound):
            patience.pause(FlowNotFound("no flow"))
    assert (len(calls), clock.lines) == (2, [])


def test_a_server_that_has_never_replied_is_waited_for_as_long_as_is_said(clock: Clock) -> None:
    patience = Patience(100.0, first=5.0, log=clock)
    call, _ = failing(ConnectionFailed("away"))
    with pytest.raises(ConnectionFailed):
        patience(call)
    assert clock.now == pytest.approx(1005.0)
    patience(lambda: "it replies")
    with pytest.raises(ConnectionFailed):
        patience(call)
    assert clock.now == pytest.approx(1105.0)


def test_no_answer_is_borne_for_a_time_an_absent_server_without_end(clock: Clock) -> None:
    assert Patience(None, log=clock).pause(ConnectionFailed("away")) > 0
    with pytest.raises(ConfigurationError):
        Patience(None, log=clock).pause(ConfigurationError("wrong"))
    assert Patience(None, other=1.0, log=clock).pause(ConfigurationError("wrong")) > 0
    assert "ConfigurationError: wrong" in clock.lines[-1]


def test_an_outage_is_over_when_all_has_gone_well_for_a_minute(clock: Clock) -> None:
    patience, error = Patience(None, other=600.0, log=clock), ConfigurationError("wrong")
    for _ in range(59):
        patience.pause(error)
        clock.now += 10
    clock.now += 70
    patience.pause(error)
    for _ in range(59):
        clock.now += 10
        patience.pause(error)
    clock.now += 11
    with pytest.raises(ConfigurationError):
        patience.pause(error)


async def test_steps_run_blocking_and_on_an_event_loop() -> None:
    patience = Patience(5.0)

    async def found() -> int:
        return 3

    def steps(call: Callable[[], Any]) -> Any:
        first = yield from patience.steps(call)
        try:
            yield from patience.steps(failing(FlowNotFound("gone"))[0])
        except FlowNotFound:
            return first + 1

    assert drive(steps(lambda: 2)) == 3
    assert await adrive(steps(found)) == 4
