"""The rate limit by tokens: checked before a run, charged after it with the usage of the job."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate._ops.queue.usage import usage_of
from glidemq_orchestrate._protocol.queue import token_limit as calls
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys


def spent(queue: QueueKeys, window: int) -> Op[int]:
    """Tokens that all workers of the queue have spent in a window."""
    return (yield from ask(calls.spent(queue, window)))


def used(queue: QueueKeys, job_id: str) -> Op[int]:
    """Tokens of a completed job: its usage, or the tokens reported for the limit if those are more."""
    usage = yield from usage_of(queue, job_id)
    total = usage.to_wire().get("totalTokens", 0) if usage is not None else 0
    return max(round(total), (yield from ask(calls.reported(queue, job_id))))


def charge(queue: QueueKeys, window: int, tokens: int, length_ms: int) -> Op[None]:
    """Count tokens in a window. Not repeatable; a kill in between leaves a counter that expires."""
    todo: list[Call[Any]] = [
        calls.begin(queue, window, length_ms),
        calls.spend(queue, window, tokens),
        calls.forget_after(queue, window, length_ms),
    ]
    yield from ask_all(todo)
