"""What is charged of a batch: the jobs that completed, however the handler reports the others."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.middleware import Execution
from glidemq_orchestrate.worker.handlers.signals import BatchError
from glidemq_orchestrate.worker.usage_limits import call_and_charge

BATCHES: list[tuple[Any, int, list[str]]] = [
    ("done", 1, ["0"]),
    ([1, 2], 1, ["0"]),
    ([1, ValueError(), 3], 3, ["0", "2"]),
    (BatchError([1, ValueError(), 3]), 3, ["0", "2"]),
    (ValueError(), 2, []),
]


async def charged(value: Any, count: int) -> list[str]:
    attempts = [Attempt.from_wire("etl", "", "", {"id": str(number)}) for number in range(count)]
    found: list[str] = []

    async def proceed() -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    async def charge(attempt: Attempt) -> None:
        found.append(attempt.job_id)

    call = call_and_charge(Execution(attempts, 0.0), proceed, charge)
    if isinstance(value, BaseException):
        with pytest.raises(type(value)):
            await call
    else:
        assert await call == value
    return found


async def test_only_completed_jobs_are_charged(subtests: pytest.Subtests) -> None:
    for value, count, expected in BATCHES:
        with subtests.test(value=value):
            assert await charged(value, count) == expected
