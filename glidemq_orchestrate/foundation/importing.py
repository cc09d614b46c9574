"""Imports at run time: by one thread at a time, and never during a fork.

A child that was forked while a thread imported a module deadlocks on that module: a thread that the child
does not have holds the import lock. And two threads that enter an import cycle at different modules see
half-loaded modules.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def importing() -> Iterator[None]:
    """Prevent forks by other threads while the imports in this block run."""
    with _ONE_AT_A_TIME:
        yield


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports its public names on first use.

    Args:
        package: The package, as in ``__name__``.
        homes: For each public name the module that defines it, in full.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with importing():
            found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return load


# The forking thread takes the lock first; both processes release it.
os.register_at_fork(
    before=_ONE_AT_A_TIME.acquire,
    after_in_parent=_ONE_AT_A_TIME.release,
    after_in_child=_ONE_AT_A_TIME.release,
)
