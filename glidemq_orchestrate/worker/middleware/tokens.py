"""A worker's rate limit by tokens: no run starts in a window whose tokens are spent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, duration, milliseconds
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.call import Run
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.middleware import Middleware, Proceed
from glidemq_orchestrate.worker.messenger import Messenger
from glidemq_orchestrate.worker.middleware import token_counters as ops
from glidemq_orchestrate.worker.middleware.charging import call_and_charge


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """No run starts once ``max_tokens`` are spent in a window of ``per``; it waits for the next.

    Counts what completed jobs used, as reported with ``ctx.report_usage`` or ``Queue.report_tokens``; so the
    jobs that run in a window may overspend it.

    Attributes:
        max_tokens: At least 1.
        per: At least a millisecond. Windows begin at multiples of it since the epoch.
        scope: Whose tokens count: those of all workers of the ``queue``, of this ``worker``, or ``both``.

    Raises:
        ConfigurationError: A value is not usable.
    """

    max_tokens: int
    per: Duration
    scope: Literal["queue", "worker", "both"] = "both"

    def __post_init__(self) -> None:
        """Refuse values that limit nothing."""
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise ConfigurationError(
                "token_limit.max_tokens must be a whole number of at least 1, "
                f"got {described(self.max_tokens)}"
            )
        object.__setattr__(self, "per", duration("token_limit.per", self.per, min_=MILLISECOND))
        if self.scope not in ("queue", "worker", "both"):
            raise ConfigurationError(
                f"token_limit.scope must be 'queue', 'worker' or 'both', got {described(self.scope)}"
            )


class Tokens(Middleware):
    """Holds runs back while too many tokens are spent, and counts what completed jobs used.

    Args:
        run: Drives operations.
        queues: Keys by queue name.
        limit: The limit.
        messenger: Sends the usage of a job, which must have arrived before it counts.
        clock: The current time.
    """

    def __init__(
        self, run: Run, queues: Mapping[str, QueueKeys], limit: TokenLimit, messenger: Messenger, clock: Clock
    ) -> None:
        self._run, self._queues, self._limit, self._messenger, self._clock = (
            run,
            queues,
            limit,
            messenger,
            clock,
        )
        self._length = milliseconds(limit.per)
        self._window, self._own = 0, 0

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        """Run the handler when a window has tokens left."""
        queue = self._queues[execution.attempts[0].queue]
        while await self._is_spent(queue, self._now()):
            left = self._length - self._clock.now_ms() % self._length
            await asyncio.sleep((left + 1) / 1000)
        return await call_and_charge(execution, proceed, self._charge)

    async def _charge(self, attempt: Attempt) -> None:
        """Count what the job used before its place is free: the next one checks what was spent."""
        queue = self._queues[attempt.queue]
        await self._messenger.flush(attempt)
        with contextlib.suppress(GlideMQError):  # the job is done: nothing is left to refuse
            tokens = await self._run(ops.used(queue, attempt.job_id))
            if tokens > 0:
                window = self._now()
                self._own += tokens
                await self._run(ops.charge(queue, window, tokens, self._length))

    def _now(self) -> int:
        window = self._clock.now_ms() // self._length
        if window != self._window:
            self._window, self._own = window, 0
        return window

    async def _is_spent(self, queue: QueueKeys, window: int) -> bool:
        """Whether the tokens of a window are spent, by this worker or by all of the queue."""
        most, scope = self._limit.max_tokens, self._limit.scope
        if scope != "queue" and self._own >= most:
            return True
        if scope == "worker":
            return False
        with contextlib.suppress(GlideMQError):  # no reason to hold a job back
            return await self._run(ops.spent(queue, window)) >= most
        return False
