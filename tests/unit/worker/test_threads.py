"""The threads in which plain functions of users run."""

from __future__ import annotations

import asyncio
import threading

import pytest

from glidemq_orchestrate.worker.threads import Threads


async def test_a_thread_that_overstays_its_worker_ends_when_its_function_returns() -> None:
    threads, begun, release = Threads("late"), threading.Event(), threading.Event()
    ran: list[threading.Thread] = []

    def overstay() -> None:
        ran.append(threading.current_thread())
        begun.set()
        assert release.wait(20)

    call = asyncio.create_task(threads.run(overstay))
    assert await asyncio.to_thread(begun.wait, 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    threads.close()
    release.set()
    await asyncio.to_thread(ran[0].join, 20)
    assert not ran[0].is_alive()
