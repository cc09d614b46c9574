"""Charges what completed jobs used; of a batch only those that completed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.execution import Execution
from glidemq_orchestrate.worker.handlers.middleware import Proceed
from glidemq_orchestrate.worker.handlers.signals import BatchError


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
