"""Both twins of a client run the same operations; so one of them shows what a method does."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from glidemq_orchestrate import (
    AsyncBroadcast,
    AsyncClient,
    AsyncEventReader,
    AsyncFlow,
    AsyncFlowProducer,
    AsyncQueue,
    Broadcast,
    Client,
    EventReader,
    Flow,
    FlowProducer,
    Queue,
)
from glidemq_orchestrate.chasquimq import AsyncChasquiQueue, ChasquiQueue
from glidemq_orchestrate.clients import AsyncFlowArray, AsyncSchedules, FlowArray, Schedules

AT_ONCE = (
    "__init__",
    "array",
    "iter_results",
    "watch",
    "watch_batches",
    "watch_tracked",
    "queue",
    "events",
    "schedules",
    "broadcast",
)
PAIRS = [
    (Queue, AsyncQueue),
    (FlowProducer, AsyncFlowProducer),
    (Client, AsyncClient),
    (Flow, AsyncFlow),
    (EventReader, AsyncEventReader),
    (Schedules, AsyncSchedules),
    (Broadcast, AsyncBroadcast),
    (FlowArray, AsyncFlowArray),
    (ChasquiQueue, AsyncChasquiQueue),
]


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def properties(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, lambda value: isinstance(value, property))}


@pytest.mark.parametrize(("sync", "other"), PAIRS)
def test_both_kinds_have_the_same_methods_and_properties(sync: type, other: type) -> None:
    assert methods(sync) == methods(other) != set()
    assert properties(sync) == properties(other)
    for name in [*methods(sync), "__init__"]:
        one, two = inspect.signature(getattr(sync, name)), inspect.signature(getattr(other, name))
        if name != "__init__" or sync is not Flow:
            assert list(one.parameters.values()) == list(two.parameters.values()), name
            assert str(one.return_annotation) == str(two.return_annotation).replace("Async", ""), name
        assert inspect.iscoroutinefunction(getattr(other, name)) == (name not in AT_ONCE), name


def operation(method: Any) -> tuple[list[str], object]:
    """What makes a method of an operation, and the operation."""
    makers = []
    while hasattr(method, "__wrapped__"):
        makers.append(method.__code__.co_qualname.partition(".")[0])
        method = method.__wrapped__
    return makers, method


OWN = {"close", "Flow.array"} | {
    f"Client.{name}" for name in ("broadcast", "events", "queue", "queues", "schedules")
}
AWAITED = {"blocking": "awaited", "streamed": "streamed_async"}


@pytest.mark.parametrize(("sync", "other"), PAIRS)
def test_both_kinds_run_the_same_operations(sync: type, other: type) -> None:
    """So what a method does is tested with one of them."""
    for name in methods(sync):
        if name in OWN or f"{sync.__name__}.{name}" in OWN:
            continue
        (makers, run), (others, awaited) = operation(getattr(sync, name)), operation(getattr(other, name))
        assert run is awaited, name
        for plain, twin in AWAITED.items():
            makers = [maker.replace(plain, twin) for maker in makers]
        assert makers == others, name


@pytest.mark.parametrize(("sync", "other"), PAIRS)
def test_both_kinds_have_whole_texts(sync: type, other: type) -> None:
    for name in methods(sync) - {"close"}:
        text = inspect.getdoc(getattr(sync, name))
        assert text, name
        assert not text.startswith("See "), name
        assert (inspect.getdoc(getattr(other, name)) or "").replace("Async", "") == text, name
        for kind in (sync, other):
            assert "Op[" not in str(inspect.signature(getattr(kind, name))), name
            assert getattr(kind, name).__qualname__.rpartition(".")[2] == name


def test_a_method_has_the_name_of_its_class() -> None:
    assert AsyncQueue.add.__qualname__ == "AsyncQueue.add"
    assert Flow.wait.__qualname__ == "Flow.wait"
