"""A location whose versions are files beside the data (see ``version``), and the columns of its table.

If the partitions of a table are replaced separately, readers see those of several versions side by side, so a
column has one type in all of them. It may widen without loss (``int`` to ``bigint``); any other change is
refused while it is written, because it would break every reader. Names get the case that they have in the
table: Spark ignores case, but folders of partitions do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.locations.store import Store
from glidemq_orchestrate.spark.published.locations.version import (
    ATTEMPTS,
    MANIFEST,
    VERSIONS,
    Version,
    counting,
    file_of,
    is_older,
    uncounted,
    versions,
    visible,
)
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

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


_GROWS: Final = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))
"""Types that each hold all values of the types before them."""


def fitted(frame: DataFrame, columns: Sequence[str], store: Store) -> tuple[DataFrame, list[str]]:
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
