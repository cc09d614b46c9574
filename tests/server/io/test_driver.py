"""The drivers: what an operation gets when things go wrong below it."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.exchange import Kind
from glidemq_orchestrate.errors import OutcomeUnknown, ProtocolError
from glidemq_orchestrate.io import connect, delivery
from glidemq_orchestrate.io.aio import AsyncDriver
from glidemq_orchestrate.io.gathering import GatheringDriver
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, ask_each, command
from glidemq_orchestrate.wire.trips import Trips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Eventually
    from tests.server.conftest import Hand

PING = command("PING", decode=replies.text)


@pytest.mark.parametrize("kind", [AsyncDriver, GatheringDriver])
async def test_a_cancelled_call_is_cancelled_at_whatever_moment(url: str, kind: type[AsyncDriver]) -> None:
    driver, dice = kind(ConnectionSettings.resolve(url)), random.Random(1)
    cancelled = 0
    for _ in range(400):
        task = asyncio.create_task(driver.run(ask(PING)))
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled += 1
    assert cancelled > 100
    assert await driver.run(ask(PING)) == "PONG"
    await driver.aclose()


def two_trips(seen: list[str]) -> Op[None]:
    def calls() -> Iterator[Call[Any]]:
        yield command("PING", decode=lambda _: seen.append("replied"))
        yield from [PING] * 4
        seen.append("encoding")
        yield PING

    trips = Trips(calls())
    while trip := trips.take():
        yield from ask_all(trip)


async def test_the_next_trip_is_encoded_while_the_server_works(url: str) -> None:
    seen: list[str] = []
    blocking = SyncDriver(ConnectionSettings.resolve(url))
    blocking.run(two_trips(seen))
    blocking.close()
    for kind in (AsyncDriver, GatheringDriver):
        driver = kind(ConnectionSettings.resolve(url))
        await driver.run(two_trips(seen))
        await driver.aclose()
    assert seen == ["encoding", "replied"] * 3


def broken_off(seen: list[str]) -> Op[None]:
    def calls() -> Iterator[Call[Any]]:
        yield command("PING", decode=lambda _: seen.append("replied"), repeatable=True)
        yield from [PING] * 5
        raise MemoryError

    trips = Trips(calls())
    while trip := trips.take():
        yield from ask_all(trip)
    seen.append("all were sent")


async def test_an_error_of_encoding_ahead_is_not_one_of_the_connection(url: str) -> None:
    """Nor do the calls before it pass for all."""
    seen: list[str] = []
    blocking = SyncDriver(ConnectionSettings.resolve(url))
    with pytest.raises(MemoryError):
        blocking.run(broken_off(seen))
    blocking.close()
    driver = AsyncDriver(ConnectionSettings.resolve(url))
    with pytest.raises(MemoryError):
        await driver.run(broken_off(seen))
    await driver.aclose()
    assert seen == ["replied"] * 2


@pytest.mark.parametrize("kind", [AsyncDriver, GatheringDriver])
async def test_a_reply_is_never_that_of_another_call(url: str, kind: type[AsyncDriver]) -> None:
    driver, dice = kind(ConnectionSettings.resolve(url)), random.Random(2)

    async def echo(number: int) -> None:
        reply = await driver.run(ask(command("ECHO", number, decode=replies.text)))
        assert reply == str(number)

    tasks = [asyncio.create_task(echo(number)) for number in range(300)]
    await asyncio.sleep(0.005)
    for task in dice.sample(tasks, 100):
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in ended} <= {type(None), asyncio.CancelledError}
    await driver.aclose()


def wait_at_the_gate() -> Op[Any]:
    return ask(command("BLPOP", "gate", 30, decode=replies.anything, blocks_for=30))


class Gate:
    """Lets calls that wait for it go on when all of them wait: each has a connection of its own by then."""

    def __init__(self, client: Any, eventually: Eventually) -> None:
        self._client, self._eventually = client, eventually

    def let_through(self, count: int) -> None:
        self._eventually(lambda: self.waiting() == count)
        self._client.rpush("gate", *range(count))

    def waiting(self) -> int:
        return sum("b" in client["flags"] for client in self._client.client_list())

    def clients(self) -> int:
        """How many clients the server has beside this one."""
        return len(self._client.client_list()) - 1


@pytest.fixture
def gate(redis_client: Any, eventually: Eventually) -> Gate:
    return Gate(redis_client, eventually)


async def test_connections_of_a_burst_are_closed_when_idle_for_a_minute(
    url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    driver, now = AsyncDriver(ConnectionSettings.resolve(url)), 1000.0
    monkeypatch.setattr(connect, "monotonic", lambda: now)

    async def burst(count: int) -> None:
        calls = [asyncio.create_task(driver.run(wait_at_the_gate())) for _ in range(count)]
        await asyncio.to_thread(gate.let_through, count)
        await asyncio.gather(*calls)

    before = gate.clients()
    await burst(40)
    assert gate.clients() == before + 40
    now += 59
    await burst(3)
    assert gate.clients() == before + 40
    now += 2
    assert await driver.run(ask(PING)) == "PONG"
    await asyncio.to_thread(eventually, lambda: gate.clients() == before + 3)
    assert await driver.run(ask(PING)) == "PONG"
    await driver.aclose()
    await asyncio.to_thread(eventually, lambda: gate.clients() == before)


def test_blocking_connections_of_a_burst_are_closed_too(
    url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    driver, now = SyncDriver(ConnectionSettings.resolve(url)), 1000.0
    monkeypatch.setattr(connect, "monotonic", lambda: now)
    before = gate.clients()
    threads = [threading.Thread(target=driver.run, args=[wait_at_the_gate()]) for _ in range(20)]
    for thread in threads:
        thread.start()
    gate.let_through(20)
    for thread in threads:
        thread.join(30)
    assert gate.clients() == before + 20
    now += 61
    assert driver.run(ask(PING)) == "PONG"
    eventually(lambda: gate.clients() == before + 1)
    driver.close()
    eventually(lambda: gate.clients() == before)


def test_a_refused_call_of_a_batch_stands_in_its_place(hand: Hand) -> None:
    calls: Any = [PING, command("INCR", "a", "b", decode=replies.anything), PING]
    found = hand.run(ask_each(calls))
    assert (found[0], found[2]) == ("PONG", "PONG")
    assert isinstance(found[1], ProtocolError)


def test_a_connection_that_breaks_after_sending_leaves_the_outcome_unknown(
    hand: Hand, redis_client: Any, eventually: Eventually
) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            hand.run(ask(command("BLPOP", "nothing", 10, decode=replies.anything, blocks_for=10)))
        except OutcomeUnknown as exc:
            errors.append(exc)

    waiter = threading.Thread(target=wait)
    waiter.start()
    blocked = eventually(lambda: [c["id"] for c in redis_client.client_list() if c["cmd"] == "blpop"])
    redis_client.client_kill_filter(_id=blocked[0])
    waiter.join(20)
    assert ["broke while waiting for the reply" in str(exc) for exc in errors] == [True]
    assert hand.run(ask(PING)) == "PONG"


async def test_a_call_may_wait_longer_than_other_calls_may_take(url: str) -> None:
    quick = ConnectionSettings(url, socket_timeout=0.2)
    driver = AsyncDriver(quick)
    assert await driver.run(ask(command("BLPOP", "nothing", 0.5, decode=bool, blocks_for=0.5))) is False
    with pytest.raises(OutcomeUnknown):
        await driver.run(ask(command("BLPOP", "nothing", 5, decode=bool)))
    await driver.aclose()


def test_an_operation_gets_the_error_and_may_go_on(hand: Hand) -> None:
    def op() -> Op[str]:
        try:
            yield from ask(command("INCR", "a", "b", decode=replies.anything))
        except ProtocolError:
            return (yield from ask(PING))
        return "not refused"

    assert hand.run(op()) == "PONG"


@pytest.mark.parametrize("has_hiredis", ["with", "without"])
async def test_words_of_all_kinds_arrive_as_sent(
    url: str, monkeypatch: pytest.MonkeyPatch, has_hiredis: str
) -> None:
    if has_hiredis == "without":  # it is an extra
        monkeypatch.setattr(delivery, "_fast", None)
    driver = AsyncDriver(ConnectionSettings.resolve(url))
    words: list[Word] = ["", "plain", "é \N{SNAKE}", 7, -1, 0.5, Kind.DONE, "x" * 100_000]
    calls = [command("EVAL", "return ARGV", 0, *words, decode=list), command("ECHO", "end", decode=list)]
    assert await driver.run(ask_all(calls)) == [[str(word) for word in words], list("end")]
    await driver.aclose()
