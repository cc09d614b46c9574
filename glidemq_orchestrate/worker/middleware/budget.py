"""Budgets that a Node flow producer set for its jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.middleware import Middleware, Proceed
from glidemq_orchestrate.worker.handlers.signals import RetryLater
from glidemq_orchestrate.worker.messenger import Messenger
from glidemq_orchestrate.worker.middleware import node_budget as budget
from glidemq_orchestrate.worker.middleware.charging import call_and_charge


class BudgetExceeded(Exception):
    """The budget of a job's flow is spent."""


class Budget(Middleware):
    """Checks before a run whether the budget allows it, and charges what a job used when its handler returns.

    Args:
        run: Drives operations.
        queues: Keys by queue name.
        messenger: Sends the usage of a job, which must have arrived before it is charged.
    """

    def __init__(self, run: Run, queues: Mapping[str, QueueKeys], messenger: Messenger) -> None:
        self._run, self._queues, self._messenger = run, queues, messenger

    def applies_to(self, execution: Execution) -> bool:
        """Whether a job has a budget."""
        attempts = execution.attempts
        if len(attempts) == 1:
            return bool(attempts[0].budget_key)
        return any(attempt.budget_key for attempt in attempts)

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Run the handler while the budget lasts.

        Raises:
            RetryLater: It is spent, and its producer chose to wait. Costs no attempt.
            BudgetExceeded: It is spent.
        """
        key, verdict = execution.attempts[0].budget_key, "go"  # of a batch, the first one's decides
        with contextlib.suppress(GlideMQError):  # no reason to fail a job
            verdict = await self._run(budget.check(key)) if key else "go"
        if verdict == "pause":
            raise RetryLater(timedelta(milliseconds=budget.PAUSE_MS), "Budget exceeded", counts=False)
        if verdict == "fail":
            raise BudgetExceeded("Budget exceeded")
        return await call_and_charge(execution, proceed, self._charge)

    async def _charge(self, attempt: Attempt) -> None:
        """Charge what the job used; it is too late to refuse it."""
        if not attempt.budget_key:
            return
        await self._messenger.flush(attempt)
        queue = self._queues[attempt.queue]
        with contextlib.suppress(GlideMQError):
            await self._run(budget.charge(queue, attempt.job_id, attempt.budget_key))
