"""Repeating jobs with a clock that only tests move."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.schedules import ops
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.server.conftest import Hand

NODE = "glide:{etl}:schedulers"
OURS = "glide:{etl}:gmo:schedulers"
LOCK = "glide:{etl}:schedulers:lock:__tick__"
ETL = QueueKeys("glide", "etl")


class At:
    """A clock that stands still."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()


class Stage:
    def __init__(self, url: str, client: Any, hand: Hand) -> None:
        self.clock, self.client, self.hand = At(), client, hand
        self.schedulers = Schedules("etl", url, clock=self.clock)

    def tick(self, now: int | None = None) -> int:
        self.clock.now = now or self.clock.now
        return self.hand.run(ops.tick(ETL, self.clock))

    def jobs(self) -> list[dict[str, str]]:
        entries = self.client.xrange("glide:{etl}:stream")
        return [self.client.hgetall(f"glide:{{etl}}:job:{fields['jobId']}") for _, fields in entries]

    def entry(self, name: str = "s", key: str = NODE) -> dict[str, Any]:
        return json.loads(self.client.hget(key, name))  # type: ignore[no-any-return]

    def node_writes(self, text: str, name: str = "s") -> None:
        self.client.hset(NODE, name, text)

    def end(self, job_id: str, state: str = "completed", at: int = 0) -> None:
        fields = {"state": state, "finishedOn": str(at)} if at else {"state": state}
        self.client.hset(f"glide:{{etl}}:job:{job_id}", mapping=fields)


@pytest.fixture
def stage(url: str, redis_client: Any, hand: Hand) -> Any:
    made = Stage(url, redis_client, hand)
    yield made
    made.schedulers.close()
