"""Payloads as people see them: as text, cut where it is long, with what looks like a secret masked."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Final

MAX_SHOWN: Final = 20_000
MASK: Final = "***"
_SECRET: Final = re.compile(
    r"(pass(word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credential|authorization"
    r"|auth|cookie|dsn|connection[-_]?string)s?\Z",
    re.IGNORECASE,
)
# Begins at the colon, so that it takes no longer than the text is long.
_IN_URL: Final = re.compile(r"(?P<before>://[^\s/:@]*:)(?P<secret>[^\s/@]+)(?=@)")


def shown(value: Any, *, whole: bool = False) -> dict[str, Any]:
    """A JSON value for the page.

    Returns:
        ``text``, its ``size`` in characters, whether it ``is_cut``, and how many values are ``masked``.
    """
    masked, count = masked_value(value)
    text = json.dumps(masked, indent=2, ensure_ascii=False)
    is_cut = len(text) > MAX_SHOWN and not whole
    return {
        "text": text[:MAX_SHOWN] if is_cut else text,
        "size": len(text),
        "is_cut": is_cut,
        "masked": count,
    }


def masked_value(value: Any) -> tuple[Any, int]:
    """The value with masks instead of secrets, and how many there are.

    Masked are the values of keys whose names end like those of secrets, and passwords in URLs.
    """
    if isinstance(value, dict):
        found, total = {}, 0
        for key, one in value.items():
            is_secret = _SECRET.search(str(key)) and one not in (None, "", True, False)
            found[key], count = (MASK, 1) if is_secret else masked_value(one)
            total += count
        return found, total
    if isinstance(value, list):
        pairs = [masked_value(one) for one in value]
        return [one for one, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, str):
        return _IN_URL.subn(rf"\g<before>{MASK}", value)
    return value, 0


def masked_line(text: str) -> str:
    """A line of a log or a reason, without passwords in URLs."""
    return _IN_URL.sub(rf"\g<before>{MASK}", text)


def time_text(at: datetime | None) -> str | None:
    """A time as the page reads it."""
    return (
        None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
