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
        run, QueueKeys("glide", "etl"), SystemClock(), lambda: None, lambda: succeeded.append(len(outcomes))
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
