"""Middleware that writes the attempts of a worker to the ledger, and what the server has accepted of them."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.middleware import Middleware
from glidemq_orchestrate.worker.handlers.registered import JobEvent


class Recorder(Middleware):
    """Writes to the ledger; subclasses call ``begin`` and ``end`` around the handler.

    Args:
        ledger: Of this process.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: dict[tuple[str, str, int], str] = {}

    def begin(self, attempt: Attempt, context: Context, **more: Any) -> None:
        """Write that an attempt begins."""
        self._runs[attempt.queue, attempt.job_id, attempt.epoch] = run_of(attempt)
        self._ledger.write(
            "begin", **_about(attempt), flow=context.flow_id, node=context.node, attempt=context.attempt,
            epoch=attempt.epoch, **more,
        )  # fmt: skip

    def end(self, attempt: Attempt, error: str = "", **more: Any) -> None:
        """Write that its handler has returned, or raised this error."""
        self._ledger.write("end", **_about(attempt), error=error, **more)

    def on_event(self, event: JobEvent) -> None:
        """Write the server's verdict."""
        if event.kind != "active":
            run = self._runs.pop((event.queue, event.job_id, event.epoch), None)
            self._ledger.write(
                event.kind, run=run, queue=event.queue, job=event.job_id, flow=event.flow_id, node=event.node
            )


def run_of(attempt: Attempt) -> str:
    """The name of an attempt in the ledger."""
    return f"{attempt.token}:{attempt.job_id}"


def _about(attempt: Attempt) -> dict[str, str]:
    return {"run": run_of(attempt), "queue": attempt.queue, "job": attempt.job_id}
