"""What the page is about to do with a queue, in words, before it does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, Depends

from glidemq_orchestrate.console.guard import check_queues
from glidemq_orchestrate.console.parts import Name, Shared
from glidemq_orchestrate.foundation.texts import counted

router = APIRouter(dependencies=[Depends(check_queues)])
MAX_NAMED: Final = 5


@router.get("/queues/{name}/retry-plan")
async def retry_plan(console: Shared, name: Name) -> dict[str, Any]:
    """What retrying the failed jobs of a queue is about to do."""
    found = await console.reader.failed(name)
    jobs, nodes = counted(found.jobs, "failed job"), counted(found.nodes, "failed node")
    stay = ""
    if found.nodes:
        stays, their = (
            ("stays as it is", "its flow") if found.nodes == 1 else ("stay as they are", "their flows")
        )
        stay = f" {nodes} of flows {stays}: retry {their}, {_named(found.flows)}."
    if not found.is_partial:
        text = f"Runs {jobs} of this queue again." if found.jobs else "No job runs again."
        return {"text": f"{text}{stay}", "jobs": found.jobs, "flows": found.flows[:MAX_NAMED]}
    text = (
        "Runs all failed jobs of this queue again that are no nodes of flows: "
        f"{found.jobs:,} of the {found.looked:,} that failed first. {found.total:,} have failed in all."
    )
    return {"text": f"{text}{stay}", "jobs": found.total, "flows": found.flows[:MAX_NAMED]}


def _named(flows: Sequence[str]) -> str:
    named = ", ".join(flows[:MAX_NAMED])
    return named if len(flows) <= MAX_NAMED else f"{named} and {len(flows) - MAX_NAMED:,} more"
