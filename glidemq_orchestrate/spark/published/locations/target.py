"""Locations: a folder of versions, with the columns of its table, or a table of Iceberg; tidying them.

The versions of a folder are files beside the data (see ``version``). If the partitions of a table are
replaced separately, readers see those of several versions side by side, so a column has one type in all of
them. It may widen without loss (``int`` to ``bigint``); any other change is refused while it is written,
because it would break every reader. Names get the case that they have in the table: Spark ignores case, but
folders of partitions do not.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from glidemq_orchestrate.foundation.durations import Duration, duration, optional_duration
from glidemq_orchestrate.spark.published.locations.iceberg.table import IcebergTable, is_iceberg
from glidemq_orchestrate.spark.published.locations.store import Store, store_of
from glidemq_orchestrate.spark.published.locations.version import (
    ATTEMPTS,
    MANIFEST,
    VERSIONS,
    Version,
    attempts_without_version,
    file_of,
    is_older,
    version_names,
    versions,
    visible,
)
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


class Target(Protocol):
    """A location, and how the attempts there become visible.

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
        """Make the version of an accepted attempt. Repeatable; false if its data are gone.

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
        return IcebergTable.open(location, spark)
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
    """Remove the data of attempts without a version, and optionally old versions.

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


def tidy_hourly(target: Target, now_ms: int) -> None:
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
        known, removed = set(version_names(self.store)), 0
        if replaced is not None:
            found = list(versions(self.store))
            needed = {version.name for version, _ in visible(found)}
            for version in found:
                if version.name not in needed and is_older(version.epoch, replaced, now_ms):
                    self.store.remove(file_of(version.name))
                    self.store.remove(f"{ATTEMPTS}/{version.name}")
                    removed += 1
        for name in attempts_without_version(self.store, known, grace, now_ms):
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


_GROWS: Final = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))
"""Types that each hold all values of the types before them."""


def fit_to_table(frame: DataFrame, columns: Sequence[str], store: Store) -> tuple[DataFrame, list[str]]:
    """A frame and its partition columns, with the names and types of the table; unchanged for a new table.

    Raises:
        Unrecoverable: The table is partitioned differently, or has a column of another type.
    """
    there = next((version for version in versions(store) if version.columns is not None), None)
    if there is None or there.columns is None:
        return frame, list(columns)
    if [name.casefold() for name in there.columns] != [name.casefold() for name in columns]:
        raise Unrecoverable(
            f"the table at {store.location} is partitioned by {', '.join(there.columns) or 'nothing'}, not "
            f'by {", ".join(columns)}: publish all of it once with partition_by and replace="all"'
        )
    known = dict(_types(store, frame.columns))
    is_plain = len({name.casefold() for name in frame.columns}) == len(frame.columns)
    found = []
    for field in frame.schema.fields:
        kind = field.dataType
        name, of_table = known.get(field.name.casefold() if is_plain else field.name, (field.name, kind))
        grown = wider(kind, of_table)
        if grown is None:
            raise Unrecoverable(
                f"column {field.name} is {kind.simpleString()}, and the table at {store.location} "
                f"has {name} as {of_table.simpleString()}: cast it to that, or publish all of the table once "
                'with replace="all"'
            )
        column = frame[f"`{field.name.replace('`', '``')}`"]
        found.append((column if _is_same(kind, grown) else column.cast(grown)).alias(name))
    return frame.select(*found), list(there.columns)


def wider(one: DataType, other: DataType) -> DataType | None:
    """The one of two types that holds all values of both; None if neither does."""
    from pyspark.sql.types import DecimalType, NullType

    if _is_same(one, other) or isinstance(one, NullType):
        return other
    names = one.simpleString(), other.simpleString()
    for family in _GROWS:
        if set(names) <= set(family):
            return max(one, other, key=lambda kind: family.index(kind.simpleString()))
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        for large, small in ((one, other), (other, one)):
            whole = large.precision - large.scale >= small.precision - small.scale
            if whole and large.scale >= small.scale:
                return large
    return None


def _is_same(one: DataType, other: DataType) -> bool:
    """Whether two types hold the same values, ignoring nullability."""
    return one.simpleString().casefold() == other.simpleString().casefold()


def _types(store: Store, names: Sequence[str]) -> Iterator[tuple[str, tuple[str, DataType]]]:
    """The columns of the table among these, by their case-folded names: the name and the type there.

    Each comes from the newest version that has it.
    """
    left = {name.casefold() for name in names}
    for version in versions(store):
        for name, kind in _columns(version).items():
            if name.casefold() in left:
                left.discard(name.casefold())
                yield name.casefold(), (name, kind)
        if not left or version.replaces_all:
            return


def _columns(version: Version) -> Mapping[str, DataType]:
    from pyspark.sql.types import StructType

    if not isinstance(version.schema, dict):
        return {}
    schema: StructType = StructType.fromJson(version.schema)
    return {field.name: field.dataType for field in schema.fields}
