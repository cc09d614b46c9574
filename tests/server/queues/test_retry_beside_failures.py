"""Failed jobs are run again once, also while a worker goes on failing them or another client retries them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.queues.failure_groups import retry_group
from glidemq_orchestrate.queues.removal import retry_failed
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from glidemq_orchestrate.wire.call import Op
    from tests.server.conftest import Hand

ETL = QueueKeys("glide", "etl")
JOBS = 1_000
REASON = "KeyError: x"
P = "glide:{etl}:"


def fail_all_again(client: Any, score: float) -> None:
    for _, fields in client.xrange(f"{P}stream"):
        failed = {"state": "failed", "failedReason": REASON}
        client.hset(f"{P}job:{fields['jobId']}", mapping=failed)
        client.zadd(f"{P}failed", {fields["jobId"]: score})
    client.delete(f"{P}stream")


def store(client: Any) -> None:
    with client.pipeline() as pipe:
        for n in range(JOBS):
            fields = {"id": n, "name": "work", "state": "failed", "failedReason": REASON}
            pipe.hset(f"{P}job:{n}", mapping=fields)
            pipe.zadd(f"{P}failed", {str(n): 1_000 + n})
        pipe.execute()


def retry(hand: Hand, client: Any, score: float) -> int:
    """Retry all while each retried job fails immediately; how many retries there were."""
    store(client)
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


def disturbed(op: Op[int], act: Callable[[], None]) -> Op[int]:
    """The operation; after each reply something else happens before it goes on."""
    try:
        request = next(op)
        while True:
            reply = yield request
            act()
            request = op.send(reply)
    except StopIteration as stop:
        count: int = stop.value
        return count


RETRIES = {"all": partial(retry_failed, ETL, None), "group": partial(retry_group, ETL, "KeyError", JOBS)}


@pytest.mark.parametrize("which", RETRIES)
def test_two_clients_together_retry_each_job_once(hand: Hand, redis_client: Any, which: str) -> None:
    other = 0

    def fail() -> None:
        fail_all_again(redis_client, 5_000)

    def other_retries_all() -> None:
        nonlocal other
        if not other:
            other = hand.run(disturbed(RETRIES[which](5_000), fail))
        fail()

    store(redis_client)
    own = hand.run(disturbed(RETRIES[which](5_000), other_retries_all))
    assert (own, other) == (0, JOBS)


@pytest.mark.parametrize("which", RETRIES)
def test_what_another_client_retries_hides_no_job(hand: Hand, redis_client: Any, which: str) -> None:
    def other_retries_some() -> None:
        if len(others) < 5:
            others.append(hand.run(retry_failed(ETL, 7, 5_000)))

    store(redis_client)
    others: list[int] = []
    own = hand.run(disturbed(RETRIES[which](5_000), other_retries_some))
    assert own + sum(others) == JOBS
