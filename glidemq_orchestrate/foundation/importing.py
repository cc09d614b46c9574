"""Imports at run time: by one thread at a time, and never during a fork.

A child that was forked while a thread imported a module deadlocks on that module: a thread that the child
does not have holds the import lock. And two threads that enter an import cycle at different modules see
half-loaded modules.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def importing() -> Iterator[None]:
    """Prevent forks by other threads while the imports in this block run."""
    with _ONE_AT_A_TIME:
        yield


# The forking thread takes the lock first; both processes release it.
os.register_at_fork(
    before=_ONE_AT_A_TIME.acquire,
    after_in_parent=_ONE_AT_A_TIME.release,
    after_in_child=_ONE_AT_A_TIME.release,
)
