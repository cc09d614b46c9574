"""Many jobs are watched by few reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.queues import FRESH_SECONDS, JobStates, Queues

from glidemq_orchestrate import JobState
from glidemq_orchestrate.clients.queue import NewJob

QUEUE = "seen"


class Counting(Queues):
    """Counts what is read."""

    reads = 0

    def states(self, queue: str, job_ids: Sequence[str]) -> list[JobState | None]:
        self.reads += 1
        return super().states(queue, job_ids)

    def workers_for(self, queue: str, job_name: str) -> int:
        self.reads += 1
        return super().workers_for(queue, job_name)


def added(queues: Queues, count: int) -> list[str]:
    ids = [f"step{number}" for number in range(count)]
    for job_id in ids:
        queues.add(QUEUE, NewJob("step", None), job_id=job_id, lease=timedelta(seconds=30))
    return ids


def test_a_look_at_many_jobs_reads_their_queue_once(url: str) -> None:
    queues, clock = Counting(GlideMQConnection(url=url)), [0.0]
    states = JobStates(queues, "step", lambda: clock[0])
    ids = added(queues, 300)
    for job_id in ids:
        states.add(QUEUE, job_id)
    for rounds in (1, 2, 3):
        clock[0] += FRESH_SECONDS
        assert {states.state(QUEUE, job_id) for job_id in ids} == {JobState.WAITING}
        assert {states.workers(QUEUE) for _ in ids} == {0}
        assert queues.reads == 2 * rounds
    queues.close()


def test_a_job_that_is_new_or_has_ended_is_read_by_itself(url: str) -> None:
    queues, clock = Counting(GlideMQConnection(url=url)), [0.0]
    states = JobStates(queues, "step", lambda: clock[0])
    first, second = added(queues, 2)
    assert states.state(QUEUE, first) is JobState.WAITING  # another process has added it
    assert states.state(QUEUE, "nobody") is None
    queues.revoke(QUEUE, second)
    assert states.state(QUEUE, second) is JobState.FAILED
    queues.of(QUEUE).remove(first)
    assert states.state(QUEUE, first) is JobState.WAITING  # what was read counts for a while
    clock[0] += FRESH_SECONDS
    assert states.state(QUEUE, first) is None
    added(queues, 1)
    assert states.state(QUEUE, first) is JobState.WAITING  # it is not remembered as gone
    queues.close()
