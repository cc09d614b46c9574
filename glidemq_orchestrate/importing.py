"""Imports in mid-run, by one thread at a time and never beside a fork.

A child that was forked while a thread imported a module waits for that module for ever: its lock is held by a
thread that the child does not have. And two threads that import from two ends of a circle get half a module.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def importing() -> Iterator[None]:
    """Imports in this block are over, or have not begun, when any thread of this process forks."""
    with _ONE_AT_A_TIME:
        yield


# The thread that forks takes the lock first, and gives it back on both sides.
os.register_at_fork(
    before=_ONE_AT_A_TIME.acquire,
    after_in_parent=_ONE_AT_A_TIME.release,
    after_in_child=_ONE_AT_A_TIME.release,
)
