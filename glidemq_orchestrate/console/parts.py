"""Flows, nodes, jobs and workers in the form in which the page gets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final
from urllib.parse import unquote

from fastapi import Depends, Request
from pydantic import AfterValidator, BaseModel, Field

from glidemq_orchestrate.clients.flows import AsyncFlow
from glidemq_orchestrate.console.shown import MASK, masked_line, masked_value, time_text
from glidemq_orchestrate.flows.checked import MAX_NODES
from glidemq_orchestrate.flows.status import FlowStatus, NodeStatus
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.queues.failure_groups import FailureGroup, FailureGroups, failed_nodes

MAX_NAMES: Final = 20
MAX_EXAMINED: Final = 2_000
"""Among so many failed jobs and nodes, groups of failures are looked for."""
MAX_GROUP_NAME: Final = 10_000
MAX_RETRIED: Final = 1_000
"""How many failures of a group run again at a time."""


def _console(request: Request) -> Any:
    return request.app.state.console


Shared = Annotated[Any, Depends(_console)]


def _decoded(text: str) -> str:
    """A name of a path. Browsers leave out . and .., so these come after a byte that no text has."""
    return unquote(text.removeprefix("%FF"))


Name = Annotated[str, AfterValidator(_decoded)]
"""A name in a path, which is not decoded before, as it may contain any character; see ``access.py``."""


class Group(BaseModel):
    """A group of failures, by the name that the page knows."""

    group: str = Field(max_length=MAX_GROUP_NAME)


def flow_row(status: FlowStatus) -> dict[str, Any]:
    """A flow."""
    return {
        "id": status.id,
        "name": status.name,
        "state": status.state,
        "home": status.home,
        "queue": status.queue,
        "generation": status.generation,
        "total": status.total,
        "completed": status.completed,
        "failed": status.failed,
        "skipped": status.skipped,
        "open": status.open,
        "reason": masked_line(status.reason),
        "labels": dict(status.labels),
        "created_at": time_text(status.created_at),
        "finished_at": time_text(status.finished_at),
        "note": masked_line(status.note),
    }


def node_row(node: NodeStatus) -> dict[str, Any]:
    """A node, with some of its dependencies."""
    return {
        "name": node.name,
        "queue": node.queue,
        "job_id": node.job_id,
        "job": node.job,
        "state": node.state,
        "attempts": node.attempts,
        "reason": masked_line(node.reason),
        "seconds": node.seconds,
        "started_at": time_text(node.started_at),
        "finished_at": time_text(node.finished_at),
        "worker": node.worker,
        "progress": masked_value(node.progress)[0],
        "reruns": node.reruns,
        "ignored": node.ignored,
        "after": list(node.after[:MAX_NAMES]),
        "after_count": len(node.after),
    }


def job_row(job: Job) -> dict[str, Any]:
    """A job in a list."""
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "attempts": job.attempts,
        "reason": masked_line(job.failed_reason or ""),
        "created_at": time_text(job.created_at),
        "started_at": time_text(job.started_at),
        "finished_at": time_text(job.finished_at),
        "flow_id": job.flow_id,
        "node": job.node,
        "worker": job.worker or "",
        "lease_until": time_text(job.lease_until),
        "lost": job.lost_attempts,
        "ordering_key": job.ordering_key or "",
        "tags": list(job.tags),
        "schedule": job.schedule or "",
    }


def failure_rows(groups: FailureGroups) -> list[dict[str, Any]]:
    """The groups of failures, the largest first."""
    return [
        {
            "group": masked_line(one.group),
            "count": one.count,
            "nodes": one.nodes,
            "reason": masked_line(one.samples[0].reason) if one.samples else "",
            "first_at": time_text(one.first_at),
            "last_at": time_text(one.last_at),
            "examples": [_example(sample) for sample in one.samples],
            "held_back": one.held_back,
        }
        for one in groups
    ]


def is_masked(group: str) -> bool:
    """Whether the page does not know the real name of a group."""
    return MASK in group


def groups_shown_as(name: str, groups: Iterable[FailureGroup]) -> list[str]:
    """The real names of the groups that the page knows by this one."""
    return [one.group for one in groups if masked_line(one.group) == name]


async def failed_in(flow: AsyncFlow, group: str) -> list[str]:
    """The nodes of a flow that failed in a group, by the name that the page knows; oldest first."""
    names: list[str] = []
    for one in await real_groups(flow, group):
        ref = flow._ref  # noqa: SLF001  there is no public method for it
        names += await flow._run(failed_nodes(ref, one, MAX_NODES))  # noqa: SLF001
    return names


async def real_groups(flow: AsyncFlow, group: str) -> list[str]:
    """The groups of a flow that the page knows by this name."""
    return groups_shown_as(group, await flow.failures()) if is_masked(group) else [group]


def _example(sample: Any) -> Mapping[str, Any]:
    job = sample.job_id
    return {"job_id": job, "node": getattr(sample, "node", None), "flow_id": getattr(sample, "flow_id", None)}
