"""The state of a job, and how long tests wait for it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from glidemq_orchestrate import JobState, Queue
    from glidemq_orchestrate.jobs.job import JobId

SECOND: Final = timedelta(seconds=1)


def is_in(queue: Queue, job_id: JobId, state: JobState) -> bool:
    return queue.get_job(job_id).state is state
