"""Checks of numbers, durations and names; errors name the option."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.errors import (
    GlideMQError,
    InvalidJob,
    PayloadTooLarge,
)
from glidemq_orchestrate.foundation.durations import duration
from glidemq_orchestrate.foundation.names import NameRule, described
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES

MAX_DURATION: Final = timedelta(days=10_000)  # scores of waiting jobs have 42 bits for a time in ms


MAX_EXAMINED: Final = 100_000
"""How many jobs a search or count reads at most by default."""


def whole(
    name: str, value: object, min_: int, max_: int | None = None, *, error: type[GlideMQError] = InvalidJob
) -> None:
    """Refuse a value that is not a whole number within the bounds; the message names the option.

    Raises:
        InvalidJob, or ``error``: The value is refused.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < min_:
        raise error(f"{name} must be a whole number of at least {min_}, got {described(value)}")
    if value > (2**53 if max_ is None else max_):
        raise error(f"{name} must be at most {2**53 if max_ is None else max_}, got {described(value)}")


def amount(name: str, value: object, *, min_: float = 0.0) -> None:
    """Refuse a value that is not a finite number of at least ``min_``.

    Raises:
        InvalidJob: The value is refused.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not min_ <= value <= 2**40:
        raise InvalidJob(f"{name} must be a number from {min_:g} to {2**40}, got {described(value)}")


def lasting(
    name: str,
    value: object,
    *,
    min_: timedelta = timedelta(0),
    max_: timedelta = MAX_DURATION,
    error: type[GlideMQError] = InvalidJob,
) -> timedelta:
    """``duration`` within what a job can have.

    Raises:
        InvalidJob, or ``error``: The value is refused.
    """
    return duration(name, value, min_=min_, max_=max_, error=error)


def named(name: str, value: object) -> None:
    """Refuse a value that is not a string of 1 to 256 characters.

    Raises:
        InvalidJob: The value is refused.
    """
    NameRule(name, InvalidJob).check(value)


def milli(value: float) -> int:
    """Thousandths, the unit of tokens and costs on the wire; halves are rounded up, as in glide-mq."""
    return math.floor(value * 1000 + 0.5)


def check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise InvalidJob(f"{what} must be a text, got {type(text).__name__}")
    if len(text.encode(errors="surrogatepass")) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"{what} is longer than {MAX_PAYLOAD_BYTES:,} bytes", where=what)
