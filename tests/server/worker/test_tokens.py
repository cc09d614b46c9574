"""Workers that hold jobs back while too many tokens are spent."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pytest

from glidemq_orchestrate import JobState, Queue
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.wire.call import Batch, Call
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker import TokenLimit
from glidemq_orchestrate.worker.usage_limits import charge_tokens

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

WINDOW_MS = 700
HAS_NO_END = -1


def windows(started: list[float]) -> list[int]:
    return [int(at * 1000) // WINDOW_MS for at in started]


def calls_of_a_charge(keys: QueueKeys) -> tuple[Call[Any], ...]:
    batch = next(charge_tokens(keys, 7, 5, 60_000))
    assert isinstance(batch, Batch)
    return batch.calls


@pytest.mark.parametrize("scope", ["queue", "worker", "both"])
def test_no_run_begins_in_a_window_whose_tokens_are_spent(
    scope: Literal["queue", "worker", "both"],
    queue: Queue,
    run_worker: RunWorker,
    eventually: Eventually,
    redis_client: Any,
) -> None:
    started: list[float] = []

    def work(ctx: Any) -> None:
        started.append(time.time())
        ctx.report_usage(Usage(tokens={"in": 4, "out": 2}))

    limit = TokenLimit(10, timedelta(milliseconds=WINDOW_MS), scope)
    run_worker(["etl"], {"work": work}, concurrency=1, token_limit=limit)
    for _ in range(6):
        queue.add("work")
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 6)
    counts = [windows(started).count(window) for window in sorted(set(windows(started)))]
    assert max(counts) <= 2, "two jobs of 6 tokens reach the limit of 10"
    keys = redis_client.keys("glide:{etl}:tpm:*")
    assert all(redis_client.pttl(key) != HAS_NO_END for key in keys)
    assert keys, "a Node worker sees them"


def test_a_kill_between_any_two_calls_leaves_no_counter_for_ever(redis_client: Any) -> None:
    keys = QueueKeys("glide", "etl")
    for call in calls_of_a_charge(keys):
        redis_client.execute_command(*call.words)
        assert redis_client.pttl(keys.tokens(7)) > 0
    assert redis_client.get(keys.tokens(7)) == "5"


def test_a_counter_that_a_node_worker_only_read_expires(redis_client: Any) -> None:
    keys = QueueKeys("glide", "etl")
    redis_client.incrby(keys.tokens(7), 0)
    for call in calls_of_a_charge(keys):
        redis_client.execute_command(*call.words)
    assert redis_client.pttl(keys.tokens(7)) > 0


def test_a_window_that_others_have_spent_is_waited_for(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    """A Node worker counts in the same key."""
    now = int(time.time() * 1000)
    window = now // WINDOW_MS
    for later in range(3):
        redis_client.set(f"glide:{{etl}}:tpm:{window + later}", 10)
    started: list[float] = []
    limit = TokenLimit(10, timedelta(milliseconds=WINDOW_MS), "queue")
    run_worker(["etl"], {"work": lambda _: started.append(time.time())}, token_limit=limit)
    queue.add("work")
    eventually(lambda: bool(started))
    assert windows(started) >= [window + 3]


def test_reported_tokens_count_too(
    queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    def work(ctx: Any) -> None:
        redis_client.hset(f"glide:{{etl}}:job:{ctx.job_id}", "tpmTokens", 25)

    limit = TokenLimit(10, timedelta(hours=1))
    run_worker(["etl"], {"work": work}, token_limit=limit)
    queue.add_and_wait("work")
    (key,) = eventually(lambda: redis_client.keys("glide:{etl}:tpm:*"))
    assert redis_client.get(key) == "25"
