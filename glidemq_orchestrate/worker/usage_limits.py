"""Middleware for the budgets of flows and the token limits of queues: delays jobs, counts usage."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, duration, milliseconds
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.usage import usage_of
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Run, ask, ask_all, command, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number, parsed_object
from glidemq_orchestrate.worker.handlers.middleware import Execution, Middleware, Proceed
from glidemq_orchestrate.worker.handlers.signals import BatchError, RetryLater
from glidemq_orchestrate.worker.messenger import Messenger

PAUSE_MS: Final = 86_400_000
"""How long a job waits if its budget is spent."""


async def call_and_charge(
    execution: Execution, proceed: Proceed, charge: Callable[[Attempt], Awaitable[None]]
) -> Any:
    """Call the handler, and charge the completed jobs before their place is free."""
    try:
        value = await proceed()
    except BatchError as exc:
        await _charge(execution, exc.results, charge)
        raise
    await _charge(execution, value, charge)
    return value


async def _charge(execution: Execution, value: Any, charge: Callable[[Attempt], Awaitable[None]]) -> None:
    attempts = execution.attempts
    is_each = isinstance(value, list | tuple) and len(value) == len(attempts)
    for attempt, result in zip(attempts, value if is_each else [value] * len(attempts), strict=True):
        if not isinstance(result, BaseException):
            await charge(attempt)


def check_budget(budget_key: str) -> Call[str]:
    """``ok``, ``exceeded`` or ``no_budget``."""
    return function("glidemq_checkBudget", [budget_key], (), replies.text)


def budget_fields(budget_key: str, *names: str) -> Call[list[str | None]]:
    """Fields of a budget."""
    return command("HMGET", budget_key, *names, decode=list)


def record_usage(  # noqa: PLR0913, PLR0917  the arguments of one server call
    budget_key: str, tokens: str, costs: str, weighted: float, cost: float, max_tokens: str, max_costs: str
) -> Call[str]:
    """Add usage to a budget. Not repeatable."""
    args = (tokens, costs, weighted, cost, max_tokens, max_costs)
    return function("glidemq_recordUsageAndCheckBudget", [budget_key], args, replies.text)


def check(budget_key: str) -> Op[Literal["go", "fail", "pause"]]:
    """Whether a job of this budget may run; otherwise the action that its producer chose."""
    if (yield from ask(check_budget(budget_key))) != "exceeded":
        return "go"
    (choice,) = yield from ask(budget_fields(budget_key, "onExceeded"))
    return "pause" if choice == "pause" else "fail"


def charge_budget(queue: QueueKeys, job_id: str, budget_key: str) -> Op[None]:
    """Charge the usage of a completed job. Not repeatable: a second charge counts again."""
    usage = yield from usage_of(queue, job_id)
    if usage is None:
        return
    wire = usage.to_wire()
    tokens, costs = wire.get("tokens", {}), wire.get("costs", {})
    fields = yield from ask(budget_fields(budget_key, "tokenWeights", "maxTokens", "maxCosts"))
    weights, max_tokens, max_costs = (text or "{}" for text in fields)
    weighted = _weighted(tokens, weights) or wire.get("totalTokens", 0)
    yield from ask(
        record_usage(
            budget_key,
            json.dumps(tokens),
            json.dumps(costs),
            weighted,
            wire.get("totalCost", 0),
            max_tokens,
            max_costs,
        )
    )


def _weighted(tokens: Mapping[str, float], weights: str) -> float:
    """The sum of tokens times weight; a weight that is missing, negative or not a number is 1."""
    known = parsed_object(weights)

    def weight(category: str) -> float:
        value = known.get(category)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value)
        return 1.0

    return sum(count * weight(category) for category, count in tokens.items())


class BudgetExceeded(Exception):
    """The budget of a job's flow is spent."""


class Budget(Middleware):
    """Checks the budget before each run, and charges the usage of the job when its handler returns.

    Args:
        run: Drives operations.
        queues: Keys by queue name.
        messenger: Sends the usage of a job, which must reach the server before it is charged.
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
            RetryLater: The budget is spent, and its producer chose to wait. Costs no attempt.
            BudgetExceeded: The budget is spent.
        """
        key, verdict = execution.attempts[0].budget_key, "go"  # for a batch, the budget of its first job
        with contextlib.suppress(GlideMQError):  # no reason to fail a job
            verdict = await self._run(check(key)) if key else "go"
        if verdict == "pause":
            raise RetryLater(timedelta(milliseconds=PAUSE_MS), "Budget exceeded", counts=False)
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
            await self._run(charge_budget(queue, attempt.job_id, attempt.budget_key))


def counter(queue: QueueKeys, window: int) -> Call[int]:
    """Tokens that all workers of the queue have spent in a window."""
    return command("GET", queue.tokens(window), decode=number)


def begin(queue: QueueKeys, window: int, length_ms: int) -> Call[bool]:
    """Create the counter of a window, with an expiry, unless it exists. Repeatable."""
    return command("SET", queue.tokens(window), 0, "PX", length_ms, "NX", decode=bool)


def spend(queue: QueueKeys, window: int, tokens: int) -> Call[int]:
    """Count tokens; not repeatable."""
    return command("INCRBY", queue.tokens(window), tokens, decode=replies.integer)


def forget_after(queue: QueueKeys, window: int, length_ms: int) -> Call[int]:
    """Set the expiry of the counter, since a Node worker may create it without one. Repeatable."""
    return command("PEXPIRE", queue.tokens(window), length_ms, decode=replies.integer)


def reported(queue: QueueKeys, job_id: str) -> Call[int]:
    """Tokens that ``report_tokens`` reported, for this limit only."""
    return job_hash.get(queue, job_id, "tpmTokens", number)


def spent(queue: QueueKeys, window: int) -> Op[int]:
    """Tokens that all workers of the queue have spent in a window."""
    return (yield from ask(counter(queue, window)))


def used(queue: QueueKeys, job_id: str) -> Op[int]:
    """Tokens of a completed job: its usage, or the tokens reported for the limit, whichever is more."""
    usage = yield from usage_of(queue, job_id)
    total = usage.to_wire().get("totalTokens", 0) if usage is not None else 0
    return max(round(total), (yield from ask(reported(queue, job_id))))


def charge_tokens(queue: QueueKeys, window: int, tokens: int, length_ms: int) -> Op[None]:
    """Count tokens in a window. Not repeatable; after a kill between its calls, the counter still expires."""
    todo: list[Call[Any]] = [
        begin(queue, window, length_ms),
        spend(queue, window, tokens),
        forget_after(queue, window, length_ms),
    ]
    yield from ask_all(todo)


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """Delays runs to the next window once ``max_tokens`` are spent in a window of ``per``.

    Counts the usage of completed jobs, from ``ctx.report_usage`` or ``Queue.report_tokens``. So the jobs that
    run in a window may exceed the limit.

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
    """Delays runs while too many tokens are spent, and counts the usage of completed jobs.

    Args:
        run: Drives operations.
        queues: Keys by queue name.
        limit: The limit.
        messenger: Sends the usage of a job, which must reach the server before it counts.
        clock: The current time.
    """

    def __init__(
        self, run: Run, queues: Mapping[str, QueueKeys], limit: TokenLimit, messenger: Messenger, clock: Clock
    ) -> None:
        self._run, self._queues, self._messenger, self._clock = run, queues, messenger, clock
        self._limit = limit
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
        """Count what the job used before its place is free: the next job checks the total."""
        queue = self._queues[attempt.queue]
        await self._messenger.flush(attempt)
        with contextlib.suppress(GlideMQError):  # the job is done: nothing is left to refuse
            tokens = await self._run(used(queue, attempt.job_id))
            if tokens > 0:
                window = self._now()
                self._own += tokens
                await self._run(charge_tokens(queue, window, tokens, self._length))

    def _now(self) -> int:
        window = self._clock.now_ms() // self._length
        if window != self._window:
            self._window, self._own = window, 0
        return window

    async def _is_spent(self, queue: QueueKeys, window: int) -> bool:
        """Whether the tokens of a window are spent, by this worker or by all of the queue."""
        max_, scope = self._limit.max_tokens, self._limit.scope
        if scope != "queue" and self._own >= max_:
            return True
        if scope == "worker":
            return False
        with contextlib.suppress(GlideMQError):  # no reason to delay a job
            return await self._run(spent(queue, window)) >= max_
        return False
