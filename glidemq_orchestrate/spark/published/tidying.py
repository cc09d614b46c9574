"""Removes what no reader will ask for: the folders of attempts that never counted, and replaced versions."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.contents import counting, file_of, versions
from glidemq_orchestrate.spark.published.store import Store, store_of
from glidemq_orchestrate.spark.published.version import ATTEMPTS, newest_first, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

GRACE: Final = timedelta(days=7)
EVERY_SECONDS: Final = 3_600.0
_tidied: Final[dict[str, float]] = {}
_lock: Final = threading.Lock()


def tidy(
    location: str,
    *,
    grace: timedelta = GRACE,
    replaced: timedelta | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Remove what attempts have left at a location that never counted, and old versions if that is asked for.

    A worker does this without ``replaced`` after a publication, at most once an hour. Repeatable; a kill
    leaves only what the next call removes.

    Here ages are counted by the clock of this machine, there by the server's.

    Args:
        location: As for ``publish``.
        grace: Attempts without a version stay for so long after they began: they may still be running, or
            be accepted and wait for their version.
        replaced: Remove the versions that later ones have replaced wholly, and that began so long ago. Steps
            and programs that read them by the results of their jobs find them no more. None: they stay.
        spark: A session, for locations that are not local directories.

    Returns:
        The number of folders that were removed.

    Raises:
        Unrecoverable: The location needs a session.
        Exception: Whatever the store raises.
    """
    return tidied(store_of(location, spark), grace, replaced, int(time.time() * 1000))


def tidied(store: Store, grace: timedelta, replaced: timedelta | None, now_ms: int) -> int:
    """See ``tidy``."""
    known, removed = set(counting(store)), 0
    if replaced is not None:
        found = list(versions(store))
        needed = {version.name for version, _ in visible(found)}
        for version in found:
            if version.name not in needed and _is_older(version.epoch, replaced, now_ms):
                store.remove(file_of(version.name))
                store.remove(f"{ATTEMPTS}/{version.name}")
                removed += 1
    for name in newest_first(store.names(ATTEMPTS)):
        if name not in known and _is_older(int(name.partition("-")[0]), grace, now_ms):
            store.remove(f"{ATTEMPTS}/{name}")
            removed += 1
    return removed


def tidy_now_and_then(store: Store, now_ms: int) -> None:
    """Tidy a location unless this process has done that within the hour; errors are logged.

    Args:
        store: The location.
        now_ms: A time of the server that is not in the future: the clock of this machine may be wrong.
    """
    now = time.monotonic()
    with _lock:
        if now - _tidied.get(store.location, -EVERY_SECONDS) < EVERY_SECONDS:
            return
        _tidied[store.location] = now
    try:
        tidied(store, GRACE, None, now_ms)
    except Exception:
        logger.exception("%s cannot be tidied", store.location, extra={"action": "not_tidied"})


def _is_older(epoch: int, than: timedelta, now_ms: int) -> bool:
    return now_ms - epoch > than.total_seconds() * 1000
