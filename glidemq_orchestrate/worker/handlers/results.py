"""The results of handlers as JSON, and the error for a result that is not JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, time, timedelta
from inspect import isawaitable
from numbers import Number
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from glidemq_orchestrate.errors import EncodeError, PayloadTooLarge
from glidemq_orchestrate.foundation.texts import shown_path
from glidemq_orchestrate.wire.codec import encode

REMEDY: Final = "Write data to a file or a table and return its location"
_BY_STR: Final = "Convert it by str(...)"
_DEEPEST: Final = 100


def encode_result(result: Any, *, where: str) -> str:
    """Encode the result of a handler.

    Raises:
        EncodeError: It is not JSON. The message names the place and the type, and how to convert the value.
        PayloadTooLarge: As ``encode``.
    """
    try:
        return encode(result, where=where)
    except PayloadTooLarge:
        raise
    except EncodeError as exc:
        raise EncodeError(why_not_json(exc, result, REMEDY), where=where) from exc


def why_not_json(refused: EncodeError, result: Any, remedy: str) -> str:
    """The message about a result that was refused; it ends with a conversion, or with the remedy."""
    found = _not_json(result)
    if found is None:
        return str(refused) if ". Fix: " in str(refused) else f"{refused}. {remedy}"
    place, value, conversion = found
    return f"{refused.where} is not JSON: {place} is of type {_kind(value)}. {conversion or remedy}"


def _not_json(value: Any, place: Sequence[object] = ()) -> tuple[str, Any, str] | None:
    """The first part of a result that is not JSON: place, value, conversion; None if there is none."""
    if value is None or isinstance(value, str | int | float) or len(place) > _DEEPEST:
        return None
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                return f"a key{_of(place)}", key, _BY_STR
            if found := _not_json(part, [*place, key]):
                return found
        return None
    if isinstance(value, list | tuple):
        parts = (_not_json(part, [*place, number]) for number, part in enumerate(value))
        return next((found for found in parts if found), None)
    return f"the value at {shown_path(place)}" if place else "it", value, _conversion(value)


def _of(place: Sequence[object]) -> str:
    return f" of {shown_path(place)}" if place else ""


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _conversion(value: object) -> str:
    """How to convert a value to JSON; empty if that needs more than a line of code."""
    if _is_missing(value):
        return "Replace it with None"
    if isawaitable(value):
        return "Await it"
    if isinstance(value, Number):  # of numpy, pandas or decimal
        return "Convert it by int(...), float(...) or str(...)"
    if isinstance(value, date | time | timedelta | PurePath | UUID):  # a datetime is a date
        return _BY_STR
    if isinstance(value, set | frozenset):
        return "Convert it by sorted(...)"
    is_single = getattr(value, "shape", None) == () and hasattr(value, "item")  # of numpy
    return "Convert it by .item() or str(...)" if is_single else ""


def _is_missing(value: object) -> bool:
    """Whether it stands for a missing value in numpy, pandas or decimal."""
    is_nan = isinstance(value, Number) and bool(value != value)  # noqa: PLR0124  as of any library
    return is_nan or type(value).__name__ in {"NAType", "NaTType"}
