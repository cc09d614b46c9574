"""What the page reads of queues, workers and schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query

from glidemq_orchestrate.attempts.workers import WorkerInfo
from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.parts import Name, Shared, failure_rows, job_row
from glidemq_orchestrate.console.shown import shown, time_text
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues.statistics import Durations
from glidemq_orchestrate.schedules.schedule import ScheduleEntry

router = APIRouter(dependencies=[Depends(check_queues)])
AT_ONCE: Final = 8
MINUTES: Final = 24 * 60
PAGE: Final = 50


async def _each(names: Sequence[str], read: Any) -> list[Any]:
    """What ``read`` returns for each name; few at once, as a server may have thousands of queues."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Any:
        async with gate:
            return await read(name)

    return list(await asyncio.gather(*map(one, names)))


def _counts(counts: Mapping[JobState, int]) -> dict[str, int]:
    return {str(state): count for state, count in counts.items()}


@router.get("/queues")
async def queues(console: Shared) -> dict[str, Any]:
    """Every queue with its counts."""

    async def read(name: str) -> dict[str, Any]:
        queue = console.client.queue(name)
        counts, is_paused, workers = await asyncio.gather(
            queue.counts(indexed_only=True), queue.is_paused(), queue.workers()
        )
        return {
            "name": name,
            "paused": is_paused,
            "counts": _counts(counts.with_elements()),
            "at_least": sorted(counts.at_least),
            "workers": len(workers),
        }

    return {"queues": await _each(await console.queues(), read)}


@router.get("/queues/{name}")
async def queue(console: Shared, name: Name) -> dict[str, Any]:
    """A queue: counts, rates of a day, handlers, failures, limits, dead letters, workers."""
    found = console.client.queue(name)
    counts, is_paused, workers, statistics, failures = await asyncio.gather(
        found.counts(indexed_only=True),
        found.is_paused(),
        found.workers(),
        found.statistics(),
        found.failures(max_examined=2_000),
    )
    completed, failed, concurrency, rate, letters = await asyncio.gather(
        found.metrics(JobState.COMPLETED),
        found.metrics(JobState.FAILED),
        found.global_concurrency(),
        found.global_rate_limit(),
        found.dead_letter_queue(),
    )
    minutes: dict[str | None, dict[str, int]] = {}
    for kind, points in (("completed", completed), ("failed", failed)):
        for point in points[-MINUTES:]:
            minutes.setdefault(time_text(point.at), {"completed": 0, "failed": 0})[kind] = point.count
    return {
        "name": name,
        "paused": is_paused,
        "counts": _counts(counts),
        "elements": {
            "waiting": counts.elements.waiting,
            "ready": counts.elements.ready,
            "running": counts.elements.running,
        },
        "workers": [_worker_row(one, [name]) for one in workers],
        "handlers": [
            {
                "handler": one.handler or "all others",
                "count": one.running.count,
                "failed": one.failures,
                "retried": one.retries,
                "waiting": _durations(one.waiting),
                "running": _durations(one.running),
            }
            for one in statistics.handlers
        ],
        "minutes": [
            {"at": at, **numbers} for at, numbers in sorted(minutes.items(), key=lambda row: row[0] or "")
        ],
        "failures": failure_rows(failures),
        "limits": {"concurrency": concurrency, "rate": f"{rate.max} per {rate.per}" if rate else None},
        "dead_letters": {"queue": letters, "count": await _letters(console, letters)} if letters else None,
    }


async def _letters(console: Any, queue: str) -> int:
    counts = await console.client.queue(queue).counts(indexed_only=True)
    return sum(counts.values())


def _durations(durations: Durations) -> dict[str, float | None]:
    """Mean and percentiles in seconds."""

    def seconds(span: timedelta | None) -> float | None:
        return None if span is None else span.total_seconds()

    mean = durations.mean if durations.count else None
    named = {f"p{percent}": seconds(durations.percentile(percent)) for percent in (50, 95, 99)}
    return {"mean": seconds(mean), **named}


@router.get("/queues/{name}/jobs")
async def jobs(
    console: Shared,
    name: Name,
    state: str = "waiting",
    limit: Annotated[int, Query(ge=1, le=500)] = PAGE,
    cursor: Annotated[int, Query(ge=0)] = 0,
) -> dict[str, Any]:
    """Jobs of a queue in a state."""
    found = await console.client.queue(name).get_jobs(state, offset=cursor, limit=limit)
    return {"jobs": [job_row(job) for job in found], "next": cursor + limit if len(found) == limit else None}


@router.get("/queues/{name}/jobs/{job_id}")
async def job(console: Shared, name: Name, job_id: Name) -> dict[str, Any]:
    """A job with its data, result and log."""
    queue = console.client.queue(name)
    found = await queue.get_job(job_id, lenient=True)
    logs = await queue.logs(job_id, limit=200)
    return {
        **job_row(found),
        "data": shown(found.data),
        "result": shown(found.result) if found.state is JobState.COMPLETED else None,
        "logs": {"lines": logs.lines, "total": logs.total},
    }


# --- workers ---


def _worker_row(worker: WorkerInfo, queues: Sequence[str]) -> dict[str, Any]:
    return {
        "id": worker.id,
        "queues": list(queues),
        "host": worker.host,
        "pid": worker.pid,
        "handlers": None if worker.handlers is None else list(worker.handlers),
        "kind": "Node" if worker.handlers is None else "Python",
        "started_at": time_text(worker.started_at),
        "silent_seconds": worker.silent.total_seconds(),
        "is_silent": worker.is_silent,
        "active": worker.active_jobs,
        "jobs": [],
    }


@router.get("/workers")
async def workers(console: Shared) -> dict[str, Any]:
    """Every live worker with what it runs, and the queues with work that nobody serves."""
    names = await console.queues()

    async def read(name: str) -> tuple[Any, ...]:
        queue = console.client.queue(name)
        return await asyncio.gather(
            queue.workers(),
            queue.counts(indexed_only=True),
            queue.get_jobs(JobState.ACTIVE, limit=200),
        )

    rows: dict[str, dict[str, Any]] = {}
    unserved: list[str] = []
    for name, (found, counts, active) in zip(names, await _each(names, read), strict=True):
        total = counts.with_elements()
        waits = sum(
            total.get(state, 0) for state in (JobState.WAITING, JobState.DELAYED, JobState.PRIORITIZED)
        )
        if waits and not found:
            unserved.append(name)
        for worker in found:
            row = rows.setdefault(worker.id, _worker_row(worker, []))
            row["queues"].append(name)
        for one in active:
            if one.worker in rows:
                about = {"queue": name, "job_id": one.id, "name": one.name, "flow_id": one.flow_id}
                rows[one.worker]["jobs"].append(
                    {**about, "node": one.node, "since": time_text(one.started_at)}
                )
    return {"workers": list(rows.values()), "unserved": unserved}


# --- schedules ---


@router.get("/schedules")
async def schedules(console: Shared) -> dict[str, Any]:
    """Every schedule with its next and last run."""
    names = await console.queues()

    async def read(name: str) -> Any:
        return await console.client.schedules(name).list()

    found = zip(names, await _each(names, read), strict=True)
    return {"schedules": [_schedule_row(name, entry) for name, entries in found for entry in entries]}


def _schedule_row(queue: str, entry: ScheduleEntry) -> dict[str, Any]:
    schedule = entry.schedule
    when = ""
    if schedule is not None:
        when = schedule.cron or f"every {schedule.every}" if schedule.every or schedule.cron else ""
        when = when or f"{schedule.repeat_after_complete} after each run"
    return {
        "queue": queue,
        "name": entry.name,
        "job": entry.job,
        "when": when,
        "zone": str(schedule.time_zone or "UTC") if schedule is not None and schedule.cron else "",
        "next_at": time_text(entry.next_run),
        "last_at": time_text(entry.last_run),
        "runs": entry.iterations,
        "finished": entry.finished,
        "broken": entry.broken,
        "data": shown(entry.data),
    }
