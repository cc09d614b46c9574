"""What the page reads of queues, their jobs and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query

from glidemq_orchestrate.attempts.handler_code import named_code
from glidemq_orchestrate.attempts.workers import WorkerInfo
from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.handlers import code_rows, handler_row
from glidemq_orchestrate.console.parts import MAX_EXAMINED, Name, Shared, failure_rows, job_row
from glidemq_orchestrate.console.queue_lists import handler_rows, rate_row
from glidemq_orchestrate.console.rates import rates
from glidemq_orchestrate.console.shown import masked_line, shown, time_text
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.states import JobState

router = APIRouter(dependencies=[Depends(check_queues)])
AT_ONCE: Final = 8
MAX_ACTIVE: Final = 200
"""Among so many active jobs stalled ones are looked for."""
PAGE: Final = 50


async def for_each(names: Sequence[str], read: Any) -> list[Any]:
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
    """Every queue with its counts; ``dead_letters_of``: the queues whose dead letters it holds."""
    letters = await console.dead_letters_of()

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
            "workers": (running := sum(worker.runs_jobs for worker in workers)),
            "subscribers": len(workers) - running,
            "dead_letters_of": letters.get(name, []),
        }

    return {"queues": await for_each(await console.queues(), read)}


@router.get("/queues/{name}")
async def queue(console: Shared, name: Name) -> dict[str, Any]:
    """A queue: counts, rates of an hour and a day, handlers, failures, stalled jobs, limits, workers.

    ``exists`` is false if no key of the server belongs to it: nobody has used it yet, or its name is wrong.
    """
    found = console.client.queue(name)
    counts, is_paused, workers, statistics, failures, active, lost = await asyncio.gather(
        found.counts(indexed_only=True),
        found.is_paused(),
        found.workers(),
        found.statistics(),
        found.failures(max_examined=MAX_EXAMINED),
        found.get_jobs(JobState.ACTIVE, limit=MAX_ACTIVE, exclude_data=True),
        found.lost_workers(),
    )
    completed, failed, letters, now, lately = await asyncio.gather(
        found.metrics(JobState.COMPLETED),
        found.metrics(JobState.FAILED),
        found.dead_letter_queue(),
        found.now(),
        console.lately.of(name),
    )
    is_used = bool(workers or is_paused or any(counts.values()))
    return {
        "name": name,
        "exists": is_used or name in await console.queues(),
        "dead_letters_of": (await console.dead_letters_of()).get(name, []),
        "paused": is_paused,
        "counts": _counts(counts),
        "elements": {
            "waiting": counts.elements.waiting,
            "ready": counts.elements.ready,
            "running": counts.elements.running,
            "arrays": counts.elements.arrays,
        },
        "workers": _with_jobs({one.id: _worker_row(one, [name]) for one in workers}, name, active),
        "handlers": handler_rows(statistics),
        **rates(completed, failed, now, lately),
        "failures": failure_rows(failures),
        "failures_are_partial": failures.is_partial,
        "held_back_is_partial": failures.held_back_is_partial,
        "stalled": {
            "jobs": [job_row(one) for one in active if one.lease_until is not None and one.lease_until < now],
            "lost_workers": [{"id": one.id, "jobs": one.jobs} for one in lost],
        },
        "limits": await _limits(console, name),
        "dead_letters": {"queue": letters, "count": await _letters(console, letters)} if letters else None,
    }


@router.get("/queues/{name}/held")
async def held(console: Shared, name: Name) -> dict[str, Any]:
    """How many jobs wait for other jobs or for their ordering key, at most some seconds old."""
    found: dict[str, Any] = await console.held.of(name)
    return found


async def _limits(console: Any, name: str) -> dict[str, Any]:
    """The limits over all workers, and what is used of them."""
    queue = console.client.queue(name)
    concurrency, rate = await asyncio.gather(queue.global_concurrency(), queue.global_rate_limit())
    started = await console.reader.started(name) if rate else 0
    return {"concurrency": concurrency, "rate": rate_row(rate, started)}


async def _letters(console: Any, queue: str) -> int:
    counts = await console.client.queue(queue).counts(indexed_only=True)
    return sum(counts.values())


@router.get("/queues/{name}/jobs")
async def jobs(  # noqa: PLR0913, PLR0917  its filters
    console: Shared,
    name: Name,
    state: str = "waiting",
    limit: Annotated[int, Query(ge=1, le=500)] = PAGE,
    cursor: Annotated[int, Query(ge=0)] = 0,
    tag: str = "",
) -> dict[str, Any]:
    """Jobs of a queue in a state, or with a tag; of those that have ended, the last ones first."""
    queue = console.client.queue(name)
    if tag:
        found = await queue.tagged(tag, offset=cursor, limit=limit, exclude_data=True)
    else:
        is_over = state in (JobState.COMPLETED, JobState.FAILED)
        found = await queue.get_jobs(
            state, offset=cursor, limit=limit, exclude_data=True, newest_first=is_over
        )
    return {"jobs": [job_row(job) for job in found], "next": cursor + limit if len(found) == limit else None}


@router.get("/queues/{name}/jobs/{job_id}")
async def job(console: Shared, name: Name, job_id: Name) -> dict[str, Any]:
    """A job with its data, result, log and history; ``code`` and ``handler`` are those of a node."""
    queue = console.client.queue(name)
    found = await queue.get_job(job_id, lenient=True)
    logs, history, tracked, handler = await asyncio.gather(
        queue.logs(job_id, limit=200),
        queue.history(job_id),
        queue.tracked(),
        handler_row(console, name, found.name),
    )
    return {
        **job_row(found),
        "code": masked_line(named_code(found.name, found.data)),
        "handler": handler,
        "tracked": any(one.kind == "job" and one.id == job_id for one in tracked),
        "history": [
            {"at": time_text(one.at), "what": one.kind, "detail": masked_line(one.detail)} for one in history
        ],
        "history_is_partial": history.is_partial,
        "data": shown(found.data),
        "result": shown(found.result) if found.state is JobState.COMPLETED else None,
        "logs": {"lines": [masked_line(line) for line in logs.lines], "total": logs.total},
    }


# --- workers ---


def _worker_row(worker: WorkerInfo, queues: Sequence[str]) -> dict[str, Any]:
    return {
        "id": worker.id,
        "queues": list(queues),
        "host": worker.host,
        "pid": worker.pid,
        "handlers": None if worker.handlers is None else list(worker.handlers),
        "code": code_rows(worker),
        "subscription": worker.subscription or "",
        "kind": "Node" if worker.handlers is None else "Python",
        "started_at": time_text(worker.started_at),
        "silent_seconds": worker.silent.total_seconds(),
        "is_silent": worker.is_silent,
        "active": worker.active_jobs,
        "running": worker.running,
        "concurrency": worker.concurrency,
        "memory": worker.memory,
        "seen_at": time_text(worker.last_heartbeat),
        "jobs": [],
    }


def _with_jobs(rows: Mapping[str, dict[str, Any]], queue: str, active: Sequence[Job]) -> list[dict[str, Any]]:
    """The workers by id, with what they run of this queue."""
    for job in active:
        if job.worker is not None and job.worker in rows:
            about = {"queue": queue, "job_id": job.id, "name": job.name, "flow_id": job.flow_id}
            rows[job.worker]["jobs"].append({**about, "node": job.node, "since": time_text(job.started_at)})
    return list(rows.values())


@router.get("/workers")
async def workers(console: Shared) -> dict[str, Any]:
    """Every live worker with what it runs, lost ones with jobs, and the queues with work that nobody serves.

    Dead-letter queues are not among these: their jobs wait to be replayed.
    The ``code`` of a worker is that of its first 100 handlers, by their names.
    """
    names = await console.queues()

    async def read(name: str) -> tuple[Any, ...]:
        queue = console.client.queue(name)
        return await asyncio.gather(
            queue.workers(),
            queue.counts(indexed_only=True),
            queue.get_jobs(JobState.ACTIVE, limit=MAX_ACTIVE, exclude_data=True),
            queue.lost_workers(),
        )

    letters = await console.dead_letters_of()
    rows: dict[str, dict[str, Any]] = {}
    unserved, lost = list[str](), list[dict[str, Any]]()
    for name, (found, counts, active, gone) in zip(names, await for_each(names, read), strict=True):
        total = counts.with_elements()
        waits = sum(
            total.get(state, 0) for state in (JobState.WAITING, JobState.DELAYED, JobState.PRIORITIZED)
        )
        if waits and name not in letters and not any(worker.runs_jobs for worker in found):
            unserved.append(name)
        for worker in found:
            row = rows.setdefault(worker.id, _worker_row(worker, []))
            row["queues"].append(name)
        _with_jobs(rows, name, active)
        lost += [{"queue": name, "id": one.id, "jobs": one.jobs} for one in gone]
    return {"workers": list(rows.values()), "unserved": unserved, "lost": lost}
