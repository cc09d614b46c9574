"""The time limit of one run: ``JobOptions.timeout``, or that of the handler."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.middleware import Middleware, Proceed


class TimeLimit(Middleware):
    """Ends a run after its time limit; that of a batch is the longest of its jobs.

    Args:
        handlers: Their limits hold for jobs that have none of their own.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def applies_to(self, execution: Execution) -> bool:
        """Whether a job has a limit."""
        attempts = execution.attempts
        if self._limit_of_handler(execution) is not None:
            return True
        if len(attempts) == 1:  # the usual case, without a generator
            return attempts[0].options.timeout is not None
        return any(attempt.options.timeout for attempt in attempts)

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Wait for the handler until the time limit.

        Raises:
            TimeoutError: The limit has passed. A plain function still runs in its thread, with
                ``ctx.cancelled`` set.
        """
        default = self._limit_of_handler(execution)
        limits = (attempt.options.timeout or default for attempt in execution.attempts)
        limit = max(limit for limit in limits if limit)
        try:
            async with asyncio.timeout(limit.total_seconds()) as timer:
                return await proceed()
        except TimeoutError as exc:
            if not timer.expired():
                raise  # the handler's own
            for context in execution.contexts:
                context.cancelled.set()
            # With the place where an async handler was cancelled, for the log of its job.
            raise TimeoutError(f"still running after {limit}") from exc.__cause__

    def _limit_of_handler(self, execution: Execution) -> timedelta | None:
        registered = self._handlers.get(execution.attempts[0].name)
        return registered.timeout if registered else None
