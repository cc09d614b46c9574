"""Operations whose calls go out together."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.errors import ConnectionFailed, OutcomeUnknown, ProtocolError
from glidemq_orchestrate.io.gathering import MAX_CALLS, GatheringDriver
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Op, ask, ask_all, command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import RunWorker


@pytest.fixture
async def driver(url: str) -> AsyncIterator[GatheringDriver]:
    made = GatheringDriver(ConnectionSettings.resolve(url))
    yield made
    await made.aclose()


def echo(*words: str) -> Op[list[str]]:
    return (yield from ask_all([command("ECHO", word, decode=replies.text) for word in words]))


async def test_they_share_a_connection_and_its_trips(driver: GatheringDriver, redis_client: Any) -> None:
    await driver.run(echo("first"))
    before = redis_client.info("stats")["total_reads_processed"], len(redis_client.client_list())
    found = await asyncio.gather(*(driver.run(echo(f"{n}", f"{n}'")) for n in range(60)))
    reads = redis_client.info("stats")["total_reads_processed"] - before[0]
    assert found == [[f"{n}", f"{n}'"] for n in range(60)]
    assert reads < 10
    assert len(redis_client.client_list()) == before[1]


async def test_a_trip_has_a_bounded_number_of_calls(driver: GatheringDriver) -> None:
    words = [f"{n}" for n in range(MAX_CALLS // 2 + 1)]
    assert await asyncio.gather(*(driver.run(echo(*words)) for _ in range(5))) == [words] * 5


async def test_a_refused_call_fails_its_own_operation_only(driver: GatheringDriver) -> None:
    bad = ask(command("NONSENSE", decode=replies.text))
    good, failed = await asyncio.gather(driver.run(echo("a")), driver.run(bad), return_exceptions=True)
    assert good == ["a"]
    assert isinstance(failed, ProtocolError)


async def test_a_call_that_waits_holds_up_no_other(driver: GatheringDriver) -> None:
    waiting = ask(command("BLPOP", "nothing", 5, decode=replies.anything, blocks_for=5))
    task = asyncio.create_task(driver.run(waiting))
    async with asyncio.timeout(2):
        assert await driver.run(echo("a")) == ["a"]
    assert not task.done()
    task.cancel()


async def test_no_operation_waits_for_a_trip_that_was_cancelled(driver: GatheringDriver) -> None:
    await driver.run(ask(command("CLIENT", "PAUSE", 2_000, "ALL", decode=replies.anything)))
    before = asyncio.all_tasks()
    tasks = {asyncio.create_task(driver.run(echo("a"))) for _ in range(3)}
    await asyncio.sleep(0.2)
    (trip,) = asyncio.all_tasks() - before - tasks
    trip.cancel()
    async with asyncio.timeout(20):
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in found} == {OutcomeUnknown}
        assert await driver.run(echo("a")) == ["a"]


async def test_nothing_is_sent_for_operations_cancelled_before_their_trip(
    driver: GatheringDriver, redis_client: Any
) -> None:
    before = asyncio.all_tasks(), len(redis_client.client_list())
    task = asyncio.create_task(driver.run(ask(command("SET", "sent", "1", decode=replies.anything))))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await driver.aclose()
    await asyncio.sleep(0.05)
    assert redis_client.get("sent") is None
    assert (asyncio.all_tasks(), len(redis_client.client_list())) == before


async def test_closing_ends_the_trips_under_way(driver: GatheringDriver, redis_client: Any) -> None:
    before = asyncio.all_tasks(), len(redis_client.client_list())
    await asyncio.to_thread(redis_client.execute_command, "CLIENT", "PAUSE", "300", "WRITE")
    task = asyncio.create_task(driver.run(ask(command("SET", "sent", "1", decode=replies.anything))))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await driver.aclose()
    await asyncio.sleep(0.05)  # the server sees it
    assert (asyncio.all_tasks(), len(redis_client.client_list())) == before


def test_a_worker_of_many_queues_does_its_chores_over_few_connections(
    run_worker: RunWorker, redis_client: Any
) -> None:
    """Beside those on which it waits for jobs, one for each queue."""
    queues = [f"q{n}" for n in range(16)]
    run_worker(queues, {"a": lambda ctx: None})
    time.sleep(4.5)  # each chore has come twice at least
    assert len(redis_client.client_list()) <= len(queues) + 8


async def test_a_broken_connection_fails_all_that_shared_it(redis_client: Any, url: str) -> None:
    driver = GatheringDriver(ConnectionSettings.resolve(url))
    await driver.run(echo("a"))
    writes = [driver.run(ask(command("INCR", f"n{n}", decode=int))) for n in range(3)]
    kill = driver.run(ask(command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no", decode=int)))
    found = await asyncio.gather(kill, *writes, return_exceptions=True)
    assert {type(one) for one in found} <= {OutcomeUnknown, ConnectionFailed}
    assert await driver.run(echo("again")) == ["again"]
    await driver.aclose()
