"""Digests of arguments and results: equal for equal values, which cannot be read or guessed from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

MAX_LEAVES: Final = 1000
_BY_REPR: Final = (
    str, int, float, complex, bool, bytes, bytearray, type(None), date, time, timedelta, Decimal, Fraction,
    Enum, PurePath, UUID,
)  # fmt: skip


def digest(value: Any, salt: str) -> str:
    """The digest of a value. Of other objects than plain values only the type counts."""
    return hashlib.blake2b(
        _text(value).encode(errors="replace"), key=salt.encode(), digest_size=6
    ).hexdigest()


def leaves(value: Any, salt: str) -> dict[str, str]:
    """Digests of the parts of a result by path; a single one for the whole if there are more than 1,000."""
    found: dict[str, str] = {}
    for path, leaf in _walk(value, "$"):
        found[path] = digest(leaf, salt)
        if len(found) > MAX_LEAVES:
            return {"$": digest(value, salt)}
    return found


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name in value:
            yield from _walk(value[name], f"{path}.{name}")
    elif isinstance(value, list | tuple) and value:
        for at, item in enumerate(value):
            yield from _walk(item, f"{path}[{at}]")
    else:
        yield path, value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{_text(name)}:{_text(item)}" for name, item in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, AbstractSet):
        return "(" + ",".join(sorted(map(_text, value))) + ")"
    return repr(value) if isinstance(value, _BY_REPR) else f"<{type(value).__qualname__}>"
