"""What the page reads of schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from fastapi import APIRouter, Depends

from glidemq_orchestrate.clients.queue import AsyncQueue
from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.parts import Name, Shared, job_row
from glidemq_orchestrate.console.queue_pages import for_each
from glidemq_orchestrate.console.shown import shown, time_text
from glidemq_orchestrate.foundation.durations import milliseconds, span_text
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.schedules.cron import Cron
from glidemq_orchestrate.schedules.schedule import Schedule, ScheduleEntry

router = APIRouter(dependencies=[Depends(check_queues)])
NEXT: Final = 10
MAX_LOOKED: Final = 200
"""Among so many jobs of each state, the runs of a schedule are looked for."""
MAX_SHOWN: Final = 50
_NEWEST_FIRST: Final = (JobState.COMPLETED, JobState.FAILED, JobState.DELAYED)
_IN_ORDER: Final = (JobState.ACTIVE, JobState.WAITING)


@router.get("/schedules")
async def schedules(console: Shared) -> dict[str, Any]:
    """Every schedule with its next and last run."""
    names = await console.queues()

    async def read(name: str) -> Any:
        return await console.client.schedules(name).list()

    found = zip(names, await for_each(names, read), strict=True)
    return {"schedules": [_row(name, entry) for name, entries in found for entry in entries]}


@router.get("/queues/{name}/schedules/{schedule}")
async def schedule(console: Shared, name: Name, schedule: Name) -> dict[str, Any]:
    """A schedule with its next times, and the newest jobs that it may have added."""
    entry = await console.client.schedules(name).get(schedule)
    runs = await _runs(console.client.queue(name), entry)
    return {
        **_row(name, entry),
        "options": shown(dict(entry.options)),
        "next": [time_text(at) for at in next_times(entry)],
        "last": [job_row(job) for job in runs],
    }


async def _runs(queue: AsyncQueue, entry: ScheduleEntry) -> list[Job]:
    """The jobs of the name that a schedule gives its own, newest first.

    Those that Node workers have added, except by ``repeat_after_complete``, do not say by which schedule.
    """
    every = await asyncio.gather(
        *(
            queue.get_jobs(state, limit=MAX_LOOKED, newest_first=True, exclude_data=True)
            for state in _NEWEST_FIRST
        ),
        *(queue.get_jobs(state, limit=MAX_LOOKED, exclude_data=True) for state in _IN_ORDER),
    )
    found = {
        job.id: job
        for some in every
        for job in some
        if job.name == entry.job and job.schedule in (None, entry.name) and job.flow_id is None
    }
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(found.values(), key=lambda job: job.created_at or oldest, reverse=True)[:MAX_SHOWN]


def _row(queue: str, entry: ScheduleEntry) -> dict[str, Any]:
    times = entry.schedule
    when = ""
    if times is not None:
        when = times.cron or (f"every {span_text(times.every)}" if times.every else "")
        when = when or f"{span_text(times.repeat_after_complete or 0)} after each end"
    return {
        "queue": queue,
        "name": entry.name,
        "job": entry.job,
        "when": when,
        "zone": str(times.time_zone or "UTC") if times is not None and times.cron else "",
        "next_at": time_text(entry.next_run),
        "last_at": time_text(entry.last_run),
        "runs": entry.iterations,
        "limit": times.limit if times is not None else None,
        "finished": entry.finished,
        "broken": entry.broken,
        "paused": entry.paused,
        "python_only": entry.python_only,
        "data": shown(entry.data),
    }


def next_times(entry: ScheduleEntry) -> list[datetime]:
    """The next times, at most ten; of a schedule that follows the end of its job only the next one."""
    times = entry.schedule
    if times is None or entry.next_run is None or entry.finished:
        return []
    most = NEXT if times.limit is None else min(NEXT, times.limit - entry.iterations)
    return [at for at in islice(_following(times, entry.next_run), most) if _is_within(times, at)]


def _is_within(times: Schedule, at: datetime) -> bool:
    return times.end is None or at <= times.end


def _following(times: Schedule, first: datetime) -> Iterable[datetime]:
    cron = None if times.cron is None else Cron.parse(times.cron, times.time_zone)
    at: datetime | None = first
    while at is not None:
        yield at
        if cron is not None:
            found = cron.after(int(at.timestamp() * 1000))
            at = None if found is None else datetime.fromtimestamp(found / 1000, UTC)
        elif times.every is not None:
            at += timedelta(milliseconds=milliseconds(times.every))
        else:
            at = None
