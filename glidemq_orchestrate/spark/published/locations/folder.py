"""A location whose versions are files beside the data; see the module ``version``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.spark.published.locations.store import Store
from glidemq_orchestrate.spark.published.locations.version import (
    ATTEMPTS,
    MANIFEST,
    VERSIONS,
    counting,
    file_of,
    is_older,
    uncounted,
    versions,
    visible,
)

_HALF: Final = re.compile(r"[._](\d{1,16})-[0-9a-f]{12}\.json\.[0-9a-f]+")
"""The temporary file of a version that is being written; see ``Store.create``."""


class Folder:
    """See ``Target``."""

    def __init__(self, store: Store) -> None:
        self.store, self.location = store, store.location

    def make(self, name: str) -> bool:
        """See ``Target.make``."""
        if self.store.read(path := file_of(name)) is not None:
            return True
        text = self.store.read(f"{ATTEMPTS}/{name}/{MANIFEST}")
        if text is None:
            return False
        self.store.create(path, text)
        return True

    def tidy(self, grace: timedelta, replaced: timedelta | None, now_ms: int) -> int:
        """See ``Target.tidy``."""
        known, removed = set(counting(self.store)), 0
        if replaced is not None:
            found = list(versions(self.store))
            needed = {version.name for version, _ in visible(found)}
            for version in found:
                if version.name not in needed and is_older(version.epoch, replaced, now_ms):
                    self.store.remove(file_of(version.name))
                    self.store.remove(f"{ATTEMPTS}/{version.name}")
                    removed += 1
        for name in uncounted(self.store, known, grace, now_ms):
            self.store.remove(f"{ATTEMPTS}/{name}")
            removed += 1
        remove_half_written(self.store, grace, now_ms)
        return removed


def remove_half_written(store: Store, grace: timedelta, now_ms: int) -> None:
    """Remove temporary files of versions that a kill has left behind."""
    for name in store.names(VERSIONS):
        found = _HALF.fullmatch(name)
        if found is not None and is_older(int(found[1]), grace, now_ms):
            store.remove(f"{VERSIONS}/{name}")
