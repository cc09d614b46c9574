"""How a task waits in its own process, in a worker of Airflow, without a triggerer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_glidemq.node_reports import FlowLog
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import GlideMQError, TransportError, WaitTimeout

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from glidemq_orchestrate.flows import FlowStatus


@dataclass(slots=True, kw_only=True)
class WaitingInWorker(FlowLog):
    """Waits for a flow and logs what its nodes report.

    Attributes:
        conn_id: The connection, for the log.
        on_progress: Called with the status when more nodes have completed.
    """

    conn_id: str
    on_progress: Callable[[FlowStatus], None] = lambda _: None

    def briefly(self, flow: Flow, status: FlowStatus, seconds: float) -> FlowStatus:
        """The status of the flow if it ends within this time; else the given status."""
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
        """Wait for the end of the flow, also while the server is unreachable, and return its status.

        Airflow enforces ``execution_timeout`` and calls ``on_kill``.
        """
        failure, logged = f"Flow {flow.id} cannot be watched over connection {self.conn_id}", -1
        patience = runs.Patience(None, what=failure, log=self.log)
        while True:
            try:
                return patience(lambda: flow.wait(timeout=timedelta(seconds=self.often))).status
            except WaitTimeout:
                logged = self._show(flow, logged)

    def show(self, flow: Flow, ended: int = 0, *, is_last: bool = False) -> None:
        """Log what is new; never fails."""
        try:
            runs.drive(self.poll(flow, ended, is_last=is_last))
        except GlideMQError as exc:
            self.log.warning("The reports of nodes cannot be read over connection %s: %s", self.conn_id, exc)

    def _show(self, flow: Flow, logged: int) -> int:
        """Log progress since ``logged`` nodes, and the reports. Returns how many nodes have completed."""
        status = flow.status()
        if status.completed != logged:
            self.log.info("%d/%d nodes completed", status.completed, status.total)
            self.on_progress(status)
        self.show(flow, status.total - status.open)
        return status.completed
