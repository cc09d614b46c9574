"""When the job of a step tells that nobody works at it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dagster_glidemq.queues import MARGIN_SECONDS, Overdue, why_lost

from glidemq_orchestrate.jobs import Job

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(**fields: Any) -> Job:
    return Job.from_wire("steps", {"id": "1", "state": "active", "gmo:token": "gmo-worker-1/x", **fields})


def ms(moment: datetime) -> str:
    return str(int(moment.timestamp() * 1000))


JOBS: list[tuple[Job | None, str]] = [
    (None, "not in the queue"),
    (job(state="failed", failedReason="out of memory"), "failed: out of memory"),
    (job(state="failed"), "no reason given"),
    (job(state="completed"), "has no end of it"),
    (job(state="waiting", stalledCount="1"), "worker that ran it was lost"),
    (job(stalledCount="1"), "worker that ran it was lost"),
]


def test_a_job_that_has_ended_or_lost_its_worker_is_lost(subtests: pytest.Subtests) -> None:
    for found, reason in JOBS:
        with subtests.test(found=found):
            assert reason in str(why_lost(found, NOW, Overdue()))


def test_a_job_that_waits_is_not_lost(subtests: pytest.Subtests) -> None:
    for state in ("waiting", "delayed", "prioritized", "group-waiting"):
        with subtests.test(state=state):
            assert why_lost(job(state=state), NOW, Overdue()) is None


def test_a_lapsed_lease_counts_after_a_margin_and_a_renewal_forgives_it() -> None:
    clock = [0.0]
    overdue = Overdue(lambda: clock[0])
    lapsed, renewed = job(lastActive=ms(NOW - timedelta(seconds=31))), job(lastActive=ms(NOW))
    assert why_lost(lapsed, NOW, overdue) is None
    clock[0] += MARGIN_SECONDS / 2
    assert why_lost(renewed, NOW, overdue) is None
    clock[0] += MARGIN_SECONDS
    assert why_lost(lapsed, NOW, overdue) is None
    clock[0] += MARGIN_SECONDS
    assert "gmo-worker-1 has not renewed the lease" in str(why_lost(lapsed, NOW, overdue))
