"""Log records and hooks: what a worker tells about its jobs to the people and programs around it."""

from __future__ import annotations

import logging

from glidemq_orchestrate._protocol.exchange import Kind, Outcome
from glidemq_orchestrate.handler import Handlers, JobEvent
from glidemq_orchestrate.job import Attempt

logger = logging.getLogger("glidemq_orchestrate.worker")


class Hooks:
    """The job hooks of a registry, and the log."""

    def __init__(self, handlers: Handlers) -> None:
        self._hooks = handlers.job_hooks

    @property
    def are_there(self) -> bool:
        """Whether there are any hooks."""
        return bool(self._hooks)

    def log_verdict(self, outcome: Outcome, verdict: str) -> None:
        """Log what the server did with an outcome."""
        attempt = outcome.attempt
        if verdict == "ok":
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "job %s: %s", attempt.job_id, outcome.kind, extra=about("job_completed", attempt)
                )
        elif verdict == "retrying":
            logger.info(
                "job %s: runs again in %d ms",
                attempt.job_id,
                outcome.second,
                extra=about("retrying", attempt),
            )
        elif verdict == "failed":
            logger.error(
                "job %s: failed: %s", attempt.job_id, outcome.text, extra=about("job_failed", attempt)
            )
        else:
            # Also the answer to a repeat whose first reply was lost.
            logger.warning(
                "job %s: outcome not taken: %s",
                attempt.job_id,
                verdict,
                extra=about("outcome_refused", attempt),
            )

    def tell_verdict(self, outcome: Outcome, verdict: str, seconds: float) -> None:
        """Tell what became of a job whose handler has ended, now that the server has its word."""
        if not self._hooks or outcome.kind not in (Kind.FAIL, Kind.DONE):
            return
        if verdict in ("retrying", "failed"):
            self.tell(verdict, outcome.attempt, seconds, outcome.text)
        elif verdict == "ok":
            self.tell("completed", outcome.attempt, seconds)
        else:
            self.tell("lost", outcome.attempt, seconds)

    def tell(self, kind: str, attempt: Attempt, seconds: float = 0.0, reason: str = "") -> None:
        """Tell the hooks; one that raises changes nothing."""
        for hook in self._hooks:
            try:
                hook(
                    JobEvent(
                        kind, attempt.queue, attempt.job_id, attempt.name, attempt.attempts_made + 1,
                        attempt.flow_id, attempt.node, seconds, reason,
                    )
                )  # fmt: skip
            except BaseException:  # whatever it raises
                logger.exception("a hook raised", extra=about("hook_raised", attempt))


def about(action: str, attempt: Attempt) -> dict[str, str | None]:
    """The fields of a log record about an attempt."""
    return {"action": action, "queue": attempt.queue, "job_id": attempt.job_id, "flow_id": attempt.flow_id}
