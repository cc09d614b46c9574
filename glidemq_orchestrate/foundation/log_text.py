"""Makes untrusted text safe for a log: it cannot forge log lines or colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
