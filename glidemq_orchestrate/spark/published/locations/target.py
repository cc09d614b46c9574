"""Opens a location, a folder of versions or a table of Iceberg, and removes what no reader will need."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from glidemq_orchestrate.foundation.durations import Duration, duration, optional_duration
from glidemq_orchestrate.spark.published.locations.folder import Folder
from glidemq_orchestrate.spark.published.locations.iceberg.table import IcebergTable, is_iceberg
from glidemq_orchestrate.spark.published.locations.store import Store, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Target(Protocol):
    """A location, and how the attempts there come to count.

    Attributes:
        location: Its name in results.
        store: Where attempts write.
    """

    @property
    def location(self) -> str:
        """See the class."""

    @property
    def store(self) -> Store:
        """See the class."""

    def make(self, name: str) -> bool:
        """Make an accepted attempt count. Repeatable; false if its data are gone.

        Raises:
            Exception: What the store or the catalog raises.
        """

    def tidy(self, grace: timedelta, replaced: timedelta | None, now_ms: int) -> int:
        """Remove what no reader will need, and return the number of removed folders; see ``tidy``."""


def target_of(location: str, spark: SparkSession | None) -> Target:
    """The target of a location: a path, a URI, or ``iceberg:catalog.namespace.table``.

    Raises:
        Unrecoverable: It is invalid, or cannot be reached without a Spark session.
    """
    if is_iceberg(location):
        return IcebergTable.opened(location, spark)
    return Folder(store_of(location, spark))


logger = logging.getLogger("glidemq_orchestrate.spark")

GRACE: Final = timedelta(days=7)
EVERY_SECONDS: Final = 3_600.0
_tidied: Final[dict[str, float]] = {}
_lock: Final = threading.Lock()


def tidy(
    location: str,
    *,
    grace: Duration = GRACE,
    replaced: Duration | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Remove the data of attempts that never counted, and optionally old versions.

    A worker does this without ``replaced`` after a publication, at most once an hour. Repeatable; a kill
    leaves only what the next call removes. Ages are measured by the clock of this machine; a worker uses the
    server's.

    Args:
        location: As for ``publish``, or ``iceberg:catalog.namespace.table``: there only attempts in no
            snapshot are removed.
        grace: How long after its begin an attempt without a version stays: it may still run, or be accepted
            and wait for its version.
        replaced: Remove versions of at least this age that later ones have replaced completely. Steps and
            programs that read them by the results of their jobs no longer find them. None: they stay.
        spark: A session, for locations that are not local directories.

    Returns:
        The number of removed folders.

    Raises:
        ConfigurationError: A duration is not valid.
        Unrecoverable: The location needs a session.
        Exception: What the store raises.
    """
    kept, span = duration("grace", grace), optional_duration("replaced", replaced)
    return target_of(location, spark).tidy(kept, span, int(time.time() * 1000))


def tidy_now_and_then(target: Target, now_ms: int) -> None:
    """Tidy a location unless this process has done that within the hour; errors are logged.

    Args:
        target: The location.
        now_ms: A time of the server that is not in the future; the clock of this machine may be wrong.
    """
    now = time.monotonic()
    with _lock:
        if now - _tidied.get(target.location, -EVERY_SECONDS) < EVERY_SECONDS:
            return
        _tidied[target.location] = now
    try:
        target.tidy(GRACE, None, now_ms)
    except Exception:
        logger.exception("%s cannot be tidied", target.location, extra={"action": "not_tidied"})
