"""External text, made safe for a terminal: names, reasons and logs may hold escape sequences.

All text that the command line prints for people goes through ``printable``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_UNKNOWN: Final = "\ufffd"
_ODD: Final[dict[int, str | int]] = {
    **{code: 0x2400 + code for code in range(0x20)},  # C0: the Unicode control pictures
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), _UNKNOWN),  # C1: 0x9b alone starts an escape sequence
    # Bidirectional controls, which could make a name look like another.
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), _UNKNOWN),
    **dict.fromkeys((0x2028, 0x2029), _UNKNOWN),
    **dict.fromkeys(range(0xD800, 0xE000), _UNKNOWN),
}
_IN_LINE: Final = {code: sign for code, sign in _ODD.items() if code != ord("\t")}
_IN_LINES: Final = {code: sign for code, sign in _IN_LINE.items() if code != ord("\n")}


def printable(text: str, *, lines: bool = False) -> str:
    """The text with control characters replaced; tabs stay, and with ``lines`` line ends too."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_IN_LINES if lines else _IN_LINE)


class SafeConsole(Console):
    """A rich console that makes external text printable; its own colours still work."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make every piece of text printable."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, lines=True), style)


class SafeFormatter(logging.Formatter):
    """Makes log records printable: a message is one line, a traceback keeps its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class's name
        """The line of a record."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  the base class's name
        """The traceback of a record."""
        return printable(super().formatException(ei), lines=True)
