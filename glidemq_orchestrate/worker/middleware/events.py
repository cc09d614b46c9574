"""Tells middleware what becomes of jobs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from glidemq_orchestrate._protocol.worker.exchange import Kind, Outcome
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handler import JobEvent
from glidemq_orchestrate.worker.log import about
from glidemq_orchestrate.worker.middleware.middleware import Middleware

logger = logging.getLogger("glidemq_orchestrate.worker")


class Events:
    """Makes a ``JobEvent`` where anybody hears it.

    Args:
        middleware: Of the worker.
    """

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._listeners = [one for one in middleware if type(one).on_event is not Middleware.on_event]

    @property
    def are_heard(self) -> bool:
        """Whether anybody listens now."""
        for one in self._listeners:  # noqa: SIM110  a generator for each job costs more than the look
            if one.hears_events:
                return True
        return False

    def emit(self, kind: str, attempt: Attempt, seconds: float = 0.0, reason: str = "") -> None:
        """Tell of a job; one that raises changes nothing."""
        if not self.are_heard:
            return
        event = JobEvent(
            kind, attempt.queue, attempt.job_id, attempt.name, attempt.attempts_made + 1,
            attempt.flow_id, attempt.node, seconds, reason,
        )  # fmt: skip
        for one in self._listeners:
            try:
                one.on_event(event)
            except BaseException:  # whatever it raises
                logger.exception("%s raised", type(one).__name__, extra=about("hook_raised", attempt))

    def emit_verdict(self, outcome: Outcome, verdict: str, seconds: float) -> None:
        """Tell what became of a job whose handler has ended, now that the server has its word."""
        if outcome.kind not in (Kind.FAIL, Kind.DONE):
            return
        if verdict in ("retrying", "failed"):
            self.emit(verdict, outcome.attempt, seconds, outcome.text)
        elif verdict == "ok":
            self.emit("completed", outcome.attempt, seconds)
        else:
            self.emit("lost", outcome.attempt, seconds)
