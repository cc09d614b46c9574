"""Who holds the active jobs of a queue, and which of these have stalled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.statistics import short_span
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.foundation.texts import counted
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.states import JobState

MAX_HELD = 1_000


@dataclass(slots=True)
class Held:
    """What a worker holds.

    Attributes:
        jobs: Its active jobs.
        stalled: Those of them whose leases have expired: nobody has taken them over yet.
        stalled_since: When the first of these leases expired.
    """

    jobs: int = 0
    stalled: int = 0
    stalled_since: datetime | None = None

    def text(self, now: datetime) -> str:
        """For people."""
        if not self.jobs:
            return "no job"
        held = counted(self.jobs, "job")
        if self.stalled_since is None:
            return held
        which = "" if self.stalled == self.jobs else f", {self.stalled:,} of them"
        return f"{held}{which} stalled for {short_span(now - self.stalled_since)}"


def held_text(held: Mapping[str, Held], worker_id: str, reported: int, now: datetime) -> str:
    """What a worker holds, for people.

    Args:
        held: As ``held_by_worker``.
        worker_id: The worker.
        reported: How many jobs it has, if they do not name it: those of Node workers and broadcasts.
        now: The server's time.
    """
    text = held.get(worker_id, Held(reported)).text(now)
    return f"at least {text}" if worker_id in held and _is_partial(held) else text


def _is_partial(held: Mapping[str, Held]) -> bool:
    """Whether there may be more active jobs than those that were read."""
    return sum(one.jobs for one in held.values()) >= MAX_HELD


def held_by_worker(queue: Queue) -> dict[str, Held]:
    """What each worker holds, by its id; of more than 1,000 active jobs only those that are found first."""
    jobs = queue.search(state=JobState.ACTIVE, limit=MAX_HELD, exclude_data=True)
    return _summed(jobs, queue.now())


def _summed(jobs: Iterable[Job], now: datetime) -> dict[str, Held]:
    found: dict[str, Held] = {}
    for job in jobs:
        if job.worker is None:  # a Node worker: its jobs do not name it
            continue
        held = found.setdefault(job.worker, Held())
        held.jobs += 1
        if job.lease_until is not None and job.lease_until < now:
            held.stalled += 1
            held.stalled_since = min(held.stalled_since or now, job.lease_until)
    return found


def holders(jobs: Sequence[Job], now: datetime) -> Table:
    """Active jobs: who holds them, since when, and how long the lease still lasts."""
    table = Table("id", "name", "tries", "for", "lease", "worker", box=None, padding=(0, 2, 0, 0))
    for job in sorted(jobs, key=lambda one: one.started_at or now):
        left = None if job.lease_until is None else job.lease_until - now
        if left is None:
            lease = ""
        elif left >= timedelta(0):
            lease = f"{short_span(left)} left"
        else:
            lease = f"expired {short_span(-left)} ago"
        ran = short_span(max(now - job.started_at, timedelta(0))) if job.started_at else ""
        tries = f"{job.attempts}/{job.max_attempts}"
        table.add_row(*map(Text, (job.id, job.name, tries, ran, lease, job.worker or "")))
    return table
