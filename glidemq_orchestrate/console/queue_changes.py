"""What the page changes of queues and jobs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter, Depends

from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.parts import (
    MAX_EXAMINED,
    MAX_RETRIED,
    Group,
    Name,
    Shared,
    groups_shown_as,
    is_masked,
)
from glidemq_orchestrate.console.shown import time_text
from glidemq_orchestrate.errors import ConfigurationError, JobStateConflict
from glidemq_orchestrate.jobs.options import JobOptions, RunOptions

router = APIRouter(dependencies=[Depends(check_queues)])
MAX_REPLAYED: Final = 1_000


@router.post("/queues/{name}/pause")
async def pause(console: Shared, name: Name) -> dict[str, Any]:
    """Start no more jobs of a queue; running ones go on."""
    await console.client.queue(name).pause()
    return {"ok": True}


@router.post("/queues/{name}/resume")
async def resume(console: Shared, name: Name) -> dict[str, Any]:
    """Start jobs of a queue again."""
    await console.client.queue(name).resume()
    return {"ok": True}


@router.post("/queues/{name}/retry-failed")
async def retry_failed(console: Shared, name: Name) -> dict[str, Any]:
    """Run the failed jobs of a queue again; nodes of flows are for their flows."""
    return {"ok": True, "count": await console.client.queue(name).retry_failed()}


@router.post("/queues/{name}/retry-group")
async def retry_group(console: Shared, name: Name, which: Group) -> dict[str, Any]:
    """Run up to 1,000 failed jobs of a group of failures again, oldest first; nodes are for their flows."""
    queue, groups, count = console.client.queue(name), [which.group], 0
    if is_masked(which.group):
        groups = groups_shown_as(which.group, await queue.failures(max_examined=MAX_EXAMINED))
    for group in groups:
        if count < MAX_RETRIED:
            count += await queue.retry_failures(group, limit=MAX_RETRIED - count)
    return {"ok": True, "count": count}


@router.post("/queues/{name}/jobs/{job_id}/track")
async def track(console: Shared, name: Name, job_id: Name) -> dict[str, Any]:
    """Put a job on the list of tracked ones, and record its history from now on."""
    await console.client.queue(name).track(job_id)
    return {"ok": True}


@router.post("/queues/{name}/jobs/{job_id}/untrack")
async def untrack(console: Shared, name: Name, job_id: Name) -> dict[str, Any]:
    """Take a job off the list of tracked ones."""
    await console.client.queue(name).untrack(job_id)
    return {"ok": True}


@router.post("/queues/{name}/jobs/{job_id}/retry")
async def retry_job(console: Shared, name: Name, job_id: Name) -> dict[str, Any]:
    """Run a failed job again."""
    await console.client.queue(name).retry(job_id)
    return {"ok": True}


@router.post("/queues/{name}/replay-dead-letters")
async def replay(console: Shared, name: Name) -> dict[str, Any]:
    """Run the jobs of up to 1,000 dead letters of this queue again, and remove these letters."""
    queue, count = console.client.queue(name), 0
    for letter in await queue.dead_letters(limit=MAX_REPLAYED):
        with contextlib.suppress(JobStateConflict):  # a node of a flow: that is retried as a whole
            await queue.replay_dead_letter(letter.id)
            count += 1
    return {"ok": True, "count": count}


@router.post("/queues/{name}/schedules/{schedule}/pause")
async def pause_schedule(console: Shared, name: Name, schedule: Name) -> dict[str, Any]:
    """Keep a schedule from adding jobs until it is resumed."""
    await console.client.schedules(name).pause(schedule)
    return {"ok": True}


@router.post("/queues/{name}/schedules/{schedule}/resume")
async def resume_schedule(console: Shared, name: Name, schedule: Name) -> dict[str, Any]:
    """Let a paused schedule add jobs again; times that passed are left out."""
    entry = await console.client.schedules(name).resume(schedule)
    return {"ok": True, "next_at": time_text(entry.next_run)}


@router.post("/queues/{name}/schedules/{schedule}/run")
async def run_now(console: Shared, name: Name, schedule: Name) -> dict[str, Any]:
    """Add the job of a schedule now, apart from its times, with the options of the schedule."""
    entry = await console.client.schedules(name).get(schedule)
    job_id = await console.client.queue(name).add(entry.job, entry.data, options=_options(entry.options))
    return {"ok": True, "job_id": job_id}


def _options(stored: Mapping[str, Any]) -> JobOptions:
    """The options of a schedule for a job of its own.

    Raises:
        ConfigurationError: The schedule has some that a job cannot be given here.
    """
    read = RunOptions.from_wire(json.dumps(stored))
    ttl, priority = stored.get("ttl"), stored.get("priority")
    made = JobOptions(
        attempts=read.attempts,
        backoff=read.backoff,
        timeout=read.timeout,
        lease=read.lease,
        fallbacks=read.fallbacks,
        must_pass=read.must_pass,
        tags=read.tags,
        history=stored.get("history") is True,
        lifo=stored.get("lifo") is True,
        priority=priority if isinstance(priority, int) else 0,
        ttl=timedelta(milliseconds=ttl) if isinstance(ttl, int) else None,
    )
    written = json.loads(made.to_wire())
    if missing := sorted(key for key, value in stored.items() if written.get(key) != value):
        raise ConfigurationError(
            f"the job would run without the options {', '.join(missing)} of its schedule. Fix: add it with "
            "glidemq job add"
        )
    return made
