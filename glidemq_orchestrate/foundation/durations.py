"""Durations as users give them: a ``timedelta`` or seconds as a number; in files also ``PT5M`` and ``5m``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.foundation.names import described

Duration: TypeAlias = timedelta | float
"""A length of time: a ``timedelta``, or seconds. Finite and not negative; kept to the millisecond."""

MILLISECOND: Final = timedelta(milliseconds=1)
_SHORT: Final = re.compile(r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS: Final = ("days", "hours", "minutes", "seconds", "milliseconds")


def duration(
    name: str,
    value: object,
    *,
    min_: timedelta = timedelta(0),
    max_: timedelta = timedelta.max,
    error: type[GlideMQError] = ConfigurationError,
) -> timedelta:
    """The duration that a value stands for; the message of an error has the name of the argument.

    Raises:
        ConfigurationError, or ``error``: It is neither a ``timedelta`` nor a number of seconds, or it is not
            finite, negative, or out of bounds.
    """
    span = _span(name, value, error)
    if span < timedelta(0):
        raise error(f"{name} must not be negative, got {value}")
    # Compared as it is sent: in whole milliseconds.
    if milliseconds(span) < milliseconds(min_):
        raise error(f"{name} must be at least {shown(min_)}, got {value}")
    if span > max_:
        raise error(f"{name} must be at most {max_}, got {value}")
    return span


def _span(name: str, value: object, error: type[GlideMQError]) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        what = type(value).__name__ if value is not None else None
        raise error(f"{name} must be a timedelta or a number of seconds, got {what}")
    try:
        if not math.isfinite(value):
            raise error(f"{name} must be finite, got {value}")
        return timedelta(seconds=value)
    except OverflowError as exc:
        raise error(f"{name} must be at most {timedelta.max.days} days, got {described(value)}") from exc


def optional_duration(
    name: str,
    value: object,
    *,
    min_: timedelta = timedelta(0),
    max_: timedelta = timedelta.max,
    error: type[GlideMQError] = ConfigurationError,
) -> timedelta | None:
    """``duration``, or None for None."""
    return None if value is None else duration(name, value, min_=min_, max_=max_, error=error)


def shown(span: timedelta) -> str:
    """A bound in an error."""
    return "a millisecond" if span == MILLISECOND else str(span)


def milliseconds(span: Duration) -> int:
    """Whole milliseconds of a duration, rounded."""
    return round(span / MILLISECOND) if isinstance(span, timedelta) else round(span * 1000)


def seconds(span: Duration) -> float:
    """Seconds of a duration."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def from_text(text: str) -> timedelta | None:
    """The duration of a text such as ``5m``, ``1.5h``, ``1h30m`` or ``250ms``; None for any other text."""
    found = _SHORT.fullmatch(text)
    if not text or found is None:
        return None
    try:
        parts = {unit: float(number) for unit, number in zip(_UNITS, found.groups(), strict=True) if number}
        return timedelta(**parts)
    except (ValueError, OverflowError):
        return None
