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
from glidemq_orchestrate.worker.log import log_job

FIRST_PAUSE_MS: Final = 50
MAX_PAUSE_MS: Final = 1_000
MAX_PAUSE_ALONE_MS: Final = 10_000  # while no other worker may run it
MAX_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class Unhandled:
    """Decides what happens to jobs without a handler in this worker.

    Attributes:
        run: Drives operations.
        queues: Keys by queue name.
        handlers: The handlers of this worker.
        worker_id: This worker.
        clock: The current time.
        only_known: Jobs are given back even while no other worker is alive.
        pauses: The milliseconds for which a job is given back the next time, by queue and job.
    """

    run: Run
    queues: Mapping[str, QueueKeys]
    handlers: Handlers
    worker_id: str
    clock: Clock
    only_known: bool = False
    pauses: dict[tuple[str, str], int] = field(default_factory=dict)

    async def outcome_of(self, attempt: Attempt) -> Outcome:
        """Give a job back if another live worker of the queue may run it; otherwise it fails.

        It is available after a pause that doubles each time: this worker may be the next to fetch it.
        """
        queue, key = self.queues[attempt.queue], (attempt.queue, attempt.job_id)
        failure = unknown_handler(attempt, self.handlers.names)
        try:
            may = await self.run(ops.may_be_handled(queue, attempt, self.worker_id, failure.text, self.clock))
        except GlideMQError:
            may = True  # not known, which is no reason to fail a job
        pause = self.pauses.pop(key, FIRST_PAUSE_MS)
        if not (may or self.only_known):
            return failure
        self.pauses[key] = min(pause * 2, MAX_PAUSE_MS if may else MAX_PAUSE_ALONE_MS)
        if len(self.pauses) > MAX_REMEMBERED:
            del self.pauses[next(iter(self.pauses))]
        level = logging.INFO if pause == FIRST_PAUSE_MS else logging.DEBUG
        text = "job %s: given back, as this worker has no handler for %r and another one may have it"
        log_job(level, text, attempt, "handed_back", attempt.name)
        return Outcome(attempt, Kind.LATER, first=self.clock.now_ms() + pause, second=UNBEGUN)
