"""Who may see and change what, where another application signs people in and knows their rights."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request

from glidemq_orchestrate.console.parts import Name, Shared


class NotSignedIn(Exception):
    """Nobody is signed in, or no longer."""


class NotAllowed(Exception):
    """Whoever is signed in may not do this."""


class Guard:
    """Lets everybody see and change everything. An application that mounts the console passes a subclass.

    The methods raise ``NotSignedIn`` when nobody is signed in. ``labels`` are those of the flow: the Airflow
    provider writes ``dag_id``, ``run_id`` and ``task_id``.
    """

    is_needed = False
    """Whether a flow is read to learn its labels before each request."""

    async def sees_flow(self, request: Request, labels: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Whether the sender may see a flow with these labels."""
        return True

    async def changes_flow(self, request: Request, labels: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Whether the sender may retry, restart and cancel it."""
        return True

    async def sees_queues(self, request: Request) -> bool:  # noqa: ARG002
        """Whether the sender may see queues, jobs outside flows, workers and schedules."""
        return True

    async def changes_queues(self, request: Request) -> bool:  # noqa: ARG002
        """Whether the sender may change them."""
        return True


async def check_signed_in(request: Request, console: Shared) -> None:
    """Let nobody in who is not signed in."""
    if console.guard.is_needed:
        await console.guard.sees_flow(request, {})


async def check_flow(request: Request, console: Shared, flow_id: Name) -> None:
    """Refuse what the sender may not do with the flow in the path."""
    guard = console.guard
    if not guard.is_needed:
        return
    status = await (await console.client.flows.get(flow_id)).status()
    may = guard.sees_flow if request.method == "GET" else guard.changes_flow
    if not await may(request, status.labels):
        raise NotAllowed(f"you may not {'see' if request.method == 'GET' else 'change'} flow {flow_id}")


async def check_queues(request: Request, console: Shared) -> None:
    """Refuse what the sender may not do with queues."""
    may = console.guard.sees_queues if request.method == "GET" else console.guard.changes_queues
    if not await may(request):
        raise NotAllowed(f"you may not {'see' if request.method == 'GET' else 'change'} queues")
