"""The collector of cycles is paused only while many objects are made."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.foundation.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """The collections since the test began."""
    seen: list[str] = []

    def note(phase: str, _: dict[str, Any]) -> None:
        seen.append(phase)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_checking_a_large_flow_collects_only_afterwards(collections: list[str]) -> None:
    spec = FlowSpec("n", [FlowNode(f"n{at}", queue="etl") for at in range(10_000)])
    collections.clear()
    check_flow(spec)
    assert collections.count("start") < 5, "44 without the pause; other threads may collect, too"
    assert gc.isenabled()


def test_it_is_as_before_after_an_error() -> None:
    with pytest.raises(InvalidFlow):
        check_flow(FlowSpec("n", [FlowNode("a b\n", queue="etl")]))
    assert gc.isenabled()


def test_one_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
