"""Variables of the environment for what a library starts that accepts none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def patched(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the block, and those of before after it.

    A process that another thread starts in the meantime gets them as well.
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
