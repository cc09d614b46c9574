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
        self._runs: dict[tuple[str, str, int, int | None], str] = {}

    def begin(self, attempt: Attempt, context: Context, **more: Any) -> None:
        """Write that an attempt begins, at a job or at an element of an array."""
        run = run_of(attempt, context.index)
        self._runs[attempt.queue, attempt.node_job_id, attempt.epoch, context.index] = run
        self._ledger.write(
            "begin", **_about(attempt, context.index), flow=context.flow_id, node=context.node,
            attempt=context.attempt, epoch=attempt.epoch, **more,
        )  # fmt: skip

    def end(self, attempt: Attempt, context: Context, error: str = "", **more: Any) -> None:
        """Write that its handler has returned, or raised this error."""
        self._ledger.write("end", **_about(attempt, context.index), error=error, **more)

    def on_event(self, event: JobEvent) -> None:
        """Write the server's verdict."""
        if event.kind != "active":
            run = self._runs.pop((event.queue, event.job_id, event.epoch, event.index), None)
            self._ledger.write(
                event.kind, run=run, queue=event.queue, job=_named(event.job_id, event.index),
                flow=event.flow_id, node=event.node,
            )  # fmt: skip


def run_of(attempt: Attempt, index: int | None = None) -> str:
    """The name of an attempt in the ledger; ``index``: of the element, if it is one of an array."""
    return f"{attempt.token}:{_named(attempt.job_id, index)}"


def _about(attempt: Attempt, index: int | None) -> dict[str, str]:
    job = _named(attempt.node_job_id, index)
    return {"run": run_of(attempt, index), "queue": attempt.queue, "job": job}


def _named(job_id: str, index: int | None) -> str:
    """A job in the ledger; the element of an array counts as one."""
    return job_id if index is None else f"{job_id}[{index}]"
