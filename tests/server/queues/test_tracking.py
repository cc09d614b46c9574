"""Tracked jobs and flows: each change is reported, also their removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import AsyncQueue, FlowProducer, JobOptions, JobState, Queue
from glidemq_orchestrate.attempts.upkeep import cleanup
from glidemq_orchestrate.errors import InvalidJob, JobNotFound
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import flow, node
from tests.node import PlainNode

if TYPE_CHECKING:
    from glidemq_orchestrate.clients.queue import TrackedChange
    from tests.conftest import RunWorker
    from tests.server.conftest import Hand

LONG = timedelta(seconds=60)
P = "glide:{etl}:"
ETL = QueueKeys("glide", "etl")
DAY = 86_400_000


def shown(queue: Queue) -> list[tuple[str, str, Any]]:
    return [(one.kind, one.id, one.state) for one in queue.tracked()]


def after(changes: Iterator[TrackedChange], act: Callable[[], object]) -> TrackedChange:
    """The change that follows."""
    act()
    return next(changes)


def test_tracked_jobs_and_flows_are_listed_as_they_are(queue: Queue, flows: FlowProducer) -> None:
    assert queue.tracked() == []
    a, b = queue.add("work"), queue.add("work", delay=60)
    found = flows.submit(flow(node("a")), flow_id="f")
    for _ in range(2):
        queue.track(b)
        queue.track(a)
        found.track()
    assert set(shown(queue)) == {("job", a, "waiting"), ("job", b, "delayed"), ("flow", "f", "running")}
    queue.untrack(b)
    found.untrack()
    found.untrack()
    assert shown(queue) == [("job", a, "waiting")]
    assert queue.tracked()[0].since <= queue.now()


def test_what_is_not_tracked_costs_no_key(queue: Queue, redis_client: Any) -> None:
    queue.track(queue.add("work"))
    queue.untrack("1")
    assert redis_client.keys("*qx:*") == []


def test_a_missing_job_cannot_be_tracked_and_the_list_is_bounded(queue: Queue, redis_client: Any) -> None:
    with pytest.raises(JobNotFound):
        queue.track("missing")
    job_id = queue.add("work")
    redis_client.zadd(f"{P}qx:tracked", {f"x{n}": n for n in range(1_000)})
    with pytest.raises(InvalidJob, match="untrack some"):
        queue.track(job_id)


def test_each_change_of_a_job_is_reported_also_its_removal(queue: Queue, node: PlainNode) -> None:
    job_id, other = queue.add("work", attempts=2), queue.add("work")
    queue.track(job_id)
    changes = iter(queue.watch_tracked())
    first = next(changes)
    assert (first.now.id, first.now.state, first.before) == (job_id, JobState.WAITING, None)
    change = after(changes, lambda: node.begin(job_id))
    assert (change.now.state, change.before and change.before.state) == (JobState.ACTIVE, JobState.WAITING)
    change = after(changes, lambda: queue.set_progress(job_id, 50))
    assert (change.now.state, change.now.job and change.now.job.progress) == (JobState.ACTIVE, 50)
    change = after(changes, lambda: queue.tag(job_id, ["x"]))
    assert change.now.job is not None
    assert change.now.job.tags == ("x",)
    change = after(changes, lambda: queue.track(other))
    assert (change.now.id, change.before) == (other, None)
    change = after(changes, lambda: queue.remove(job_id))
    assert (change.now.id, change.now.is_removed, change.now.job) == (job_id, True, None)
    queue.untrack(job_id)
    change = after(changes, lambda: queue.remove(other))
    assert (change.now.id, change.now.state) == (other, None)


def test_a_job_that_is_removed_at_its_end_is_reported(queue: Queue, run_worker: RunWorker) -> None:
    job_id = queue.add("work", remove_on_complete=True)
    queue.track(job_id)
    changes = iter(queue.watch_tracked())
    next(changes)
    run_worker(["etl"], {"work": lambda ctx: None})
    while not (change := next(changes)).now.is_removed:
        assert change.now.state is JobState.ACTIVE
    assert shown(queue) == [("job", job_id, None)]


def test_the_end_of_a_flow_and_its_next_generation_are_reported(
    path: str, flows: FlowProducer, queue: Queue, run_worker: RunWorker
) -> None:
    found = flows.submit(flow(node("a"), node("b", "a", queue="spark")), flow_id="f")
    found.track()
    changes = iter(queue.watch_tracked())
    assert next(changes).now.state == "running"
    change = after(changes, lambda: found.cancel("enough"))
    while change.now.state != "cancelled":
        change = next(changes)
    change = after(changes, found.restart)
    assert change.now.flow is not None
    assert change.now.flow.generation == 1
    run_worker(["etl", "spark"], {"work": lambda ctx: None})
    while change.now.state != "completed":
        change = next(changes)


def test_lost_events_cause_no_missed_change(queue: Queue, node: PlainNode, redis_client: Any) -> None:
    job_id = queue.add("work")
    queue.track(job_id)
    changes = iter(queue.watch_tracked())
    next(changes)
    node.begin(job_id)
    redis_client.delete(f"{P}events")
    assert next(changes).now.state is JobState.ACTIVE


async def test_the_awaitable_watch_reports_the_same(url: str) -> None:
    async with AsyncQueue("etl", url) as queue:
        job_id = await queue.add("work")
        await queue.track(job_id)
        async for change in queue.watch_tracked():
            if change.now.is_removed:
                break
            await queue.remove(job_id)


def test_removed_ones_are_forgotten_after_a_month(queue: Queue, flows: FlowProducer, hand: Hand) -> None:
    gone, kept = queue.add("work"), queue.add("work")
    found = flows.submit(flow(node("a", options=JobOptions(delay=1))), flow_id="f")
    for job_id in (gone, kept):
        queue.track(job_id)
    found.track()
    queue.remove(gone)
    now_ms = int(queue.now().timestamp() * 1000)
    for days, expected in ((29, {gone, kept, "f"}), (31, {kept, "f"})):
        hand.run(ask(cleanup(ETL, now_ms + days * DAY)))
        assert {one.id for one in queue.tracked()} == expected
