"""Looking at many flows together: who comes first, and how many calls it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from airflow_provider_glidemq.triggers.shared.events import (
    FIRST_AT_ONCE,
    OTHERS_AT_ONCE,
    Poller,
    QueueEvents,
    Watcher,
)

from glidemq_orchestrate import AsyncFlow, AsyncFlowProducer, FlowNode, FlowSpec
from glidemq_orchestrate.errors import ConnectionFailed, FlowNotFound
from glidemq_orchestrate.events import Event, EventKind
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.settings import ConnectionSettings
from tests.providers.airflow.builders import QUEUE, Valkey

MANY = 3 * OTHERS_AT_ONCE
ONE = FlowSpec("one", nodes=[FlowNode("n", queue=QUEUE, job="nobody")])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The flows of each call."""
    made: list[list[str]] = []
    statuses = AsyncFlowProducer.statuses

    async def noted(self: AsyncFlowProducer, flows: Sequence[Any]) -> Any:
        made.append([flow.id for flow in flows])
        return await statuses(self, flows)

    monkeypatch.setattr(AsyncFlowProducer, "statuses", noted)
    return made


async def submitted(producer: AsyncFlowProducer, count: int) -> list[AsyncFlow]:
    return [await producer.submit(ONE, flow_id=f"f{number}") for number in range(count)]


async def watched(
    producer: AsyncFlowProducer, count: int, *, seldom: float = 600
) -> list[Watcher[FlowStatus]]:
    flows = await submitted(producer, count)
    return [Watcher(flow, often=600, seldom=seldom) for flow in flows]


async def test_a_flow_that_an_event_names_does_not_wait_behind_the_others(
    producer: AsyncFlowProducer, calls: list[list[str]]
) -> None:
    poller, watchers = Poller(producer.statuses), await watched(producer, MANY)
    for one in watchers:
        poller.add(one)
    polling = asyncio.create_task(poller.run())
    await watchers[0].wait(10)
    poller.poll_first("f140")
    await asyncio.gather(*(one.wait(10) for one in watchers[1:]))
    poller.stop()
    await polling
    assert calls[0] == [f"f{number}" for number in range(OTHERS_AT_ONCE)]
    assert ["f140"] in calls[1:3]  # the second call may have been under way
    assert sorted(map(len, calls)) == [1, OTHERS_AT_ONCE - 1, OTHERS_AT_ONCE, OTHERS_AT_ONCE]


async def test_ends_at_the_same_time_are_polled_together(
    producer: AsyncFlowProducer, calls: list[list[str]]
) -> None:
    poller, flows = Poller(producer.statuses), await submitted(producer, FIRST_AT_ONCE + 1)
    watchers = [Watcher[FlowStatus](flow, often=600, seldom=600) for flow in flows]
    for one, flow in zip(watchers, flows, strict=True):
        poller.add(one)
        one.status = await flow.status()  # as if it had been looked at
        await flow.cancel("enough")
        poller.poll_first(flow.id)
    polling = asyncio.create_task(poller.run())
    found = await asyncio.gather(*(one.wait(10) for one in watchers))
    poller.stop()
    await polling
    assert {(one.state, one.reason) for one in found if one} == {("cancelled", "enough")}
    assert [len(part) for part in calls] == [FIRST_AT_ONCE, 1]


async def test_what_has_not_changed_wakes_nobody(producer: AsyncFlowProducer, calls: list[list[str]]) -> None:
    poller, (one,) = Poller(producer.statuses), await watched(producer, 1, seldom=0.01)
    poller.add(one)
    polling = asyncio.create_task(poller.run())
    assert await one.wait(10)
    assert await one.wait(2.5) is None
    assert len(calls) >= 3
    poller.stop()
    await polling


async def test_when_events_are_lost_all_are_polled(valkey: Valkey, producer: AsyncFlowProducer) -> None:
    settings = ConnectionSettings(valkey.url, prefix=valkey.prefix)
    events = QueueEvents(settings, QUEUE, producer)
    flows = [await producer.submit(ONE, flow_id=f"f{number}") for number in range(3)]
    watchers = [await events.watch(flow, often=600, seldom=600) for flow in flows]
    for one in watchers:
        assert await one.wait(10)
    events._dispatch = _deaf(events)  # type: ignore[method-assign]
    for flow in flows:
        await flow.cancel("enough")
    for one in watchers:
        found = await one.wait(10)
        assert found is not None
        assert found.state == "cancelled"
        events.unwatch(one)


def _deaf(events: QueueEvents) -> Any:
    """Hears of a gap in place of each event."""
    heard = events._dispatch
    return lambda event: heard(Event(event.id, EventKind.EVENTS_LOST, "", "", {}))


async def test_a_flow_that_was_removed_is_an_error_of_its_watcher_only(
    valkey: Valkey, producer: AsyncFlowProducer
) -> None:
    poller, (flow, other) = Poller(producer.statuses), await submitted(producer, 2)
    flow._operations.ref = flow._ref.__class__(flow._ref.home, "never")
    gone, left = (Watcher[FlowStatus](one, often=600, seldom=600) for one in (flow, other))
    for one in (gone, left):
        poller.add(one)
    polling = asyncio.create_task(poller.run())
    assert await left.wait(10)
    with pytest.raises(FlowNotFound):
        await gone.wait(10)
    poller.stop()
    await polling


async def test_all_watchers_are_told_that_the_server_cannot_be_asked(
    valkey: Valkey, producer: AsyncFlowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = QueueEvents(ConnectionSettings(valkey.url, prefix=valkey.prefix), QUEUE, producer)
    flow = await producer.submit(ONE, flow_id="f")
    watcher = await events.watch(flow, often=600, seldom=0.01)
    assert await watcher.wait(10)
    over = [events.is_over]

    async def refused(*_: Any) -> Any:
        raise ConnectionFailed("no")

    monkeypatch.setattr(AsyncFlowProducer, "statuses", refused)
    with pytest.raises(ConnectionFailed):
        await watcher.wait(10)
    assert [*over, events.is_over] == [False, True]
    events.unwatch(watcher)
