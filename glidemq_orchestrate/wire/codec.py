"""Payloads on the wire: compact JSON, at most 1 MiB, and glide-mq's optional gzip form when reading.

msgspec encodes and decodes. Where it could differ from Python's ``json``, ``json`` is used instead, so output
and errors are those of ``json``.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.errors import DecodeError, EncodeError, PayloadTooLarge
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.texts import shown_path

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
"""A decoded value."""
JsonLike: TypeAlias = "None | bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike]"
"""A value that can be encoded: also a ``dict[str, int]``, which is not a ``dict[str, Json]``."""

MAX_PAYLOAD_BYTES = 1_048_576
_GZIP_MARK = "gz:"
# json.dumps makes an encoder for each call that differs from its defaults.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_SORTING_ENCODER = json.JSONEncoder(sort_keys=True)
# msgspec writes 1e16 and 0.00001, json 1e+16 and 1e-05. The pattern begins with a letter to match fast.
_EXPONENT: Final = re.compile(r"e(?<=[0-9]e)[-+]?[0-9]+(?:[,\]}]|$)")
_TINY: Final = "0.0000"
_EXACT: Final = frozenset({str, int, bool, type(None)})
_SCALARS: Final = _EXACT | {float}
_NONE, _FLOATS, _OTHER = 0, 1, 2  # bits of ``_doubt``
_MANY: Final = 20
"""Of so many values or more, ``map`` finds the types faster than a loop."""


def encode(value: JsonLike, *, where: str) -> str:
    """Encode a value as the compact JSON text that glide-mq stores.

    Args:
        value: Any JSON value; tuples become lists. No NaN, no infinity, only string keys.
        where: The owner of the value, for the error: ``node clean``, ``result of job 7``.

    Raises:
        EncodeError: The value is not JSON.
        PayloadTooLarge: More than 1,048,576 bytes of UTF-8 once encoded.
    """
    text = _encoded_fast(value)
    try:
        if text is None:
            text = _ENCODER.encode(value)
            if isinstance(value, dict | list | tuple):
                _check_keys(value)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as exc:
        cause = None if isinstance(exc, UnicodeError) else exc  # it contains the whole text
        raise EncodeError(f"{where} is not JSON: {_message(exc, value)}", where=where) from cause
    if size > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(
            f"{where} is {size:,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}. "
            "Fix: write the data to a file, table or object store and pass its location",
            where=where,
        )
    return text


def encode_each(values: Sequence[JsonLike], *, where: str) -> list[str]:
    """``encode`` of each value; an error has its position. Much faster for many small values."""
    if isinstance(values, list | tuple) and _encoded_fast(values) is not None:
        texts = [_write(value).decode() for value in values]
        if max(map(len, texts), default=0) * 4 <= MAX_PAYLOAD_BYTES:
            return texts
    return [encode(value, where=f"{where} {at}") for at, value in enumerate(values)]


def decode(text: str | None, *, where: str) -> Json:
    """Decode stored JSON; an absent or empty text is ``None``. Unpacks glide-mq's ``gz:`` form.

    Raises:
        DecodeError: The text is not UTF-8, not JSON, or unpacks to more than 1 MiB.
    """
    if not text:
        return None
    if not text.isascii() and not is_utf8(text):
        raise DecodeError(f"{where} is not UTF-8")
    try:
        value = _loads(_unpack(text) if text.startswith(_GZIP_MARK) else text)
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as exc:
        raise DecodeError(f"{where} is not JSON: {type(exc).__name__}") from exc
    return value


def texts(values: Iterable[str]) -> str:
    """A list of texts, exactly as ``json.dumps`` encodes it, in a fraction of the time."""
    return f"[{', '.join(map(quoted, values))}]"


quoted = encode_basestring_ascii
"""A text as ``json.dumps`` encodes it."""


def compact_texts(values: Iterable[str]) -> str:
    """Texts as ``encode`` encodes them, separated by commas: the inside of a list."""
    return ",".join(map(encode_basestring, values))


def with_sorted_keys(data: str) -> str:
    """Valid JSON as ``json.dumps(..., sort_keys=True)`` encodes it."""
    if _is_plain(data):
        try:
            text = _spaced(_write_sorted(_read(data)), indent=0).decode()
            if not _has_exponent(text):
                return text
        except Exception:  # noqa: BLE001, S110  json decides
            pass
    return _SORTING_ENCODER.encode(_loads(data))


def with_sorted_keys_of(value: JsonLike, data: str) -> str:
    """The same of a value whose encoded form is ``data``, in less time."""
    if _is_plain(data) and not _has_exponent(data):
        try:
            text = _write_sorted(value)
            if len(text) == len(data):  # else json writes the value otherwise
                return _spaced(text, indent=0).decode()
        except Exception:  # noqa: BLE001, S110  json decides
            pass
    return with_sorted_keys(data)


def _is_plain(data: str) -> bool:
    """Whether the text has nothing that json escapes and msgspec does not."""
    return data.isascii() and "\\u" not in data and "\x7f" not in data


def _encoded_fast(value: JsonLike) -> str | None:
    """The value encoded by msgspec; None if ``json`` must encode or refuse it."""
    try:
        text = _write(value).decode()
        doubt = _doubt(value)
        if doubt == _NONE:
            return text
        if doubt != _FLOATS or _has_exponent(text):
            return None
        return None if "null" in text and _read(text) != value else text  # NaN becomes null, too
    except Exception:  # noqa: BLE001  json reports the error, if there is one
        return None


def _has_exponent(text: str) -> bool:
    """Whether msgspec may have written a float otherwise than ``json``."""
    return _TINY in text or _EXPONENT.search(text) is not None


def _doubt(value: Any) -> int:
    """Why ``json`` may encode the value otherwise: it has floats, or types other than exact JSON types.

    It must not be circular. Written for small values: most types are checked without a call.
    """
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return _OTHER
        value = value.values()
    elif kind is not list and kind is not tuple:
        return _NONE if kind in _EXACT else _FLOATS if kind is float else _OTHER
    if len(value) > _MANY and _SCALARS.issuperset(kinds := set(map(type, value))):
        return _FLOATS if float in kinds else _NONE
    found = _NONE
    for part in value:
        kind = type(part)
        if kind is not str and kind is not int:
            found |= _doubt(part)
    return found


def _loads(text: str | bytes) -> Json:
    try:
        value: Json = _read(text)
    except Exception:  # noqa: BLE001  NaN, a lone surrogate, or not JSON: json decides
        value = json.loads(text)
    return value


def _import_msgspec() -> None:
    with importing():
        import msgspec  # noqa: PLC0415  0.05 s, and DAG files are parsed often
    globals().update(
        _write=msgspec.json.Encoder().encode,
        _write_sorted=msgspec.json.Encoder(order="sorted").encode,
        _spaced=msgspec.json.format,
        _read=msgspec.json.Decoder().decode,
    )


def _write(value: Any) -> bytes:
    """Imports msgspec and replaces this function, as do the next three."""
    _import_msgspec()
    return _write(value)


def _write_sorted(value: Any) -> bytes:
    _import_msgspec()
    return _write_sorted(value)


def _spaced(data: bytes, *, indent: int) -> bytes:
    _import_msgspec()
    return _spaced(data, indent=indent)


def _read(text: str | bytes) -> Any:
    _import_msgspec()
    return _read(text)


_SURROGATES: Final = re.compile("[\ud800-\udfff]")  # escaped bytes, and lone surrogates in JSON


def is_utf8(text: str) -> bool:
    """Whether a stored text has no byte that was read as an escape (``surrogateescape``)."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(text: str) -> str:
    """A stored text made printable: U+FFFD replaces bytes that are not UTF-8."""
    return text if text.isascii() or is_utf8(text) else _SURROGATES.sub("\ufffd", text)


def sendable(text: str) -> str:
    """A text made sendable: lone surrogates, as in file names, are escaped."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _unpack(text: str) -> bytes:
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    data = unpacker.decompress(base64.b64decode(text[len(_GZIP_MARK) :]), MAX_PAYLOAD_BYTES)
    if not unpacker.eof:
        raise ValueError("unpacks to more than the payload limit, or is cut short")
    return data


def pack(text: str) -> str:
    """Return the ``gz:`` form of an encoded payload."""
    return _GZIP_MARK + base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _check_keys(value: JsonLike) -> None:
    # json.dumps silently turns numbers and None into string keys, which the reader would not find.
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str):
                    raise TypeError(f"keys must be strings, not {type(key).__name__}")
            rest.extend(part.values())
        elif isinstance(part, list | tuple):
            rest.extend(part)


def _message(exc: Exception, value: JsonLike) -> str:
    # json's messages contain types and keys ("Object of type set is not JSON serializable"), and no values
    # except floats.
    text = str(exc)
    if text.startswith("Object of type date"):  # also datetime; YAML reads an unquoted date as one
        return f"{text}. Fix: write it as text, in YAML in quotes"
    if isinstance(exc, UnicodeError):
        return "a text has half of a surrogate pair. Fix: text.encode('utf-8', 'replace').decode()"
    if text == "Circular reference detected":
        return "it contains itself. Fix: leave that out"
    return _not_finite(value) or text if text.startswith("Out of range float") else text


def _not_finite(value: Any, place: Sequence[object] = ()) -> str:
    """Where the first NaN or infinity is, and the remedy; in the order of ``json``; '' if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        at = f"the value at {shown_path(place)}" if place else "it"
        return f"{at} is {_named(value)}. Fix: replace it with None"
    if isinstance(value, dict):
        for key, part in value.items():
            if isinstance(key, float) and not math.isfinite(key):
                return f"a key{f' of {shown_path(place)}' if place else ''} is {_named(key)}. Fix: use text"
            if found := _not_finite(part, (*place, key)):
                return found
    elif isinstance(value, list | tuple):
        parts = (_not_finite(part, (*place, number)) for number, part in enumerate(value))
        return next((found for found in parts if found), "")
    return ""


def _named(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinity"
