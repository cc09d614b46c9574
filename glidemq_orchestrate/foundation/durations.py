"""Durations as users give them: a ``timedelta`` or seconds as a number; in files and settings also as text.

The text is ``PT5M`` or ``5m``; in settings, whose values are all text, also a number of seconds.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.foundation.texts import described

Duration: TypeAlias = timedelta | float
"""A length of time: a ``timedelta``, or seconds. Finite and not negative; kept to the millisecond."""

MILLISECOND: Final = timedelta(milliseconds=1)
_SHORT: Final = re.compile(
    r"(?:(?P<weeks>[\d.]+)w)?(?:(?P<days>[\d.]+)d)?(?:(?P<hours>[\d.]+)h)?(?:(?P<minutes>[\d.]+)m)?(?:(?P<seconds>[\d.]+)s)?"
    r"(?:(?P<milliseconds>[\d.]+)ms)?"
)
_ISO: Final = re.compile(
    r"P(?:(?P<weeks>[\d.]+)W)?(?:(?P<days>[\d.]+)D)?"
    r"(?:T(?:(?P<hours>[\d.]+)H)?(?:(?P<minutes>[\d.]+)M)?(?:(?P<seconds>[\d.]+)S)?)?"
)
_NUMBER: Final = re.compile(r"\d+(\.\d+)?|\.\d+")


def duration(
    name: str,
    value: object,
    *,
    min_: timedelta = timedelta(0),
    max_: timedelta = timedelta.max,
    error: type[GlideMQError] = ConfigurationError,
) -> timedelta:
    """The value as a duration; error messages name the argument.

    Raises:
        ConfigurationError, or ``error``: It is neither a ``timedelta`` nor a number of seconds, or it is not
            finite, negative, or out of bounds.
    """
    span = _span(name, value, error)
    if span < timedelta(0):
        raise error(f"{name} must not be negative, got {value}")
    # Compared as it is sent: in whole milliseconds.
    if milliseconds(span) < milliseconds(min_):
        raise error(f"{name} must be at least {duration_text(min_)}, got {value}")
    if span > max_:
        raise error(f"{name} must be at most {max_}, got {value}")
    return span


def _span(name: str, value: object, error: type[GlideMQError]) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        what = type(value).__name__ if value is not None else None
        meant = from_text(value) if isinstance(value, str) else None
        fix = "" if meant is None else f" {value!r}. Fix: {meant.total_seconds():g}"
        raise error(f"{name} must be a timedelta or a number of seconds, got {what}{fix}")
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


def duration_text(span: timedelta) -> str:
    """A bound in an error."""
    return "a millisecond" if span == MILLISECOND else str(span)


def span_text(span: Duration) -> str:
    """A duration in words, such as ``20 s`` or ``1 h 30 min``."""
    left, parts = milliseconds(span), list[str]()
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        count, left = divmod(left, size)
        parts += [f"{count} {unit}"] if count else []
    return " ".join([*parts, f"{left / 1000:g} s"] if left or not parts else parts)


def milliseconds(span: Duration) -> int:
    """Whole milliseconds of a duration, rounded."""
    return round(span / MILLISECOND) if isinstance(span, timedelta) else round(span * 1000)


def seconds(span: Duration) -> float:
    """Seconds of a duration."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def from_text(text: str) -> timedelta | None:
    """The duration of a text such as ``5m``, ``1.5h``, ``1h30m``, ``2w`` or ``PT5M``; None for any other."""
    found = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    parts = {unit: number for unit, number in found.groupdict().items() if number} if found else {}
    try:
        return timedelta(**{unit: float(number) for unit, number in parts.items()}) if parts else None
    except (ValueError, OverflowError):
        return None


def setting_duration(
    name: str,
    value: object,
    *,
    min_: timedelta = timedelta(0),
    max_: timedelta = timedelta.max,
    error: type[GlideMQError] = ConfigurationError,
) -> timedelta:
    """``duration`` of a setting, which may be text: ``30``, ``5m`` or ``PT5M``.

    Raises:
        ConfigurationError, or ``error``: It is not a duration, or out of bounds.
    """
    if not isinstance(value, str):
        return duration(name, value, min_=min_, max_=max_, error=error)
    text = value.strip()
    span = float(text) if _NUMBER.fullmatch(text) else from_text(text)
    if span is None:
        raise error(f"{name} must be a duration such as 30 (seconds), 5m or PT5M, got {described(value)}")
    return duration(name, span, min_=min_, max_=max_, error=error)
