"""The outcomes of attempts: what a worker reports after a handler returned or raised. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.errors import EncodeError
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.foundation.names import short_reason
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.option_values import MAX_DELAY_MS, delay_ms
from glidemq_orchestrate.wire.codec import JsonLike, encode
from glidemq_orchestrate.worker.handlers.registered import BackoffStrategy
from glidemq_orchestrate.worker.handlers.signals import (
    RetryLater,
    Skip,
    Suspend,
    Unrecoverable,
    WaitForChildren,
)
from glidemq_orchestrate.worker.handlers.tracebacks import text_of


def outcome_of_value(attempt: Attempt, value: JsonLike, random: float) -> Outcome:
    """The outcome of a handler that returned; a value that is not valid JSON is a failure."""
    try:
        text = "null" if value is None else encode(value, where=f"result of job {attempt.name}")
    except EncodeError as exc:
        return outcome_of_error(attempt, exc, random)
    return Outcome(attempt, Kind.DONE, text, attempt.options.remove_on_complete)


def outcome_of_error(
    attempt: Attempt,
    error: BaseException,
    random: float,
    *,
    now_ms: int = 0,
    backoffs: Mapping[str, BackoffStrategy] | None = None,
) -> Outcome:
    """The outcome of a handler that raised."""
    options, text = attempt.options, text_of(error)
    if isinstance(error, Unrecoverable):
        return _failed(attempt, text or "Unrecoverable", 0, 0)
    if isinstance(error, RetryLater):
        wait = milliseconds(error.delay)
        if not error.counts:
            return Outcome(attempt, Kind.LATER, first=now_ms + wait)
        return _failed(attempt, text, options.attempts, wait)
    if isinstance(error, Skip | WaitForChildren | Suspend):
        return _parked(attempt, error, text)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    strategy = (backoffs or {}).get(options.backoff_name)
    failures = attempt.attempts_made + 1
    try:
        wait = (
            min(max(milliseconds(strategy(failures, error)), 0), MAX_DELAY_MS)
            if strategy
            else delay_ms(options.backoff, failures, random)
        )
    except BaseException as exc:  # noqa: BLE001  user code, called with a user error
        wait, reason = 0, f"{reason} (and backoff {options.backoff_name!r} raised {type(exc).__name__})"
    return _failed(attempt, reason, options.attempts, wait)


def _parked(attempt: Attempt, error: Skip | WaitForChildren | Suspend, text: str) -> Outcome:
    """The outcome of a handler that raised a signal that is no failure."""
    if isinstance(error, Skip):
        return Outcome(attempt, Kind.SKIP, short_reason(text), attempt.options.remove_on_complete)
    if isinstance(error, WaitForChildren):
        return Outcome(attempt, Kind.CHILDREN)
    return Outcome(
        attempt, Kind.SUSPEND, short_reason(text), first=milliseconds(error.timeout or timedelta(0))
    )


def unknown_handler(attempt: Attempt, known: list[str]) -> Outcome:
    """The failure of a job whose name has no handler in this worker."""
    text = f"no handler for job {attempt.name!r} in this worker (known: {', '.join(known) or 'none'})"
    return refuse(attempt, f"HandlerNotFound: {text}")


def refuse(attempt: Attempt, reason: str) -> Outcome:
    """The final failure of a job: no further attempt runs."""
    return _failed(attempt, reason, 0, 0)


def _failed(attempt: Attempt, reason: str, attempts: int, backoff_ms: int) -> Outcome:
    return Outcome(
        attempt, Kind.FAIL, short_reason(reason), attempt.options.remove_on_fail, attempts, backoff_ms
    )
