"""What the queues say of all jobs that somebody waits for, read for all of them together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from dagster_glidemq.queues import Queues
from glidemq_orchestrate import JobState

FRESH_SECONDS: Final = 2.0
_ENDED: Final = frozenset({None, JobState.COMPLETED, JobState.FAILED})


class Sight:
    """The states of the jobs that somebody waits for, and who serves their queues.

    Somebody who asks for each of a thousand jobs in turn reads their queue once: what was read counts for
    ``FRESH_SECONDS``. A job that is not known yet is read alone; one that has ended is forgotten.

    Args:
        queues: The queues.
        job_name: Workers count that run jobs of this name.
        clock: For tests.
    """

    def __init__(self, queues: Queues, job_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._queues, self._job_name, self._clock = queues, job_name, clock
        self._states: dict[str, dict[str, JobState | None]] = defaultdict(dict)
        self._workers: dict[str, int] = {}
        self._read_at: dict[str, float] = {}

    def add(self, queue: str, job_id: str) -> None:
        """Somebody waits for a job that was just added."""
        self._states[queue][job_id] = JobState.WAITING

    def state(self, queue: str, job_id: str) -> JobState | None:
        """The state of a job; None if there is none.

        Raises:
            TransportError: The server cannot be reached.
        """
        self._refresh(queue)
        known = self._states[queue]
        if job_id not in known:
            known[job_id] = self._queues.states(queue, [job_id])[0]
        state = known[job_id]
        if state in _ENDED:
            del known[job_id]
        return state

    def workers(self, queue: str) -> int:
        """How many live workers serve a queue.

        Raises:
            TransportError: The server cannot be reached.
        """
        self._refresh(queue)
        if queue not in self._workers:
            self._workers[queue] = self._queues.workers_for(queue, self._job_name)
        return self._workers[queue]

    def _refresh(self, queue: str) -> None:
        now = self._clock()
        if now - self._read_at.get(queue, -FRESH_SECONDS) < FRESH_SECONDS:
            return
        ids = list(self._states[queue])
        self._states[queue] = dict(zip(ids, self._queues.states(queue, ids), strict=True)) if ids else {}
        self._workers.pop(queue, None)
        self._read_at[queue] = now
