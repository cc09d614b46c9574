"""What a worker does while its queue is empty."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.exchange import News
from glidemq_orchestrate.errors import ConnectionFailed
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.listener import Listener

if TYPE_CHECKING:
    from glidemq_orchestrate.wire.call import Op


async def test_it_reports_that_the_queue_can_be_read_again() -> None:
    """Else the log would leave open whether listening works again after an outage."""
    outcomes: list[Any] = [ConnectionFailed("it is gone"), News("1-1", "", "")]
    succeeded: list[int] = []

    async def run(op: Op[Any]) -> Any:
        op.close()
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    listener = Listener(
        run,
        QueueKeys("glide", "etl"),
        SystemClock(),
        lambda: None,
        lambda: succeeded.append(len(outcomes)),
        lambda: False,
    )
    listener.is_dry.set()
    with pytest.raises(ConnectionFailed):
        await listener.listen()
    assert succeeded == []
    listener.is_dry.set()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await listener.listen()
    assert succeeded == [0]


async def test_it_waits_a_moment_for_the_end_of_a_short_job() -> None:
    """The reply to it shows whether there are more jobs: listening before would be a trip for nothing."""
    reads: list[str] = []
    is_read = asyncio.Event()

    async def run(op: Op[Any]) -> Any:
        op.close()
        reads.append("read")
        is_read.set()
        await asyncio.Event().wait()

    def listening(*, ends_soon: bool) -> tuple[Listener, asyncio.Task[None]]:
        listener = Listener(
            run, QueueKeys("glide", "etl"), SystemClock(), lambda: None, lambda: None, lambda: ends_soon
        )
        listener.is_dry.set()
        return listener, asyncio.create_task(listener.listen())

    short, short_task = listening(ends_soon=True)
    await asyncio.sleep(0)
    short.is_dry.clear()  # the reply to the end of the job: there are more
    short.at_rest.set()
    await asyncio.sleep(0.02)
    assert reads == []
    short_task.cancel()

    _, long_task = listening(ends_soon=True)
    async with asyncio.timeout(5):
        await is_read.wait()  # the job takes longer than those before
    long_task.cancel()

    reads.clear()
    _, other_task = listening(ends_soon=False)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reads == ["read"], "at once"
    other_task.cancel()
