"""Log records and hooks: what a worker tells about its jobs to the people and programs around it."""

from __future__ import annotations

import logging
from typing import Final

from glidemq_orchestrate._protocol.worker.exchange import Kind, Outcome
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handler import Handlers, JobEvent

logger = logging.getLogger("glidemq_orchestrate.worker")

LARGE_RESULT: Final = 256 * 1024


class Hooks:
    """The job hooks of a registry, and the log."""

    def __init__(self, handlers: Handlers) -> None:
        self._hooks = handlers.job_hooks
        self._told_large: set[tuple[str, str]] = set()

    @property
    def are_there(self) -> bool:
        """Whether there are any hooks."""
        return bool(self._hooks)

    def log_verdict(self, outcome: Outcome, verdict: str) -> None:
        """Log what the server did with an outcome."""
        attempt = outcome.attempt
        if verdict == "ok":
            if len(outcome.text) > LARGE_RESULT and outcome.kind is Kind.DONE:
                self._warn_of_size(attempt, len(outcome.text))
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

    def _warn_of_size(self, attempt: Attempt, size: int) -> None:
        """Once for each name of a job: such results fill the memory of the server."""
        if (attempt.queue, attempt.name) in self._told_large:
            return
        self._told_large.add((attempt.queue, attempt.name))
        logger.warning(
            "queue %s: results of %s are large (%s characters): they stand in the job and in its event, and "
            "few such events are kept; write them to a file, table or object store and return their location",
            attempt.queue,
            attempt.name,
            f"{size:,}",
            extra=about("large_result", attempt),
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
