"""Messages between a worker and its warm processes: JSON lines, with a number for each child. Pure.

To the process: ``{"number", "begin": "step" | "run", "job": payload, "at": time.monotonic()}``, ``{"number",
"signal": 2 | 9}``; to a process that must not import the code itself, first ``{"number": 0, "apart": {"why",
"sources"}}``. From it: ``{"number", "pid"}`` when the child has begun, ``{"number", "ended": status}`` with
an exit code, or minus a signal; ``{"number", "refused": why}`` when it cannot begin; ``{"number", "stale":
how}`` when another process must be started for it: the code has ``CHANGED``, or what was imported is
``OF_A_RUN``, another one. ``{"number", "apart": {"why", "sources"}}``: the import is unsafe to fork, so the
next process does not import the code, but each of its children does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final


class NotPrepared(Exception):
    """A job cannot start, and no code was imported for it; the message is the reason."""


class Outdated(Exception):
    """The loaded definitions belong to an earlier run and differ from this run's: a new process is needed."""


APART: Final = "apart"
CHANGED: Final = "changed"
OF_A_RUN: Final = "of a run"
INTERRUPTED: Final = 130
"""The exit code of an interrupted child, as in a shell."""
MAX_OF_A_LINE: Final = 8 * 1024 * 1024


def encoded(message: dict[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Assembles lines from received bytes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages that are now complete.

        Raises:
            ValueError: A line is not a message.
        """
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > MAX_OF_A_LINE:
            raise ValueError(f"a line is longer than {MAX_OF_A_LINE:,} bytes")
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("a line is not an object")  # noqa: TRY004  one error for all
            yield message
