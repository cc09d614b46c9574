"""Payloads as people see them: as text, cut where it is long, with what looks like a secret masked."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Final

MAX_SHOWN: Final = 20_000
MASK: Final = "***"
_NAMES: Final = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret(?:[-_]?(?:string|value))?|token|jwt|credential|authorization|auth|cookie"
    r"|dsn|connection[-_]?string|signature|(?:api|access|private|secret|signing|encryption|account|master)[-_]?key)s?"
)
_SECRET: Final = re.compile(rf"{_NAMES}\Z", re.IGNORECASE)
_IN_TEXT: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Begins at the colon, so that it takes no longer than the text is long.
        r"(?P<before>://[^\s/:@]*:)[^\s/]+(?=@)",
        rf"(?P<before>{_NAMES}=)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s&;,\"'<>]+)",
        rf"(?P<before>{_NAMES}\\*[\"']\s*:\s*\\*[\"'])[^\"'\\\n]+",
        r"(?P<before>authorization\\*[\"']?\s*[:,]\s*\\*[\"']?(?:(?:basic|bearer|token)\s+)?)[^\s\"'\\,;]+",
        r"(?P<before>\bbearer\s+)(?=\S*[\d._~+/=-])[^\s\"'\\,;]{8,}",
    )
)
_PAIR: Final = 2
_NAMED: Final = ("name", "key", "Name", "Key")
_VALUES: Final = ("value", "Value")


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

    Masked are the values of keys whose names end like those of secrets, also where a name and its value are a
    pair in a list, and what ``masked_line`` masks in texts.
    """
    if isinstance(value, dict):
        is_named = any(_is_name(value.get(key)) for key in _NAMED)
        found, total = {}, 0
        for key, one in value.items():
            is_secret = _is_name(key) or (is_named and key in _VALUES)
            found[key], count = _masked(one) if is_secret else masked_value(one)
            total += count
        return found, total
    if isinstance(value, list):
        pairs = [_masked_pair(one) if _is_pair(one) else masked_value(one) for one in value]
        return [one for one, _ in pairs], sum(count for _, count in pairs)
    return _masked_text(value) if isinstance(value, str) else (value, 0)


def masked_line(text: str) -> str:
    """A line of a log or a reason, without passwords in URLs, ``password=...``, and headers of logins."""
    return _without_secrets(text)[0]


def _is_name(text: Any) -> bool:
    """Whether a key has the name of a secret."""
    return isinstance(text, str) and _SECRET.search(text) is not None


def _is_pair(value: Any) -> bool:
    """Whether this is a name and a secret, as in lists of headers."""
    return isinstance(value, list) and len(value) == _PAIR and _is_name(value[0])


def _masked_pair(pair: list[Any]) -> tuple[Any, int]:
    secret, count = _masked(pair[1])
    return [pair[0], secret], count


def _masked(secret: Any) -> tuple[Any, int]:
    """A mask, unless there is nothing to hide."""
    return (secret, 0) if secret in (None, "", True, False) else (MASK, 1)


def _masked_text(text: str) -> tuple[str, int]:
    """A text of a payload, which may be JSON itself."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            inner, count = masked_value(json.loads(text))
        except (ValueError, RecursionError):
            count = 0
        if count:
            return json.dumps(inner, ensure_ascii=False), count
    return _without_secrets(text)


def _without_secrets(text: str) -> tuple[str, int]:
    total = 0
    for pattern in _IN_TEXT:
        text, count = pattern.subn(rf"\g<before>{MASK}", text)
        total += count
    return text, total


def time_text(at: datetime | None) -> str | None:
    """A time as the page reads it."""
    return (
        None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
