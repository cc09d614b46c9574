"""Durations: a ``timedelta`` or seconds as a number, everywhere; an error has the name of the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import (
    AsyncQueue,
    Backoff,
    BroadcastWorker,
    ConnectionSettings,
    Deduplication,
    EventReader,
    FlowNode,
    FlowSpec,
    Handlers,
    JobOptions,
    Keep,
    Owner,
    Queue,
    RateLimit,
    RetryLater,
    Schedule,
    Suspend,
    Worker,
    check_flow,
)
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, InvalidFlow
from glidemq_orchestrate.foundation.durations import duration, from_text, setting_duration, span_text
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.runs import Patience, owner_of
from glidemq_orchestrate.spark.published.locations.target import tidy
from glidemq_orchestrate.testing.chaos import run_chaos
from glidemq_orchestrate.worker.handlers.context import Cancelled
from glidemq_orchestrate.worker.services.supervisor import Supervisor

URL = "valkey://127.0.0.1:1"  # nobody listens there: arguments are checked before a connection is opened
BAD: list[Any] = [-1, -0.5, math.nan, math.inf, True, "5", [5], timedelta(seconds=-1), 10**400]


NODE = FlowNode("a", queue="q", job="j")

SHORT_TEXTS: list[tuple[str, timedelta | None]] = [
    ("5m", timedelta(minutes=5)),
    ("1h30m", timedelta(minutes=90)),
    ("1.5h", timedelta(minutes=90)),
    ("250ms", timedelta(milliseconds=250)),
    ("2d", timedelta(days=2)),
    ("10s", timedelta(seconds=10)),
    ("2w", timedelta(weeks=2)),
    ("PT5M", timedelta(minutes=5)),
    ("", None),
    ("5", None),
    ("m5", None),
    ("1.2.3s", None),
    ("999999999999d", None),
]

TEXTS: list[tuple[Any, timedelta]] = [
    ("5m", timedelta(minutes=5)),
    ("PT1H30M", timedelta(minutes=90)),
    ("P1DT0.5S", timedelta(days=1, milliseconds=500)),
    ("P2W", timedelta(weeks=2)),
    (" 30 ", timedelta(seconds=30)),
    ("2.5", timedelta(seconds=2.5)),
    (30, timedelta(seconds=30)),
    (timedelta(hours=1), timedelta(hours=1)),
]

NO_DURATIONS: list[Any] = [
    "",
    "P",
    "PT",
    "soon",
    "-5",
    "-PT5M",
    "inf",
    "nan",
    "5 m",
    "1e400",
    None,
    True,
    "9" * 99,
]


def _flow(**about: Any) -> Any:
    return check_flow(FlowSpec("x", [FlowNode("a", queue="q", job="j")], **about))


def _read(seconds: Any) -> list[Any]:
    with EventReader("etl", URL, idle_timeout=seconds) as reader:
        return list(reader)


TAKERS: dict[str, Callable[[Any], Any]] = {
    "delay": lambda d: JobOptions(delay=d),
    "timeout": lambda d: JobOptions(timeout=d),
    "ttl": lambda d: JobOptions(ttl=d),
    "job: lease": lambda d: JobOptions(lease=d),
    "backoff.delay": lambda d: Backoff(delay=d),
    "keep.age": lambda d: Keep(age=d),
    "rate_limit.per": lambda d: RateLimit(1, per=d),
    "deduplication.ttl": lambda d: Deduplication("x", "throttle", ttl=d),
    "latency": lambda d: Usage(latency=d),
    "every": lambda d: Schedule(every=d),
    "repeat_after_complete": lambda d: Schedule(repeat_after_complete=d),
    "retention": lambda d: _flow(retention=d),
    "deadline": lambda d: _flow(deadline=d),
    "queue_timeout": lambda d: _flow(queue_timeout=d),
    "delay of RetryLater": RetryLater,
    "timeout of Suspend": lambda d: Suspend(timeout=d),
    "grace of handler 'a'": lambda d: Handlers().handler("a", grace=d),
    "timeout of a handler": lambda d: Handlers().handler(timeout=d),
    "timeout of a batch": lambda d: Handlers().batch_handler("a", size=2, timeout=d),
    "wait of a batch": lambda d: Handlers().batch_handler("a", size=2, wait=d),
    "lease": lambda d: Owner("me", lease=d),
    "limit of a patience": Patience,
    "other": lambda d: Patience(None, other=d),
    "first": lambda d: Patience(None, first=d),
    "connect_timeout": lambda d: ConnectionSettings(URL, connect_timeout=d),
    "socket_timeout": lambda d: ConnectionSettings(URL, socket_timeout=d),
    "confirm_timeout": lambda d: ConnectionSettings(URL, confirm_timeout=d),
    "worker: lease": lambda d: Worker(URL, queues=["q"], lease=d),
    "shutdown_timeout": lambda d: Worker(URL, queues=["q"], shutdown_timeout=d),
    "worker: rate_limit.per": lambda d: Worker(URL, queues=["q"], rate_limit=RateLimit(1, per=d)),
    "interval": lambda d: Supervisor(URL, queues=["q"], interval=min(d, 5) if d == 90 else d),
    "supervisor: lease": lambda d: Supervisor(URL, queues=["q"], lease=d),
    "broadcast: lease": lambda d: BroadcastWorker("q", print, URL, subscription="s", lease=d),
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "timeout": lambda d: Queue("q", URL).add_and_wait("x", timeout=d),
    "change_delay: delay": lambda d: Queue("q", URL).change_delay("1", d),
    "grace": lambda d: Queue("q", URL).clean("failed", grace=d),
    "duration": lambda d: Queue("q", URL).rate_limit_group("k", d),
    "read_output: timeout": lambda d: Queue("q", URL).read_output("1", timeout=d),
    "idle_timeout": _read,
    "cancelled: timeout": lambda d: Cancelled().wait(d),
    "owner_of: lease": lambda d: owner_of("me", d),
    "tidy: grace": lambda d: tidy("/nowhere", grace=d),
    "tidy: replaced": lambda d: tidy("/nowhere", replaced=d),
    "chaos: lease": lambda d: run_chaos(FlowSpec("x", [NODE]), app="app", lease=d),
    "chaos: timeout": lambda d: run_chaos(FlowSpec("x", [NODE]), app="app", timeout=d),
    "read: timeout": lambda d: EventReader("q", URL).read(d),
}


def test_seconds_are_taken_as_a_number(subtests: pytest.Subtests) -> None:
    for name, take in TAKERS.items():
        with subtests.test(name=name):
            take(90)
            take(90.0)
            take(timedelta(seconds=90) if name != "interval" else timedelta(seconds=5))


def test_what_is_no_duration_is_refused_by_the_name_of_the_argument(subtests: pytest.Subtests) -> None:
    for name, take in (TAKERS | CALLS).items():
        for value in BAD:
            with (
                subtests.test(name=name, value=value),
                pytest.raises((GlideMQError, ValueError, TypeError), match=name.rpartition(": ")[2]),
            ):
                take(value)


async def test_an_awaitable_call_refuses_it_as_well() -> None:
    with pytest.raises(ConfigurationError, match="timeout must be finite, got nan"):
        await AsyncQueue("q", URL).add_and_wait("x", timeout=math.nan)


def test_a_number_and_a_timedelta_are_equal_once_they_are_options() -> None:
    assert JobOptions(timeout=5, delay=0.5) == JobOptions(
        timeout=timedelta(seconds=5), delay=timedelta(milliseconds=500)
    )
    assert JobOptions(timeout=5).to_wire() == '{"timeout":5000}'
    assert Backoff(delay=2) == Backoff(delay=timedelta(seconds=2))
    assert FlowSpec("x", [], deadline=60) == FlowSpec("x", [], deadline=timedelta(minutes=1))
    assert FlowNode("a", queue="q", job="j", queue_timeout=60).queue_timeout == timedelta(minutes=1)
    assert RetryLater(5).delay == timedelta(seconds=5)


def test_short_texts_are_for_files(subtests: pytest.Subtests) -> None:
    for text, expected in SHORT_TEXTS:
        with subtests.test(text=text):
            assert from_text(text) == expected


def test_a_flow_file_may_have_numbers_iso_8601_and_short_texts() -> None:
    def flow(span: Any) -> FlowSpec:
        options = {
            "timeout": span,
            "backoff": {"kind": "fixed", "delay": span},
            "ordering": {"key": "k", "rate_limit": {"max": 1, "per": span}},
            "remove_on_fail": {"age": span},
        }
        node = {"name": "a", "queue": "q", "job": "j", "options": options, "queue_timeout": span}
        return FlowSpec.from_dict({"name": "x", "deadline": span, "nodes": [node]})

    assert flow(300) == flow("PT5M") == flow("5m") == flow("300s")
    assert flow("5m").nodes[0].options.timeout == timedelta(minutes=5)
    with pytest.raises(InvalidFlow, match="more errors"):
        flow("5 parsecs")


def test_a_setting_may_be_text(subtests: pytest.Subtests) -> None:
    for value, expected in TEXTS:
        with subtests.test(value=value):
            assert setting_duration("X", value) == expected


def test_a_setting_that_is_no_duration_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    for value in NO_DURATIONS:
        with subtests.test(value=value), pytest.raises(ConfigurationError, match=r"^X must "):
            setting_duration("X", value)


def test_the_address_may_have_durations_as_text() -> None:
    settings = ConnectionSettings("valkey://h?connect_timeout=500ms&socket_timeout=PT1M&confirm_timeout=2")
    assert (settings.connect_timeout, settings.socket_timeout, settings.confirm_timeout) == (0.5, 60, 2)
    assert ConnectionSettings(settings.whole_url).socket_timeout == 60
    assert (
        ConnectionSettings("valkey://h", socket_timeout=timedelta(minutes=1)).whole_url
        == "valkey://h:6379?socket_timeout=60.0"
    )


def test_the_bounds_are_in_the_error() -> None:
    with pytest.raises(ConfigurationError, match="x must be at least a millisecond, got 0"):
        duration("x", 0, min_=timedelta(milliseconds=1))
    with pytest.raises(ConfigurationError, match="x must be at most 1 day, 0:00:00, got 90000"):
        duration("x", 90_000, max_=timedelta(days=1))
    with pytest.raises(ConfigurationError, match="x must be a timedelta or a number of seconds, got str"):
        duration("x", "5s")


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (20, "20 s"),
        (90, "1 min 30 s"),
        (timedelta(hours=26, minutes=5), "1 d 2 h 5 min"),
        (59.9996, "1 min"),
    ],
)
def test_a_duration_in_words(span: Any, text: str) -> None:
    assert span_text(span) == text
