"""What tags and a history of a job cost the server, when it is added, started and ended.

``python -m benchmarks.features [--quick] [--json]``. The figures are what the server reports for its
functions (``INFO commandstats``), per job of a call with 50; the best of the interleaved rounds, since noise
only ever adds. Each sum is also compared with that of a job without options.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import redis
from rich.console import Console

from glidemq_orchestrate import EmbeddedServer, JobOptions, NewJob, Queue
from glidemq_orchestrate.attempts.exchange import Kind, Outcome, Request, finish_and_fetch
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.jobs.attempt import token_of
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys

ROUNDS: Final = 100
QUICK: Final = 2
JOBS: Final = 50
QUEUE: Final = QueueKeys("glide", "bench")
WORKER: Final = "gmo-worker-etl-node-17-31415-9f86d0-30000ms"
NONE: Final = "no options"
FEATURES: Final[Mapping[str, JobOptions]] = {
    NONE: JobOptions(),
    "three attempts": JobOptions(attempts=3),
    "one tag": JobOptions(tags=["x"]),
    "three tags": JobOptions(tags=["x", "y", "z"]),
    "a history": JobOptions(history=True),
}
PHASES: Final = ("add_us", "start_us", "end_us")


class Bench:
    """A queue, and the calls of its client and of a worker."""

    def __init__(self, url: str, client: redis.Redis, queue: Queue) -> None:
        self.client, self.queue, self.rounds = client, queue, 0
        self._driver = SyncDriver(ConnectionSettings.resolve(url))

    def life(self, options: JobOptions) -> list[float]:
        """Add, start and end some jobs; microseconds per job of each phase."""
        self.rounds += 1
        jobs = [NewJob("work", {"month": 1}, options=options) for _ in range(JOBS)]
        self._used()
        self.queue.add_many(jobs)
        used = [self._used()]
        started = self._exchange(Request((), JOBS, token_of(WORKER, f"{self.rounds:016x}"))).fetched
        used.append(self._used())
        ends = [Outcome(attempt, Kind.DONE, "1") for attempt in started]
        verdicts = self._exchange(Request(ends, 0, "")).verdicts
        assert verdicts == ["ok"] * JOBS, verdicts
        return [*used, self._used()]

    def _exchange(self, request: Request) -> Any:
        now_ms = int(time.time() * 1000)
        return self._driver.run(ask(finish_and_fetch(QUEUE, WORKER, request, now_ms)))

    def _used(self) -> float:
        stats: Any = self.client.info("commandstats")
        self.client.config_resetstat()
        return float(stats.get("cmdstat_fcall", {"usec": 0})["usec"]) / JOBS

    def close(self) -> None:
        """Close the connection of the worker."""
        self._driver.close()


def measure(bench: Bench, rounds: int) -> list[dict[str, Any]]:
    """One row for each feature."""
    best = {name: [float("inf")] * len(PHASES) for name in FEATURES}
    for number in range(rounds):
        for name in random.sample(list(FEATURES), len(FEATURES)):
            best[name] = [min(pair) for pair in zip(best[name], bench.life(FEATURES[name]), strict=True)]
        if number % 10 == 0:
            bench.queue.clean("completed", limit=100_000)
    base = sum(best[NONE])
    return [
        {
            "job with": name,
            **dict(zip(PHASES, found, strict=True)),
            "sum_us": sum(found),
            "more_percent": 100 * (sum(found) / base - 1),
        }
        for name, found in best.items()
    ]


def main() -> None:
    """Measure and print."""
    with EmbeddedServer() as server, Queue("bench", server.url) as queue:
        client = redis.Redis.from_url(server.url.replace("valkey://", "redis://"), decode_responses=True)
        client.config_set("appendonly", "no")  # the cost of the disk is not measured here
        bench = Bench(server.url, client, queue)
        rows = measure(bench, QUICK if "--quick" in sys.argv else ROUNDS)
        bench.close()
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(summary_table("What a job costs the server", rows))


if __name__ == "__main__":
    main()
