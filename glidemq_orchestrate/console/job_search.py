"""Finds a job by its id alone, in whatever queue it is."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request

from glidemq_orchestrate.console.parts import flow_row
from glidemq_orchestrate.console.queue_pages import for_each
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowExpired,
    FlowNotFound,
    InvalidJob,
    JobNotFound,
)
from glidemq_orchestrate.jobs.job import Job

MAX_FOUND: Final = 20


async def find_jobs(console: Any, request: Request, job_id: str) -> dict[str, Any]:
    """What has a job with this id, as far as the sender may see it; of many, the first 20.

    Returns:
        ``flows``: those of which it is a node. ``jobs``: the others, with their queues.
    """

    async def read(queue: str) -> Job | None:
        try:
            found: Job = await console.client.queue(queue).get_job(job_id, lenient=True)
        except (JobNotFound, InvalidJob, ConfigurationError):
            return None
        return found

    names = await console.queues()
    every = zip(names, await for_each(names, read), strict=True)
    jobs = [(name, job) for name, job in every if job is not None][:MAX_FOUND]
    sees_queues = await console.guard.sees_queues(request)
    return {
        "flows": await _flows(console, request, [job.flow_id for _, job in jobs if job.flow_id]),
        "jobs": [
            {"queue": name, "id": job.id, "name": job.name, "state": job.state}
            for name, job in jobs
            if not job.flow_id and sees_queues
        ],
    }


async def _flows(console: Any, request: Request, ids: list[str]) -> list[dict[str, Any]]:
    found = []
    for flow_id in dict.fromkeys(ids):
        try:
            status = await (await console.client.flows.get(flow_id)).status()
        except (FlowNotFound, FlowExpired):
            continue
        if await console.guard.sees_flow(request, status.labels):
            found.append(flow_row(status))
    return found
