"""The handlers: do nothing, or hold a slot of the worker until the measurement begins."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

RESULT: Final = {"ok": True}
DATA: Final[dict[str, Any]] = {"to": "someone@example.com", "lines": [1, 2, 3]}
OPEN: Final = "open"
LOOK_SECONDS: Final = 0.005


def noop(*_: Any) -> dict[str, bool]:
    """A job that does nothing and returns something small."""
    return RESULT


def at_gate(folder: str) -> Path:
    """Record that a slot is taken; returns the path of the file that opens the gate."""
    Path(folder, f"held-{uuid4().hex}").touch()
    return Path(folder, OPEN)


def gate(folder: str) -> None:
    """Hold a thread or process until the gate opens."""
    opened = at_gate(folder)
    while not opened.exists():
        time.sleep(LOOK_SECONDS)


async def async_gate(folder: str) -> None:
    """Hold a task until the gate opens."""
    opened = at_gate(folder)
    while not opened.exists():  # noqa: ASYNC110  the gate is opened by another process
        await asyncio.sleep(LOOK_SECONDS)
