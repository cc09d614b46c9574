"""msgpack, as ChasquiMQ writes it: integers, texts and binaries in their smallest form, floats in 8 bytes.

msgspec encodes and decodes. The connections carry texts: bytes that are not UTF-8 travel as escapes
(``surrogateescape``), which ``to_word`` and ``from_word`` convert without loss.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.errors import DecodeError, EncodeError
from glidemq_orchestrate.foundation.importing import importing

Packable: TypeAlias = "None | bool | int | float | str | bytes | Sequence[Packable] | Mapping[str, Packable]"
"""A value that can be packed: JSON values and bytes; tuples become lists."""

_SCALARS: Final = (type(None), bool, int, float, str, bytes)
_PLAIN: Final = frozenset(_SCALARS)
_TEXTS: Final = frozenset({str})
_ESCAPES: Final = "surrogateescape"


@functools.cache
def _msgspec() -> ModuleType:
    with importing():
        import msgspec.msgpack  # noqa: PLC0415  0.05 s, and DAG files are parsed often
    return msgspec


def pack(value: Packable, *, where: str) -> bytes:
    """Encode a value.

    Args:
        value: The value.
        where: Its owner, for the error: ``data of job clean``.

    Raises:
        EncodeError: It contains something other than None, numbers, texts, bytes, lists and maps whose keys
            are texts, or an integer of more than 64 bits.
    """
    try:
        data: bytes = _msgspec().msgpack.encode(value)
        _check(value)  # after it, since a value that contains itself has no end
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        cause = None if isinstance(exc, UnicodeError) else exc  # it contains the whole text
        raise EncodeError(f"{where} is not msgpack: {_problem(exc)}", where=where) from cause
    return data


def pack_slots(slots: Sequence[Packable], packed: int, *, where: str) -> bytes:
    """Encode a list of plain values; the one at ``packed`` is encoded already.

    Raises:
        EncodeError: It contains a text with a lone surrogate.
    """
    parts: list[Any] = list(slots)
    parts[packed] = _msgspec().Raw(parts[packed])
    try:
        data: bytes = _msgspec().msgpack.encode(parts)
    except UnicodeError as exc:
        raise EncodeError(f"{where} is not msgpack: {_problem(exc)}", where=where) from None
    return data


def unpack(data: bytes, *, where: str) -> Any:
    """Decode one value.

    Raises:
        DecodeError: It is not msgpack, or more than one value. The bytes are not part of the message.
    """
    return _decode(data, Any, where)


def raw_list(data: bytes, *, where: str) -> list[bytes]:
    """The items of a list, each still encoded.

    Raises:
        DecodeError: It is not a list.
    """
    return [bytes(item) for item in _decode(data, list[_msgspec().Raw], where)]  # type: ignore[misc]


def read_slots(data: bytes) -> tuple[str, bytes, int, int, Any] | None:
    """The slots of a job in its usual form, the second still encoded; None for any other form."""
    try:
        found = _usual(len(data) > 0 and data[0]).decode(data)
    except (_msgspec().DecodeError, ValueError, OverflowError, RecursionError):
        return None
    return found[0], bytes(found[1]), found[2], found[3], found[4] if len(found) > 4 else None


@functools.cache
def _usual(first: int) -> Any:
    """Decodes lists of four slots, or of five if they begin with this byte."""
    raw = _msgspec().Raw
    form = tuple[str, raw, int, int, Any] if first == 0x95 else tuple[str, raw, int, int]  # type: ignore[valid-type]
    return _msgspec().msgpack.Decoder(form)


def raw_map(data: bytes, *, where: str) -> dict[str, bytes]:
    """The values of a map, each still encoded.

    Raises:
        DecodeError: It is not a map whose keys are texts.
    """
    found = _decode(data, dict[str, _msgspec().Raw], where)  # type: ignore[misc]
    return {name: bytes(item) for name, item in found.items()}


def is_map(data: bytes) -> bool:
    """Whether the encoded value is a map."""
    return data[:1] in (b"\xde", b"\xdf") or b"\x80" <= data[:1] <= b"\x8f"


def to_word(data: bytes) -> str:
    """Bytes as a word of a call."""
    return data.decode(errors=_ESCAPES)


def from_word(text: str) -> bytes:
    """The bytes of a text that the server has sent."""
    return text.encode(errors=_ESCAPES)


def _decode(data: bytes, kind: Any, where: str) -> Any:
    msgspec = _msgspec()
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError, TypeError) as exc:
        raise DecodeError(f"{where} is not msgpack of the expected form") from exc


def _check(value: Any) -> None:
    """Refuse what msgspec would write in a form that readers of ChasquiMQ do not expect, such as times.

    Raises:
        TypeError: It contains such a value.
    """
    seen: list[Any] = [value]
    while seen:
        part = seen.pop()
        if isinstance(part, _SCALARS):
            continue
        if isinstance(part, dict):
            if _PLAIN.issuperset(map(type, part.values())) and _TEXTS.issuperset(map(type, part)):
                continue
            if odd := next((key for key in part if not isinstance(key, str)), None):
                raise TypeError(f"keys must be strings, not {type(odd).__name__}")
            seen.extend(part.values())
        elif isinstance(part, list | tuple):
            if not _PLAIN.issuperset(map(type, part)):
                seen.extend(part)
        else:
            raise TypeError(f"values of type {type(part).__name__} cannot be packed")


def _problem(exc: Exception) -> str:
    if isinstance(exc, RecursionError):
        return "it is nested too deeply, or contains itself"
    if isinstance(exc, UnicodeError):
        return "a text with a lone surrogate"
    if isinstance(exc, OverflowError):
        return "an integer of more than 64 bits"
    return str(exc)
