"""One client, one pool: what it hands out shares its connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import AsyncClient, Client, FlowNode, FlowSpec, FlowState, JobState, Schedule
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.settings import ConnectionSettings

if TYPE_CHECKING:
    from tests.conftest import Eventually

SPEC = FlowSpec("nightly", [FlowNode("a", queue="etl", job="work")])
EVERY_HOUR = Schedule(cron="0 * * * *")


def connections(redis_client: Any) -> set[str]:
    return {client["id"] for client in redis_client.client_list()}


def use_all(client: Client) -> list[Any]:
    queue, events = client.queue("etl"), client.events("etl", position="0-0")
    queue.add("work", {"month": 1})
    client.flows.submit(SPEC, flow_id="one")
    client.schedules("etl").upsert("hourly", EVERY_HOUR)
    client.broadcast("news").publish("orders.new", 1)
    return [
        queue.counts()[JobState.WAITING],
        client.flows.get("one").status().total,
        [flow.name for flow in client.flows.list()],
        client.flows.plan(SPEC, flow_id="one").drops,
        bool(events.read()),
        [entry.name for entry in client.schedules("etl").list()],
        client.broadcast("news").subscriptions(),
        client.queues(),
    ]


async def use_all_async(client: AsyncClient) -> list[Any]:
    queue, events = client.queue("etl"), client.events("etl", position="0-0")
    await queue.add("work", {"month": 1})
    await client.flows.submit(SPEC, flow_id="one")
    await client.schedules("etl").upsert("hourly", EVERY_HOUR)
    await client.broadcast("news").publish("orders.new", 1)
    return [
        (await queue.counts())[JobState.WAITING],
        (await (await client.flows.get("one")).status()).total,
        [flow.name for flow in await client.flows.list()],
        (await client.flows.plan(SPEC, flow_id="one")).drops,
        bool(await events.read()),
        [entry.name for entry in await client.schedules("etl").list()],
        await client.broadcast("news").subscriptions(),
        await client.queues(),
    ]


def test_all_that_a_client_hands_out_shares_one_connection(
    url: str, redis_client: Any, eventually: Eventually
) -> None:
    before = connections(redis_client)
    with Client(url) as client:
        assert use_all(client) == [2, 1, ["nightly"], [], True, ["hourly"], [], ["etl", "news"]]
        assert len(connections(redis_client) - before) == 1
    eventually(lambda: connections(redis_client) <= before)


async def test_all_that_an_async_client_hands_out_shares_one_connection(
    url: str, redis_client: Any, eventually: Eventually
) -> None:
    before = connections(redis_client)
    async with AsyncClient(url) as client:
        found = await use_all_async(client)
        assert found == [2, 1, ["nightly"], [], True, ["hourly"], [], ["etl", "news"]]
        assert len(connections(redis_client) - before) == 1
    await asyncio.sleep(0)
    eventually(lambda: connections(redis_client) <= before)


def test_what_was_handed_out_leaves_the_connections_open(url: str, redis_client: Any) -> None:
    with Client(url) as client:
        with client.queue("etl") as queue:
            queue.add("work")
        open_now = connections(redis_client)
        with client.flows as flows:
            flows.submit(SPEC, flow_id="one")
        assert queue.counts()[JobState.WAITING] == 2
        assert client.flows is flows
        assert connections(redis_client) == open_now


def test_after_its_client_was_closed_each_use_is_an_error(url: str) -> None:
    with Client(url) as client:
        queue = client.queue("etl")
        flow = client.flows.submit(SPEC)
    for use in (queue.counts, flow.status, lambda: client.queue("etl"), client.queues, client.flows.list):
        with pytest.raises(ConfigurationError, match=r"the client is closed\. Fix: "):
            use()
    client.close()
    queue.close()


async def test_after_its_async_client_was_closed_each_use_is_an_error(url: str) -> None:
    async with AsyncClient(url) as client:
        queue = client.queue("etl")
        flow = await client.flows.submit(SPEC)
    for use in (queue.counts, flow.status, client.queues, client.flows.list):
        with pytest.raises(ConfigurationError, match=r"the client is closed\. Fix: "):
            await use()
    with pytest.raises(ConfigurationError, match="the client is closed"):
        client.events("etl")
    await client.close()
    await queue.close()


def test_a_client_passes_on_its_prefix_and_the_arguments_of_each_kind(url: str) -> None:
    with Client(ConnectionSettings(url, prefix="ours")) as client:
        client.queue("etl", compression="gzip").add("work", "x" * 100)
        assert client.queues() == ["etl"]
        assert client.events("etl", position="0-0").start() == "0-0"
        with pytest.raises(ConfigurationError, match="max_messages must be at least 1"):
            client.broadcast("news", max_messages=0)
    with Client(url) as other:
        assert other.queues() == []


def test_an_outcome_has_the_state_in_which_the_flow_ended(url: str) -> None:
    with Client(url) as client:
        flow = client.flows.submit(SPEC)
        flow.cancel("enough")
        outcome = flow.wait(timeout=30)
        assert outcome.state is outcome.status.state is FlowState.CANCELLED
