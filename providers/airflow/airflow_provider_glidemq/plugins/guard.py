"""What Airflow lets its users see and change in the console. Imported in the API server only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails

from glidemq_orchestrate.console import Guard, NotSignedIn, Request


class AirflowGuard(Guard):
    """Users may do with a flow what they may do with the runs of its DAG."""

    is_needed = True

    async def sees_flow(self, request: Request, labels: Mapping[str, str]) -> bool:
        """Who may see the runs of its DAG; if no DAG has submitted it, who may see the jobs of Airflow."""
        user = await _user(request)
        if "dag_id" in labels:
            return await _may(user, "GET", labels["dag_id"])
        return not labels or await _sees_all(user)

    async def changes_flow(self, request: Request, labels: Mapping[str, str]) -> bool:
        """Who may edit the runs of its DAG."""
        return await _may(await _user(request), "PUT", labels.get("dag_id"))

    async def sees_queues(self, request: Request) -> bool:
        """Who may see the jobs of Airflow."""
        return await _sees_all(await _user(request))

    async def changes_queues(self, request: Request) -> bool:
        """Who may edit the runs of every DAG."""
        return await _may(await _user(request), "PUT", None)


async def _user(request: Request) -> Any:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given if scheme.lower() == "bearer" else request.cookies.get(COOKIE_NAME_JWT_TOKEN)
    if not token:
        raise NotSignedIn
    try:
        return await get_auth_manager().get_user_from_token(token)
    except Exception as exc:
        raise NotSignedIn from exc  # each auth manager raises errors of its own


async def _may(user: Any, method: Any, dag_id: str | None) -> bool:
    return await asyncio.to_thread(
        get_auth_manager().is_authorized_dag,
        method=method,
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag_id) if dag_id else None,
        user=user,
    )


async def _sees_all(user: Any) -> bool:
    return await asyncio.to_thread(
        get_auth_manager().is_authorized_view, access_view=AccessView.JOBS, user=user
    )
