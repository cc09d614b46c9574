"""A worker that was killed leaves nothing for ever, and nothing that it held is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.attempts import upkeep, workers
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
LISTED = "glide:{etl}:gmo:workers"
SILENT_MS = 60_000


@pytest.fixture(autouse=True)
def _workers(bench: Bench) -> None:
    """One is alive, one was killed idle, one with a job; two of Node are silent, one is registered."""
    bench.client.set(ETL.worker("node-1"), "{}")
    for name in ("gmo-worker-1-alive", "gmo-worker-2-idle", "gmo-worker-3-busy", "node-1", "node-2"):
        bench.client.xgroup_createconsumer(ETL.key("stream"), GROUP, name)
        if not name.startswith("node"):
            bench.hand.run(workers.announce([ETL], name, {}, 30_000, bench.now))
    bench.hand.run(add_job(ETL, NewJob("work"), bench.now))
    bench.take("gmo-worker-3-busy")
    bench.now += 200_000
    bench.hand.run(workers.announce([ETL], "gmo-worker-1-alive", {}, 30_000, bench.now))


def forget(bench: Bench, silent_ms: int) -> set[str]:
    """The consumers that are left."""
    call = upkeep.forget_workers(ETL, GROUP, silent_ms, bench.now)
    bench.call(call)
    assert bench.unchanged(call) == 0
    return {consumer["name"] for consumer in bench.client.xinfo_consumers(ETL.key("stream"), GROUP)}


def test_a_killed_worker_is_forgotten_once_it_holds_nothing(bench: Bench) -> None:
    left = forget(bench, 0)
    assert left == {"gmo-worker-1-alive", "gmo-worker-3-busy", "node-1"}
    assert bench.client.zrange(LISTED, 0, -1) == ["gmo-worker-1-alive"]
    assert bench.pending() == 1
    bench.reclaim(consumer="gmo-worker-1-alive")
    assert forget(bench, 0) == {"gmo-worker-1-alive", "node-1"}
    assert bench.begin().job_id == "1"


def test_one_that_was_active_a_moment_ago_stays(bench: Bench) -> None:
    assert {"gmo-worker-2-idle", "node-1", "node-2"} <= forget(bench, SILENT_MS)
    assert bench.client.zrange(LISTED, 0, -1) == ["gmo-worker-1-alive"]


def test_a_queue_without_a_group_is_not_an_error(bench: Bench) -> None:
    bench.client.delete(ETL.key("stream"))
    assert bench.call(upkeep.forget_workers(ETL, GROUP, 0, bench.now)) == 0


def test_reclaiming_forgets_them(bench: Bench) -> None:
    bench.client.zadd(LISTED, {"gmo-worker-0-old": 1})
    bench.hand.run(upkeep.reclaim(ETL, "gmo-worker-1-alive", lock_ms=1000, max_stalled=3, clock=bench))
    assert bench.client.zrange(LISTED, 0, -1) == ["gmo-worker-1-alive"]


def test_after_an_outage_those_that_live_renew_their_leases_first(bench: Bench) -> None:
    """Nobody was heard of while the server was away: neither who is dead, nor who is alive."""
    bench.hand.run(add_job(ETL, NewJob("work"), bench.now))
    alive = bench.begin()
    bench.reclaim(is_watched=False)
    held = bench.pending()
    bench.now += 40_000
    for _ in range(5):
        bench.reclaim(is_watched=False)
        assert bench.pending() == held
        bench.now += 900
        assert bench.heartbeat(alive) == 1
    bench.reclaim(is_watched=False)
    assert bench.pending() == 1
    assert bench.heartbeat(alive) == 1
