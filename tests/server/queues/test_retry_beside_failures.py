"""Failed jobs are run again once, also while a worker goes on failing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.queues.removal import retry_failed
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.conftest import Hand

ETL = QueueKeys("glide", "etl")
JOBS = 1_000
P = "glide:{etl}:"


def fail_all_again(client: Any, score: float) -> None:
    for _, fields in client.xrange(f"{P}stream"):
        client.hset(f"{P}job:{fields['jobId']}", "state", "failed")
        client.zadd(f"{P}failed", {fields["jobId"]: score})
    client.delete(f"{P}stream")


def retry(hand: Hand, client: Any, score: float) -> int:
    """Retry all while each retried job fails immediately; how many retries there were."""
    with client.pipeline() as pipe:
        for n in range(JOBS):
            pipe.hset(f"{P}job:{n}", mapping={"id": n, "name": "work", "state": "failed"})
            pipe.zadd(f"{P}failed", {str(n): 1_000 + n})
        pipe.execute()
    retried = 0
    for _ in hand.steps(retry_failed(ETL, None, 5_000)):
        retried += client.xlen(f"{P}stream")
        fail_all_again(client, score)
        assert retried <= 2 * JOBS
    return retried


def test_what_fails_again_meanwhile_is_not_retried_again(hand: Hand, redis_client: Any) -> None:
    assert retry(hand, redis_client, 5_000) == JOBS


def test_a_worker_whose_clock_is_behind_makes_it_no_more(hand: Hand, redis_client: Any) -> None:
    assert retry(hand, redis_client, 0) == JOBS
