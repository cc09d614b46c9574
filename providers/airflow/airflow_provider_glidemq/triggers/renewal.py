"""Renewing the lease of the task that owns a flow, while a trigger watches it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_provider_glidemq.ownership import seconds_of
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import Superseded

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared import SharedClient
    from glidemq_orchestrate import AsyncFlow


class Renewal:
    """Renews a lease three times while it lasts, and at once for another generation.

    Args:
        lease: Seconds for which the lease lasts; None: the longest time.
    """

    def __init__(self, lease: float | None) -> None:
        self.pause = seconds_of(lease) / runs.RENEWALS
        self._last: tuple[int, float] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the lease was renewed once."""
        return self._last is not None

    async def renew_if_due(self, client: SharedClient, flow: AsyncFlow) -> None:
        """Renew it, for the owner with which the flow was found."""
        now, last = asyncio.get_running_loop().time(), self._last
        if last is None or last[0] != flow.generation or now - last[1] >= self.pause:
            with suppress(Superseded):  # the next look at the flow finds it
                await client.renew(flow)
            self._last = (flow.generation, now)
