"""Values and texts in messages and logs: quoted, cut if long, and escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

MAX_REASON: Final = 4_000
SHOWN: Final = 60
SURROGATES: Final = re.compile(r"[\ud800-\udfff]")  # lone surrogates cannot be sent


def shown(name: object) -> str:
    """A name for an error message: quoted, and cut if it is long."""
    if not isinstance(name, str):
        return f"of type {type(name).__name__}"
    if len(name) <= SHOWN:
        return ascii(name) if SURROGATES.search(name) else repr(name)
    return f"{shown(name[:SHOWN])}... ({len(name):,} characters)"


def counted(count: int, noun: str) -> str:
    """A number of things: ``1 job``, ``2,000 jobs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def described(value: object) -> str:
    """A value for an error message: cut if it is long; its type if it has no printable form."""
    if isinstance(value, str):
        return shown(value)
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  of any class; and numbers of thousands of digits have none
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def plain(message: str) -> str:
    """A message of pydantic in our words: ``must be a valid integer``."""
    message = message.removeprefix("Value error, ").partition(", unable to parse ")[0]
    return (
        "must be" + message.removeprefix("Input should be")
        if message.startswith("Input should be")
        else message
    )


def short_reason(reason: str) -> str:
    """A reason in its stored form: at most 4,000 characters, without lone surrogates."""
    text = reason.encode(errors="replace").decode()  # lone surrogates, as in file names, cannot be sent
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


INDENT: Final = "    "
CONTROLS: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (
        *(code for code in range(0x20) if code != ord("\t")),
        *range(0x7F, 0xA0),  # 0x9b starts an escape sequence
        *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # directions of text
        *(0x2028, 0x2029),  # line separators
        *range(0xD800, 0xE000),  # lone surrogates, which cannot be encoded
    )
}
"""The escapes of control characters, for ``str.translate``."""
_LINES: Final = CONTROLS | {ord("\n"): "\n" + INDENT}


def in_line(text: str) -> str:
    """The text as one line: control characters and line ends are escaped, tabs are not."""
    return text.translate(CONTROLS)


def in_text(text: str) -> str:
    """The text with its line breaks: further lines are indented, other control characters escaped."""
    return text.translate(_LINES)


def in_block(texts: Iterable[str]) -> str:
    """Several texts as a block below a heading: every line is indented."""
    return "\n".join(INDENT + in_text(text).replace("\n", "\n" + INDENT) for text in texts)


def shown_path(path: Sequence[object]) -> str:
    """A path of keys and indexes, as in code: ``['rows'][0]``."""
    return "".join(f"[{step!r}]" for step in path)[:200]
