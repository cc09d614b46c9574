"""Values as text, whatever they are: for reports, and to compare the cases of two runs."""

from __future__ import annotations

from typing import Any, Final

DEPTH: Final = 6


def shown(value: Any, depth: int = DEPTH) -> str:
    """A value as text, the same in every process: no addresses, no numbers of thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**50:
        return f"{'-' if value < 0 else ''}0x{abs(value) % 2**64:x}... ({value.bit_length()} bits)"
    if depth and type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(shown(part, depth - 1) for part in value)})"
    if depth and type(value) is dict:
        return f"{{{', '.join(f'{shown(k, 1)}: {shown(part, depth - 1)}' for k, part in value.items())}}}"
    try:
        text = repr(value)
    except (RecursionError, ValueError) as exc:
        return f"{type(value).__name__} ({type(exc).__name__})"
    return text.partition(" at 0x")[0]
