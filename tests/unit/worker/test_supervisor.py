"""The supervision of a queue as a chore: what it does after a failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.attempts.client_supervision import REFUSED_MS, Area, help_along
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.errors import ConnectionFailed
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.replies import error_from
from glidemq_orchestrate.worker.services.supervisor import supervise

if TYPE_CHECKING:
    from glidemq_orchestrate.wire.call import Op


def test_a_failed_supervision_is_tried_again_at_once_and_not_taken_for_a_success() -> None:
    """Else the log says that it works again while the server is gone."""
    area = Area(Supervision(QueueKeys("glide", "etl"), "w", 30_000), SystemClock(), every_ms=60_000)

    async def run(op: Op[Any]) -> Any:
        try:
            next(op)
        except StopIteration as done:
            return done.value
        return op.throw(ConnectionFailed("it is gone"))

    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            asyncio.run(supervise(run, area))


def test_a_client_looks_again_soon_after_a_slot_has_moved_and_late_after_a_lasting_refusal() -> None:
    for text, pause_ms in (("TRYAGAIN x", 500), ("READONLY x", REFUSED_MS)):
        area = Area(Supervision(QueueKeys("glide", "etl"), "w", 30_000), SystemClock(), every_ms=500)
        helping = help_along(area)
        next(helping)
        with pytest.raises(StopIteration):
            helping.throw(error_from(text))
        assert pause_ms - 400 < area.check_ms - area.clock.monotonic_ms() <= pause_ms
