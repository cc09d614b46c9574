"""Jobs without a handler here: given back while another live worker of the queue can run them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from glidemq_orchestrate.attempts import workers as ops
from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.execution.outcomes import unknown_handler
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.log import about

logger = logging.getLogger("glidemq_orchestrate.worker")

FIRST_PAUSE_MS: Final = 50
LONGEST_PAUSE_MS: Final = 1_000
LONGEST_ALONE_MS: Final = 10_000  # nobody may be there to take it
MAX_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class Unhandled:
    """Decides about jobs that this worker has no handler for.

    Attributes:
        run: Drives operations.
        queues: Keys by queue name.
        handlers: What this worker can run.
        worker_id: This worker.
        clock: The current time.
        only_known: Jobs are given back also while nobody else is alive.
        pauses: For how long a job is given back the next time, by queue and job.
    """

    run: Run
    queues: Mapping[str, QueueKeys]
    handlers: Handlers
    worker_id: str
    clock: Clock
    only_known: bool = False
    pauses: dict[tuple[str, str], int] = field(default_factory=dict)

    async def outcome_of(self, attempt: Attempt) -> Outcome:
        """Give a job back that another live worker of the queue can run; without one it fails.

        It comes back after a pause that doubles: the worker that takes it next may be this one again.
        """
        queue, key = self.queues[attempt.queue], (attempt.queue, attempt.job_id)
        failure = unknown_handler(attempt, self.handlers.names)
        try:
            may = await self.run(ops.may_be_handled(queue, attempt, self.worker_id, failure.text, self.clock))
        except GlideMQError:
            may = True  # unknown, which is no reason to fail a job
        pause = self.pauses.pop(key, FIRST_PAUSE_MS)
        if not (may or self.only_known):
            return failure
        self.pauses[key] = min(pause * 2, LONGEST_PAUSE_MS if may else LONGEST_ALONE_MS)
        if len(self.pauses) > MAX_REMEMBERED:
            del self.pauses[next(iter(self.pauses))]
        logger.log(
            logging.INFO if pause == FIRST_PAUSE_MS else logging.DEBUG,
            "job %s: no handler for %r here, but another worker may have one: given back",
            attempt.job_id,
            attempt.name,
            extra=about("handed_back", attempt),
        )
        return Outcome(attempt, Kind.LATER, first=self.clock.now_ms() + pause, second=UNBEGUN)
