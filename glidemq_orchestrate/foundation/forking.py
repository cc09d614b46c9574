"""Whether processes may be forked: what a fork would not copy, or would share."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import weakref
from contextlib import suppress
from typing import Any, Literal

from glidemq_orchestrate.foundation.machine import PROC


def start_method(before: frozenset[object] | None = None) -> Literal["fork", "spawn"]:
    """How processes that run the code loaded here are started.

    They are forked on Linux while this process has a single thread, and the code has left nothing open.

    Args:
        before: What was open before the code was loaded: see ``left_open``. None: unknown, and whatever is
            open now may be shared.
    """
    tasks = PROC / "self/task"
    is_single = sys.platform == "linux" and tasks.exists() and len(list(tasks.iterdir())) == 1
    return "fork" if is_single and (before is None or left_open() <= before) else "spawn"


def left_open() -> frozenset[object]:
    """The connections, pipes and files that are open, and what Python removes when it exits.

    Forked processes would share these: one reads the reply to another, or removes what the others need.
    """
    registered: Any = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001  no public list
    found: set[object] = {one for one in list(registered) if one.atexit}
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  no Path of it
        with suppress(OSError):  # the descriptor of this listing
            number = int(name)
            status, flags = os.fstat(number), fcntl.fcntl(number, fcntl.F_GETFL)
            is_file = stat.S_ISREG(status.st_mode) and not flags & os.O_APPEND
            if is_file or stat.S_ISSOCK(status.st_mode) or stat.S_ISFIFO(status.st_mode):
                found.add((number, status.st_ino))
    return frozenset(found)
