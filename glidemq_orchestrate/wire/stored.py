"""Readers of stored numbers, times and JSON that never raise for any stored text. Pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from glidemq_orchestrate.wire.codec import Json, readable

MAX: Final = 2**53
_SAFE_DIGITS: Final = 15
"""Numbers of so many digits are below ``MAX``."""


def exact(text: str | None) -> int | None:
    """A count in the server's form: up to 15 digits; None for any other text. Absent and empty are 0."""
    if not text or text == "0":
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _SAFE_DIGITS else None


def number(value: object, default: int = 0) -> int:
    """A stored number without its fraction, clipped to -2^53 .. 2^53; ``default`` if it is not a number."""
    if type(value) is str and len(value) <= _SAFE_DIGITS and value.isdecimal():
        return int(value)  # nearly all of them
    if not value:
        return 0
    try:
        found = float(value)  # type: ignore[arg-type]  # what cannot be a number raises
        return int(max(min(found, MAX), -MAX))
    except (ValueError, TypeError, OverflowError):
        return default


def span(value: object) -> timedelta:
    """A stored number of milliseconds as a duration."""
    return timedelta(milliseconds=number(value))


def moment(text: str | None) -> datetime | None:
    """A stored time in ms since the epoch, as an aware datetime; None when absent or not a time."""
    if not text:
        return None
    try:
        return datetime.fromtimestamp(int(float(text)) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def parsed(text: str | None) -> Any:
    """Stored JSON, decoded; None if it is not valid."""
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def parsed_object(text: str | None) -> dict[str, Any]:
    """Stored JSON that should be an object; an empty one for anything else."""
    value = parsed(text)
    return value if isinstance(value, dict) else {}


def read_progress(text: str | None) -> Json:
    """Stored progress: decoded if it is JSON, else the text."""
    if not text:
        return None
    try:
        value: Json = json.loads(readable(text))
    except (ValueError, RecursionError):
        return readable(text)
    return value


def clipped_amount(value: object) -> float:
    """A number from the wire, made safe for sums: clipped to 0 .. 2^53; 0 if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return 0.0
    return float(min(value, MAX))


def as_time(now_ms: int) -> datetime:
    """Milliseconds since the epoch as an aware datetime."""
    return datetime.fromtimestamp(now_ms / 1000, UTC)
