"""Ticks of a sensor in this process, one after the other, as the daemon would have them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import dagster as dg
from dagster_glidemq import GlideMQResource
from redis import Redis

from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys


class Ticks:
    """A sensor and its cursor."""

    def __init__(
        self, sensor: dg.SensorDefinition, glidemq: GlideMQResource, instance: dg.DagsterInstance
    ) -> None:
        self._sensor, self._glidemq, self._instance = sensor, glidemq, instance
        self.cursor: str | None = None
        self.said: list[str] = []

    def tick(self, *, stored: bool = True) -> dg.SensorResult:
        """A tick; not ``stored``: Dagster is killed before it stores the cursor."""
        resources = {"glidemq": self._glidemq}
        with dg.build_sensor_context(self._instance, cursor=self.cursor, resources=resources) as context:
            context.log.addHandler(_Said(self.said))
            found: Any = self._sensor(context)
        if stored:
            self.cursor = found.cursor
        return found  # type: ignore[no-any-return]

    def requested(self, most: int = 50) -> list[dg.RunRequest]:
        """What ticks ask for until one asks for nothing and no longer moves."""
        found: list[dg.RunRequest] = []
        for _ in range(most):
            before = self.cursor
            result = self.tick()
            found += result.run_requests or []
            if not result.run_requests and self.cursor == before:
                return found
        raise AssertionError(f"still not at the end after {most} ticks")


class _Said(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


Sense = Callable[[dg.SensorDefinition], Ticks]


def events_key(queue: str) -> str:
    """The key of the events of a queue."""
    return QueueKeys(DEFAULT_PREFIX, queue).key("events")


def trim_events(client: Redis, queue: str, left: int) -> None:
    """Trim all events of a queue but the newest, as the server does when there are too many."""
    client.xtrim(events_key(queue), maxlen=left, approximate=False)
