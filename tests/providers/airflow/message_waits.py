"""What tests of messages share: their trigger, and waiting for states of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger

from glidemq_orchestrate import JobState, NewJob, Queue
from tests.providers.airflow.builders import QUEUE


def trigger(**kwargs: Any) -> GlideMQMessageTrigger:
    return GlideMQMessageTrigger(**{"queue_name": QUEUE, "jobs": "order", "interval": 0.2, **kwargs})


async def until(predicate: Callable[[], Any], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not predicate():  # noqa: ASYNC110  of another thread or process
            await asyncio.sleep(0.05)


async def states(queue: Queue, ids: list[Any]) -> set[JobState | None]:
    return set(await asyncio.to_thread(queue.states, ids))


async def until_states(queue: Queue, ids: list[Any], expected: set[JobState], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while await states(queue, ids) != expected:  # noqa: ASYNC110  of the server
            await asyncio.sleep(0.05)


def received(events: list[Any]) -> list[Any]:
    return [message["data"] for event in events for message in event["messages"]]


def add(queue: Queue, *data: Any, job: str = "order") -> list[Any]:
    return queue.add_many([NewJob(job, one) for one in data])
