"""Arguments of the wrong type: an error of the package that names them; good ones cost nothing and pass."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from glidemq_orchestrate import (
    AsyncQueue,
    Backoff,
    Broadcast,
    Dependency,
    EmbeddedServer,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    JobTemplate,
    Ordering,
    Queue,
    Schedule,
    check_flow,
)
from glidemq_orchestrate.errors import ConfigurationError, EncodeError, InvalidFlow, InvalidJob
from glidemq_orchestrate.events import EventFilter
from glidemq_orchestrate.flows import map_over, nested
from glidemq_orchestrate.flows.dependencies import Rule
from glidemq_orchestrate.foundation.arguments import explained, fits
from glidemq_orchestrate.jobs.option_values import Fallback
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.worker.services.supervisor import Supervisor

URL = "valkey://h"
NODE = FlowNode("a", queue="etl", job="work")
HUGE = 10**5000  # has no repr
SECRET = "hunter2"

WRONG_TYPES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Backoff("fixed", "5"), InvalidJob, "delay must be a timedelta or a number of"),  # type: ignore[arg-type]
    (lambda: Backoff(jitter=HUGE), InvalidJob, "jitter must be between 0 and 1, got a value of type int"),
    (lambda: Ordering("k", rate_limit=3), InvalidJob, "rate_limit must be RateLimit or None, got int"),  # type: ignore[arg-type]
    (lambda: Fallback("m", metadata=[1]), InvalidJob, "metadata must be Mapping"),  # type: ignore[arg-type]
    (lambda: JobOptions(backoff="fast"), InvalidJob, "backoff must be Backoff or None, got str"),  # type: ignore[arg-type]
    (lambda: JobOptions(fallbacks=[1]), InvalidJob, "fallbacks must be Sequence.Fallback., got list with"),  # type: ignore[list-item]
    (lambda: JobOptions(attempts=HUGE), InvalidJob, "attempts must be at most"),
    (lambda: JobOptions(remove_on_fail=HUGE), InvalidJob, "remove_on_fail must be True, False, a count"),
    (lambda: Usage(tokens=5), InvalidJob, "tokens must be numbers by category, got int"),  # type: ignore[arg-type]
    (lambda: JobTemplate(options=None), InvalidJob, "options must be JobOptions, got None"),  # type: ignore[arg-type]
    (lambda: Schedule(every="5"), ConfigurationError, "every must be a timedelta or a number of seconds"),  # type: ignore[arg-type]
    (lambda: EventFilter(kinds="completed"), ConfigurationError, "kinds must be Collection.str. or None, got str"),  # noqa: E501
    (lambda: Dependency(HUGE), InvalidFlow, "must be the name of a node"),  # type: ignore[arg-type]
    (lambda: check_flow(FlowSpec("x", 5)), InvalidFlow, "nodes must be Sequence.FlowNode., got int"),  # type: ignore[arg-type]
    (lambda: check_flow(5), InvalidFlow, "a flow must be a FlowSpec, got int"),  # type: ignore[arg-type]
    (
        lambda: check_flow(FlowSpec("x", [NODE, FlowNode("b", queue="etl", job="work", options=3)])),  # type: ignore[arg-type]
        InvalidFlow,
        "node b: options must be JobOptions, got int",
    ),
    (lambda: map_over(NODE, 5), InvalidFlow, "items must be Iterable.JsonLike., got int"),  # type: ignore[arg-type]
    (lambda: nested("x"), InvalidFlow, "flow must be FlowSpec, got str"),  # type: ignore[arg-type]
    (lambda: FlowSpec.from_dict(5), InvalidFlow, "wire must be Mapping.str, Any., got int"),  # type: ignore[arg-type]
    (lambda: Broadcast("a", URL, max_messages="5"), ConfigurationError, "max_messages must be int or None"),  # type: ignore[arg-type]
    (lambda: Supervisor(URL, queues=["a"], interval="5"), ConfigurationError, "interval must be a timed"),  # type: ignore[arg-type]
    (lambda: EmbeddedServer(databases="x"), ConfigurationError, "databases must be int, got str"),  # type: ignore[arg-type]
    (lambda: Handlers().batch_handler("a", size="x"), ConfigurationError, "size must be int, got str"),  # type: ignore[arg-type]
    (lambda: Queue("a", URL, compression=HUGE), ConfigurationError, "compression a value of type int"),  # type: ignore[arg-type]
    (lambda: Queue("a", URL).add_and_wait("x", timeout="5"), ConfigurationError, "timeout must be a timedelta"),  # type: ignore[arg-type]  # noqa: E501
    (lambda: ConnectionSettings(URL, socket_timeout=[HUGE]), ConfigurationError, "seconds, got list"),  # type: ignore[arg-type]
]  # fmt: skip


class Named(Protocol):
    def name(self) -> str: ...


class Pet:
    def name(self) -> str:
        return "Rex"


def test_an_argument_of_the_wrong_type_is_named(subtests: pytest.Subtests) -> None:
    for make, error, expected in WRONG_TYPES:
        with subtests.test(make=make), pytest.raises(error, match=expected):
            make()


async def test_so_is_one_of_an_awaitable_call() -> None:
    call = AsyncQueue("a", URL).add_and_wait("x", timeout="5")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match="timeout must be a timedelta or a number of seconds, got str"
    ):
        await call
    assert inspect.iscoroutinefunction(AsyncQueue.add)


def test_an_error_that_no_argument_explains_stays_as_it_is() -> None:
    @explained()
    def fail(items: Sequence[int]) -> None:
        raise KeyError(next(iter(items)))

    with pytest.raises(KeyError):
        fail([1])
    with pytest.raises(
        ConfigurationError, match=r"items must be Sequence\[int\], got list with other elements"
    ):
        fail(["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="missing"):
        fail()  # type: ignore[call-arg]
    assert "submit" in vars(FlowProducer)


FITTING: list[tuple[Any, Any, bool]] = [
    (1, int, True),
    (True, int, False),
    (1, float, True),
    ("x", float, False),
    (None, int | None, True),
    ("a", Literal["a", "b"], True),
    (["a"], Literal["a", "b"], False),
    ("all_done", Rule, True),
    ("nope", Rule, False),
    ("abc", Sequence[str], False),
    (["a", 1], Sequence[str], False),
    ({"a"}, Sequence[str], True),
    ({"a": 1}, Mapping[str, int], True),
    ({"a": "x"}, Mapping[str, int], False),
    ((1, timedelta(1)), tuple[int, timedelta], True),
    ((1,), tuple[int, timedelta], False),
    (Pet(), Named, True),
    (5, Named, False),
    (object(), Any, True),
    (datetime.now(UTC), Path | datetime, True),
]


def test_what_fits(subtests: pytest.Subtests) -> None:
    for value, hint, expected in FITTING:
        with subtests.test(value=value):
            assert fits(value, hint) is expected


def test_the_elements_of_an_iterator_are_left_to_the_call() -> None:
    items = iter(["x"])
    assert fits(items, Sequence[int])
    assert list(items) == ["x"]


def test_a_traceback_of_a_refused_flow_shows_no_data() -> None:
    wire = {"name": [{"password": SECRET}], "nodes": [{"data": SECRET}]}
    with pytest.raises(InvalidFlow) as refused:
        FlowSpec.from_dict(wire)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_an_error_of_the_encoder_does_not_hold_the_payload() -> None:
    with pytest.raises(EncodeError, match="not JSON") as refused:
        check_flow(
            FlowSpec(
                "x", [FlowNode("a", queue="etl", job="work", data={"password": SECRET, "half": "\ud83d"})]
            )
        )
    assert refused.value.__cause__ is None


def test_a_service_that_is_refused_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="the service of the sentinels is not valid") as refused:
        ConnectionSettings(f"valkey+sentinel://h/{SECRET}%00")
    assert SECRET not in "".join(traceback.format_exception(refused.value))
