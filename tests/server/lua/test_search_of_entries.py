"""Finding the stream entry of a waiting job: near its time first, and everywhere before giving up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000


def _now() -> int:
    return time.time_ns() // 1_000_000


def _fill(q: Queue, count: int) -> None:
    pipe = q.valkey.pipeline(transaction=False)
    for _ in range(count):
        pipe.xadd(q.key("stream"), {"jobId": "x", "name": "n"})
    pipe.execute()


def _calls(q: Queue, job_id: str) -> int:
    """How many pages of the stream a revocation reads."""
    q.valkey.config_resetstat()
    assert q.revoke(job_id) == "revoked"
    return int(q.valkey.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])


def test_newest_job_is_found_without_reading_the_stream_from_its_start(q: Queue) -> None:
    _fill(q, 5000)
    time.sleep(0.05)  # the job's time must differ from that of the others by more than the clocks may
    job_id = q.add(now=_now())
    assert _calls(q, job_id) == 1
    assert len(q.stream()) == 5000


@pytest.mark.parametrize("ahead", [-(10**9), 10**9, T, 0])
def test_entry_is_found_wherever_the_clock_of_the_client_stands(q: Queue, ahead: int) -> None:
    _fill(q, 3000)
    job_id = q.add(now=_now() + ahead)
    _fill(q, 10)
    assert q.revoke(job_id) == "revoked"
    assert len(q.stream()) == 3010


def test_job_of_a_list_is_not_searched_in_the_stream(q: Queue) -> None:
    _fill(q, 3000)
    assert _calls(q, q.add(lifo=1)) == 0


def test_scheduled_job_is_searched_near_its_time_only(q: Queue) -> None:
    _fill(q, 3000)
    assert _calls(q, q.add(delay=10, now=_now() + 60_000)) == 1
