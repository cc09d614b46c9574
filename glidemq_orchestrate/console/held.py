"""The jobs of queues that no index counts: those that wait for other jobs or for their ordering key."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final

from glidemq_orchestrate.clients.client import AsyncClient
from glidemq_orchestrate.jobs.states import JobState

STATES: Final = (JobState.WAITING_CHILDREN, JobState.GROUP_WAITING)
MAX_EXAMINED: Final = 20_000
KEPT_SECONDS: Final = 15.0
REST: Final = 10
"""Counting takes at most one part in so many of the time."""
MAX_QUEUES: Final = 100


class Held:
    """How many jobs of queues are held back. To find them, the keys of the server are scanned.

    Args:
        client: Reads it.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._kept: OrderedDict[str, asyncio.Task[tuple[dict[str, Any], float]]] = OrderedDict()

    async def of(self, queue: str) -> dict[str, Any]:
        """Those of a queue, read at least 15 s apart; ``at_least``: the states not counted to the end."""
        now = asyncio.get_running_loop().time()
        task = self._kept.get(queue)
        if task is None or (task.done() and (_failed(task) or now > task.result()[1])):
            task = asyncio.create_task(self._read(queue))
            task.add_done_callback(_failed)  # looks at the error, as nobody may be there to do so
            self._kept[queue] = task
            while len(self._kept) > MAX_QUEUES:
                self._kept.popitem(last=False)
        return (await asyncio.shield(task))[0]

    async def _read(self, queue: str) -> tuple[dict[str, Any], float]:
        """What was counted, and until when it is kept."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        counts = await self._client.queue(queue).counts(max_examined=MAX_EXAMINED)
        found = {
            "counts": {str(state): counts[state] for state in STATES},
            "at_least": sorted(counts.at_least),
        }
        return found, loop.time() + max(KEPT_SECONDS, REST * (loop.time() - began))


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
