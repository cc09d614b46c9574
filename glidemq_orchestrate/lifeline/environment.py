"""Sets environment variables for processes started by a library that has no option for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def patched(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the block and restore the old ones after it.

    A process that another thread starts during the block gets them too.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
