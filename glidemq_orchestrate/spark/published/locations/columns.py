"""The columns of a table whose partitions are replaced separately: each version must fit the existing ones.

Readers see partitions of several versions side by side, so a column has one type in all of them. It may widen
without loss (``int`` to ``bigint``); any other change is refused while it is written, because it would break
every reader. Names get the case that they have in the table: Spark ignores case, but folders of partitions do
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.locations.store import Store
from glidemq_orchestrate.spark.published.locations.version import Version, versions
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

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
