"""Facts 34, 35 and 37 of the client specification: schedulers of both kinds in one hash.

Fact 36 (the cron dialect) is in ``tests/unit/schedules/test_cron.py``, fact 39 (broadcast retries) in
``tests/server/worker/test_broadcast.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobTemplate, Schedule
from glidemq_orchestrate.clients import Schedules

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.node import Node

HASH, LOCK = "glide:{q}:schedulers", "glide:{q}:schedulers:lock:__tick__"


@pytest.fixture
def schedulers(node: Node, url: str) -> Iterator[Schedules]:
    with Schedules("q", url) as made:
        yield made


def entry(node: Node, name: str = "s") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.client.hget(HASH, name))
    return found


def test_fact_34_every_slot_fires_once_whichever_worker_fires_it(
    node: Node, schedulers: Schedules, run_worker: RunWorker, eventually: Eventually
) -> None:
    ran: list[str] = []
    schedulers.upsert("s", Schedule(every=timedelta(milliseconds=150), limit=8), JobTemplate("work"))
    assert None not in entry(node).values()
    for _ in range(2):
        run_worker(["q"], {"work": lambda ctx: ran.append(ctx.job_id)})

    def node_is_done() -> bool:
        node.fire()
        return not node.client.hexists(HASH, "s")

    eventually(node_is_done, 20)
    eventually(lambda: len(ran) == 8)
    assert int(node.client.get("glide:{q}:id")) == 8
    assert sorted(ran, key=int) == [str(number) for number in range(1, 9)]


def test_fact_35_an_equal_schedule_of_ours_keeps_what_node_has_counted(
    node: Node, schedulers: Schedules
) -> None:
    stored = {"every": 60_000, "iterationCount": 3, "lastRun": 5, "nextRun": node.now() + 30_000}
    node.client.hset(HASH, "s", json.dumps(stored))
    schedulers.upsert("s", Schedule(every=timedelta(minutes=1)))
    kept = entry(node)
    assert (kept["iterationCount"], kept["lastRun"], kept["nextRun"]) == (3, 5, stored["nextRun"])
    node.client.hset(HASH, "s", json.dumps(stored | {"tz": None}))
    schedulers.upsert("s", Schedule(every=timedelta(minutes=1)))
    assert "tz" not in entry(node), "Node would take a stored null for another schedule, and start again"


def test_fact_37_while_another_client_holds_the_lock_no_worker_fires(
    node: Node, schedulers: Schedules, run_worker: RunWorker, eventually: Eventually
) -> None:
    schedulers.upsert("s", Schedule(every=timedelta(milliseconds=50), limit=1), JobTemplate("work"))
    assert node.fcall("glidemq_tryLock", [LOCK], "theirs", 60_000) == 1
    assert node.fire() == 0
    ran: list[str] = []
    run_worker(["q"], {"work": lambda ctx: ran.append(ctx.job_id)})
    eventually(lambda: node.now() > entry(node)["nextRun"] + 300)
    assert entry(node)["iterationCount"] == 0
    assert node.fcall("glidemq_unlock", [LOCK], "theirs") == 1
    eventually(lambda: ran, timeout=20)
