"""Whether the job of a step or run still does its work, as far as the job itself tells. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from glidemq_orchestrate import Job, JobState
from glidemq_orchestrate.runs import in_text

MARGIN_SECONDS: Final = 5.0


class Overdue:
    """How long something has been so, as far as one looked: by the clock of this process.

    A lease that has lapsed is believed only after a while: when the server was away, its workers renew what
    they hold as soon as it is back, and may be later than the one who looks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._since: dict[str, float] = {}
        self._clock = clock

    def seconds(self, what: str, *, is_so: bool) -> float:
        """For how long it has been so without a break; 0 when it is not, or was seen for the first time."""
        if not is_so:
            self.forget(what)
            return 0.0
        now = self._clock()
        return now - self._since.setdefault(what, now)

    def forget(self, *whats: str) -> None:
        """It is not so."""
        for what in whats:
            self._since.pop(what, None)


def why_lost(
    job: Job | None, now: datetime, overdue: Overdue, *, margin: float = MARGIN_SECONDS
) -> str | None:
    """Why nobody works at it any more; None while it waits or runs.

    Args:
        job: The job; None if there is none.
        now: The server's time.
        overdue: What was seen before.
        margin: For how many seconds a lease must have been seen lapsed.
    """
    if job is None:
        return "its job is not in the queue: it was removed, or the server has lost it"
    if job.state is JobState.FAILED:
        return f"its job failed: {in_text(job.failed_reason or 'no reason given')}"
    if job.state is JobState.COMPLETED:
        return "its job has completed, but the event log has no end of it"
    if job.lost_attempts:
        return "the worker that ran it was lost"
    has_lapsed = job.lease_until is not None and job.lease_until < now
    if overdue.seconds(f"{job.queue}/{job.id}", is_so=has_lapsed) >= margin and has_lapsed:
        return f"the worker that ran it was lost: {job.worker or 'it'} has not renewed the lease of its job"
    return None
