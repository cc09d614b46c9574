"""What the page changes of flows and nodes."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from glidemq_orchestrate.console.guard import check_flow
from glidemq_orchestrate.console.parts import MAX_RETRIED, Group, Name, Shared, real_groups

router = APIRouter(dependencies=[Depends(check_flow)])
BY_HAND: Final = "by the console"


class Reason(BaseModel):
    """Why somebody changes something."""

    reason: str = Field("", max_length=1_000)


@router.post("/flows/{flow_id}/nodes/{name}/rerun")
async def rerun_node(console: Shared, flow_id: Name, name: Name) -> dict[str, Any]:
    """Run a node that has ended again, and all that follow it."""
    flow = await console.client.flows.get(flow_id)
    changed = await flow.rerun(name)
    console.views.changed(flow_id)
    return {"changed": list(changed)}


@router.post("/flows/{flow_id}/nodes/{name}/cancel")
async def cancel_node(
    console: Shared, flow_id: Name, name: Name, why: Reason | None = None
) -> dict[str, Any]:
    """End a node as failed, and tell its handler to stop."""
    flow = await console.client.flows.get(flow_id)
    changed = await flow.cancel_node(name, reason=_reason(why))
    console.views.changed(flow_id)
    return {"changed": list(changed)}


@router.post("/flows/{flow_id}/retry")
async def retry(console: Shared, flow_id: Name) -> dict[str, Any]:
    """Run what failed again, and what could not run because of it."""
    flow = await console.client.flows.get(flow_id)
    state = await flow.retry_failed(generation=flow.generation)
    console.views.changed(flow_id)
    return {"state": state}


@router.post("/flows/{flow_id}/retry-group")
async def retry_group(console: Shared, flow_id: Name, which: Group) -> dict[str, Any]:
    """Run up to 1,000 failed nodes of a group of failures again, oldest first, and what they held back."""
    flow, changed = await console.client.flows.get(flow_id), list[str]()
    for group in await real_groups(flow, which.group):
        if len(changed) < MAX_RETRIED:
            limit = MAX_RETRIED - len(changed)
            changed += await flow.retry_failures(group, limit=limit, generation=flow.generation)
    console.views.changed(flow_id)
    return {"changed": changed}


@router.post("/flows/{flow_id}/restart")
async def restart(console: Shared, flow_id: Name) -> dict[str, Any]:
    """Run the whole flow again, as a new generation."""
    flow = await console.client.flows.get(flow_id)
    state = await flow.restart()
    console.views.changed(flow_id)
    return {"state": state}


@router.post("/flows/{flow_id}/cancel")
async def cancel(console: Shared, flow_id: Name, why: Reason | None = None) -> dict[str, Any]:
    """Cancel a flow that has not ended."""
    flow = await console.client.flows.get(flow_id)
    state = await flow.cancel(_reason(why), generation=flow.generation)
    console.views.changed(flow_id)
    return {"state": state}


def _reason(why: Reason | None) -> str:
    return why.reason if why and why.reason else BY_HAND
