"""Payloads on the wire: compact JSON, at most 1 MiB, and glide-mq's optional gzip form when reading."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from glidemq_orchestrate.errors import DecodeError, EncodeError, PayloadTooLarge

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
"""What is read."""
JsonLike: TypeAlias = "None | bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike]"
"""What may be written: also a ``dict[str, int]``, which is no ``dict[str, Json]``."""

MAX_PAYLOAD_BYTES = 1_048_576
_GZIP_MARK = "gz:"
# json.dumps makes an encoder for each call that differs from its defaults.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode(value: JsonLike, *, where: str) -> str:
    """Encode a value as the compact JSON text that glide-mq stores.

    Args:
        value: Anything JSON can say; tuples become lists. No NaN, no infinity, only text keys.
        where: What the value belongs to, for the error: ``node clean``, ``result of job 7``.

    Raises:
        EncodeError: The value is not JSON.
        PayloadTooLarge: More than 1,048,576 bytes of UTF-8 once encoded.
    """
    try:
        text = _ENCODER.encode(value)
        if isinstance(value, dict | list | tuple):
            _check_keys(value)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise EncodeError(f"{where} is not JSON: {_told(exc)}", where=where) from exc
    if size > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(
            f"{where} is {size:,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}. "
            "Write the data to a file, table or object store and pass its location",
            where=where,
        )
    return text


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
        value: Json = json.loads(_unpack(text) if text.startswith(_GZIP_MARK) else text)
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as exc:
        raise DecodeError(f"{where} is not JSON: {type(exc).__name__}") from exc
    return value


def is_utf8(text: str) -> bool:
    """Whether a stored text holds no byte that was read as an escape (``surrogateescape``)."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(text: str) -> str:
    """A stored text for people to read: U+FFFD stands for what is not UTF-8."""
    return text if is_utf8(text) else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
    # json.dumps quietly makes texts of numbers and None; the reader would not find what the writer wrote.
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str):
                    raise TypeError(f"keys must be texts, not {type(key).__name__}")
            rest.extend(part.values())
        elif isinstance(part, list | tuple):
            rest.extend(part)


def _told(exc: Exception) -> str:
    # json's own messages name types and keys ("Object of type set is not JSON serializable"), never values,
    # but for floats it prints the value.
    text = str(exc)
    return "NaN and infinity are not JSON" if text.startswith("Out of range float") else text
