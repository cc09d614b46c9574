"""Which messages go into one event, and what becomes of those that are not stored. No server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from airflow_provider_glidemq.triggers.inbox import MAX_BYTES, MAX_FAILURES, Delivery, Inbox, MessageBatch

from glidemq_orchestrate import Context, RetryLater, Unrecoverable


def delivery(data: Any = None, job_id: str = "1") -> Delivery:
    return Delivery.of(Context("q", job_id, "order", 1, data, {}, None, None))


def put(inbox: Inbox, *ids: object, data: Any = None) -> list[Delivery]:
    made = [delivery(data, str(number)) for number in ids]
    for one in made:
        inbox.put(one)
    return made


def ids(batch: MessageBatch | Iterable[Delivery]) -> list[str]:
    return [one.job_id for one in (batch.deliveries if isinstance(batch, MessageBatch) else batch)]


async def test_a_burst_is_one_event_with_the_messages_in_order() -> None:
    inbox = Inbox("q", 100, 60)
    put(inbox, *range(3), data={"n": 1})
    batch = await inbox.next()
    assert batch.payload == {
        "queue": "q",
        "messages": [{"id": str(number), "job": "order", "data": {"n": 1}} for number in range(3)],
    }


async def test_what_comes_within_the_interval_is_in_the_next_event() -> None:
    inbox = Inbox("q", 100, 0.5)
    put(inbox, 1)
    loop = asyncio.get_running_loop()
    await inbox.next()
    since = loop.time()
    for number in (2, 3):
        loop.call_later(0.2 * number - 0.3, put, inbox, number)
    assert ids(await inbox.next()) == ["2", "3"]
    assert loop.time() - since >= 0.5


async def test_a_full_event_waits_for_its_time_too() -> None:
    """Airflow may leave the last of events that follow each other closely unnoticed."""
    inbox, loop = Inbox("q", 2, 0.3), asyncio.get_running_loop()
    put(inbox, *range(5))
    since = loop.time()
    assert [ids(await inbox.next()) for _ in range(3)] == [["0", "1"], ["2", "3"], ["4"]]
    assert loop.time() - since >= 0.6


async def test_an_event_has_a_size_too() -> None:
    inbox = Inbox("q", 100, 0)
    put(inbox, *range(8), data="x" * 40_000)
    assert [len((await inbox.next()).deliveries) for _ in range(2)] == [6, 2]


async def test_a_message_that_the_worker_has_lost_is_left_out() -> None:
    inbox = Inbox("q", 100, 0)
    lost, _ = put(inbox, 1, 2)
    lost.outcome.cancel()
    assert ids(await inbox.next()) == ["2"]


async def test_what_was_stored_is_completed() -> None:
    inbox = Inbox("q", 100, 0)
    made = put(inbox, 1, 2)
    inbox.stored(await inbox.next())
    assert [one.outcome.result() for one in made] == [None, None]


async def test_a_message_that_is_never_stored_fails_alone() -> None:
    inbox = Inbox("q", 100, 0)
    bad_ends: list[BaseException | None] = []
    good_ends: list[BaseException | None] = []
    while not bad_ends or isinstance(bad_ends[-1], RetryLater):
        bad, good = put(inbox, "bad", "good")
        while not (bad.outcome.done() and good.outcome.done()):
            batch = await inbox.next()
            (inbox.not_stored if "bad" in ids(batch) else inbox.stored)(batch)
        bad_ends.append(bad.outcome.exception())
        good_ends.append(good.outcome.exception())
    assert isinstance(good_ends[0], RetryLater), "it was in the event of the other"
    assert good_ends[1:] == [None] * (MAX_FAILURES - 1)
    assert not any(isinstance(one, RetryLater) and one.counts for one in bad_ends)
    assert len(bad_ends) == MAX_FAILURES
    assert "not store its event, 5 times" in str(bad_ends[-1])


async def test_what_is_not_stored_is_given_back_at_the_end() -> None:
    inbox = Inbox("q", 1, 0)
    made = put(inbox, 1, 2)
    await inbox.next()
    inbox.close()
    for one in made:
        error = one.outcome.exception()
        assert isinstance(error, RetryLater)
        assert not error.counts


async def test_an_error_reaches_the_watcher() -> None:
    inbox = Inbox("q", 1, 0)
    asyncio.get_running_loop().call_later(0.05, inbox.fail, RuntimeError("as announced"))
    with pytest.raises(RuntimeError, match="as announced"):
        await inbox.next()


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


NOT_STORABLE: list[tuple[Any, str]] = [
    ("x" * MAX_BYTES, "49,154 bytes of JSON"),
    ({"n": [2**63]}, "more than 64 bits"),
    (nested(60), "nested deeper than 50"),
    ("\ud800", "is not JSON"),
    ([float("nan")], "is not JSON"),
]


async def test_what_airflow_cannot_store_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for data, why in NOT_STORABLE:
        with subtests.test(data=data), pytest.raises(Unrecoverable, match=why):
            delivery(data)


async def test_what_airflow_can_store_is_taken() -> None:
    for data in (None, -(2**63), 2**63 - 1, nested(45), "x" * (MAX_BYTES - 2), {"a": True}, "ä\x00"):
        assert delivery(data).message["data"] == data
