"""Waiting for the end of a flow in a worker of Airflow: progress, lines of nodes, callbacks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_glidemq.node_reports import NodeReports, log_reports
from airflow_provider_glidemq.silence import Silence, log_silence
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import TransportError, WaitTimeout

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate import Flow, FlowStatus


@dataclass(slots=True)
class Waiting:
    """How a task waits in its own process.

    Attributes:
        log: The log of the task.
        often: Seconds between lines about progress.
        reports: What nodes report is shown; None: it is not.
        on_progress: Called with the status when more nodes have completed.
    """

    log: Logger
    often: float
    reports: NodeReports | None
    on_progress: Callable[[FlowStatus], None]
    silence: Silence = field(default_factory=Silence)

    def briefly(self, flow: Flow, status: FlowStatus, seconds: float) -> FlowStatus:
        """The status of a flow that ends within this time; else the one that is known."""
        ends, completed = time.monotonic() + seconds, status.completed
        with contextlib.suppress(TransportError):
            while (left := ends - time.monotonic()) > 0:
                try:
                    return flow.wait(timeout=timedelta(seconds=min(left, self.often))).status
                except WaitTimeout:
                    if left > self.often:
                        completed = self._show(flow, completed)
        return status

    def until_end(self, flow: Flow) -> FlowStatus:
        """The status of the flow when it has ended; a server that cannot be reached is waited for.

        Airflow enforces ``execution_timeout`` and calls ``on_kill``.
        """
        patience, logged = runs.Patience(None, what=f"Flow {flow.id} cannot be watched", log=self.log), -1
        while True:
            try:
                return patience(lambda: flow.wait(timeout=timedelta(seconds=self.often))).status
            except WaitTimeout:
                logged = self._show(flow, logged)

    def _show(self, flow: Flow, logged: int) -> int:
        """Show progress beyond the nodes that were logged, and what nodes report; how many have completed."""
        status = flow.status()
        if status.completed != logged:
            self.log.info("%d/%d nodes completed", status.completed, status.total)
            self.on_progress(status)
        if self.silence.is_due(status.total - status.open, time.monotonic()):
            log_silence(flow, self.silence, self.log)
        self.look(flow)
        return status.completed

    def look(self, flow: Flow, *, is_last: bool = False) -> None:
        """Show what nodes have reported since the last look."""
        if self.reports is not None:
            log_reports(flow, self.reports, self.log, is_last=is_last)
