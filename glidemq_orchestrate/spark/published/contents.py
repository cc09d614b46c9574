"""What counts at a location: the files in its folder ``versions``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from glidemq_orchestrate.spark.published.store import Store
from glidemq_orchestrate.spark.published.version import VERSIONS, Version, newest_first

_SUFFIX: Final = ".json"


def file_of(name: str) -> str:
    """The file by which an attempt counts."""
    return f"{VERSIONS}/{name}{_SUFFIX}"


def counting(store: Store) -> list[str]:
    """The names of the attempts that count, the newest first."""
    return newest_first(name.removesuffix(_SUFFIX) for name in store.names(VERSIONS))


def versions(store: Store) -> Iterator[Version]:
    """What counts, the newest first; each is read when it is asked for."""
    for name in counting(store):
        if (text := store.read(file_of(name))) is not None:
            yield Version.read(text)
