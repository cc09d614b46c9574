"""Both twins of a client have the text, the parameters and the result of the operation that they run."""

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
    AsyncSchedules,
    Broadcast,
    Client,
    EventReader,
    Flow,
    FlowProducer,
    Queue,
    Schedules,
)

PAIRS = [
    (Queue, AsyncQueue),
    (FlowProducer, AsyncFlowProducer),
    (Client, AsyncClient),
    (Flow, AsyncFlow),
    (EventReader, AsyncEventReader),
    (Schedules, AsyncSchedules),
    (Broadcast, AsyncBroadcast),
]
METHODS = [
    (sync, other, name)
    for sync, other in PAIRS
    for name, _ in inspect.getmembers(sync, inspect.isfunction)
    if not name.startswith("_") and name != "close"
]


@pytest.mark.parametrize(("sync", "other", "name"), METHODS)
def test_the_text_of_a_method_is_whole_in_both_twins(sync: Any, other: Any, name: str) -> None:
    text = inspect.getdoc(getattr(sync, name))
    assert text
    assert not text.startswith("See ")
    assert (inspect.getdoc(getattr(other, name)) or "").replace("Async", "") == text


@pytest.mark.parametrize(("sync", "other", "name"), METHODS)
def test_the_signature_of_a_method_shows_what_it_returns(sync: Any, other: Any, name: str) -> None:
    for kind in (sync, other):
        assert "Op[" not in str(inspect.signature(getattr(kind, name)))


def test_a_method_has_the_name_of_its_class() -> None:
    assert AsyncQueue.add.__qualname__ == "AsyncQueue.add"
    assert Flow.wait.__qualname__ == "Flow.wait"
