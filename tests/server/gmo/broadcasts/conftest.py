"""Two subscriptions of a queue, and workers that do what a test says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobOptions
from glidemq_orchestrate.broadcasts import messages, subscriptions
from glidemq_orchestrate.broadcasts.messages import Result, Subscription
from glidemq_orchestrate.queues import listing
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
STREAM = ETL.key("stream")
DAY = 86_400_000


class News:
    """Subscriptions ``a`` and ``b`` of a queue, each with a worker that does what the test says."""

    def __init__(self, bench: Bench, *names: str) -> None:
        self.bench = bench
        self.subs = {name: Subscription(ETL, name, "0", ()) for name in names}
        for sub in self.subs.values():
            bench.hand.run(messages.open_subscription(sub))

    def publish(self, most: int | None = None, **options: Any) -> str:
        made = JobOptions(**options)
        return self.bench.hand.run(messages.publish(ETL, "s", {"x": 1}, made, self.bench.now, most))

    def take(self, name: str, room: int = 100, consumer: str = "gmo-1", **options: Any) -> list[Attempt]:
        given: dict[str, Any] = {"again": False, "held": set(), "block_ms": 1} | options
        sub = self.subs[name]
        return self.bench.hand.run(messages.take(sub, consumer, room=room, clock=self.bench, **given))

    def end(
        self, name: str, attempt: Attempt, kind: str = "done", *more: Any, consumer: str = "gmo-1"
    ) -> str:
        result = Result(attempt.entry_id, attempt.job_id, kind, "1", *more)
        return self.bench.hand.run(messages.report(self.subs[name], consumer, result, self.bench))

    def handle(self, name: str, kind: str = "done", *more: Any) -> None:
        for attempt in self.take(name):
            self.end(name, attempt, kind, *more)

    def take_over(self, name: str, room: int = 100, consumer: str = "gmo-2", most: int = 3) -> list[Attempt]:
        call = messages.take_over(
            self.subs[name], consumer, room=room, lock_ms=0, max_stalled=most, clock=self.bench
        )
        return self.bench.hand.run(call)

    def upkeep(self) -> None:
        self.bench.hand.run(messages.upkeep(self.subs["a"], 30_000, self.bench))

    def state(self, job_id: str) -> str:
        return self.bench.job(job_id).get("state", "gone")

    def states(self, job_id: str) -> dict[str, str]:
        found = self.bench.hand.run(subscriptions.message_states(ETL, job_id, self.bench))
        return {name: str(one.state) for name, one in found.items()}

    def counts(self) -> dict[str, int]:
        found = self.bench.hand.run(listing.counts(ETL, self.bench.now, indexed_only=True))
        return {str(state): count for state, count in found.items() if count}

    def keys(self) -> list[str]:
        """Jobs; glide-mq's counters of attempts have a time to live."""
        return sorted(key for key in self.bench.client.keys("glide:{etl}:job:*") if ":sub:" not in key)


@pytest.fixture
def news(bench: Bench) -> News:
    return News(bench, "a", "b")
