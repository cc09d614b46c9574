"""Job events for middleware."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.middleware import Middleware
from glidemq_orchestrate.worker.handlers.registered import JobEvent
from glidemq_orchestrate.worker.log import about

logger = logging.getLogger("glidemq_orchestrate.worker")


class JobEvents:
    """Emits a ``JobEvent`` to the middleware that handles events.

    Args:
        middleware: All the middleware of the worker.
    """

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._listeners = [one for one in middleware if type(one).on_event is not Middleware.on_event]

    @property
    def has_listeners(self) -> bool:
        """Whether any middleware handles events now."""
        for one in self._listeners:
            try:
                if one.hears_events:
                    return True
            except BaseException:  # code of the user; logged once, as it would raise at every event
                logger.exception("%s.hears_events raised: it gets no events", type(one).__name__)
                self._listeners = [other for other in self._listeners if other is not one]
        return False

    def emit(self, kind: str, attempt: Attempt, seconds: float = 0.0, reason: str = "") -> None:
        """Emit an event of a job; an exception of a listener is logged."""
        if not self.has_listeners:
            return
        event = JobEvent(
            kind, attempt.queue, attempt.job_id, attempt.name, attempt.attempts_made + 1,
            attempt.flow_id, attempt.node, seconds, reason, attempt.epoch,
        )  # fmt: skip
        for one in self._listeners:
            try:
                one.on_event(event)
            except BaseException:  # code of the user
                logger.exception("%s raised", type(one).__name__, extra=about("hook_raised", attempt))

    def emit_verdict(self, outcome: Outcome, verdict: str, seconds: float) -> None:
        """Emit the event for the server's verdict on an outcome."""
        if outcome.kind not in (Kind.FAIL, Kind.DONE):
            return
        if verdict in ("retrying", "failed"):
            self.emit(verdict, outcome.attempt, seconds, outcome.text)
        elif verdict == "ok":
            self.emit("completed", outcome.attempt, seconds)
        else:
            self.emit("lost", outcome.attempt, seconds)
