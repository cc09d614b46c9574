"""``read_published`` and ``published_path``: the newest version of a location, or that of a result.

A dependency's result is accepted, and the next step begins, a moment before its version is made. A step must
not read a location as it was before its dependencies. So each step makes the versions of its direct
dependencies when it begins, for itself and for all steps after it. What cannot be made then is tried again by
each reader.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.acceptance import make_versions
from glidemq_orchestrate.spark.published.locations.iceberg.conversion import current_rows
from glidemq_orchestrate.spark.published.locations.iceberg.table import IcebergTable, is_iceberg
from glidemq_orchestrate.spark.published.locations.store import Store
from glidemq_orchestrate.spark.published.locations.target import Target, target_of
from glidemq_orchestrate.spark.published.locations.version import (
    ATTEMPTS,
    FILES,
    MANIFEST,
    NotPublished,
    Publication,
    Version,
    publications_in,
    versions,
    visible,
)
from glidemq_orchestrate.wire.codec import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MAX_VERSIONS_MADE: Final = 1_000
"""How many versions are made before a step begins: each takes at least one check of a file."""
_inputs: Final[contextvars.ContextVar[Mapping[str, Json]]] = contextvars.ContextVar(
    "inputs", default=MappingProxyType({})
)


@contextmanager
def after_dependencies(inputs: Mapping[str, Json], spark: SparkSession) -> Iterator[None]:
    """Make the versions in the results of a step's dependencies, then run a block as this step."""
    publications = chain.from_iterable(map(publications_in, inputs.values()))
    make_versions(islice(publications, MAX_VERSIONS_MADE), spark)
    token = _inputs.set(inputs)
    try:
        yield
    finally:
        _inputs.reset(token)


def read_published(spark: SparkSession, source: str | Json) -> DataFrame:
    """Read a table that steps have published.

    Args:
        spark: The session.
        source: A location, or ``iceberg:catalog.namespace.table``: its current newest versions; in a step at
            least those of its direct dependencies. Or the result of a step, such as ``ctx.inputs["clean"]``:
            exactly what that attempt has written, even if more was published since; a missing version is
            made, because the result was accepted.

    Returns:
        The rows, with the columns as they were published. Versions of a partitioned table may have different
        columns: those that a version lacks are null there. Each version that is needed takes a separate scan,
        about 50 ms. So a table with hundreds of versions reads faster if it is published as a whole, or is an
        Iceberg table.

    Raises:
        NotPublished: There is no version, the version was removed, or files were published.
    """
    if isinstance(source, str) and is_iceberg(source):
        table = IcebergTable.open(source, spark)
        _make_dependencies(table)
        return current_rows(spark, table.table.refresh())
    store, those = _versions(spark, source)
    newest = next(those, None)
    if newest is None:
        raise NotPublished(f"nothing is published at {source}")
    parts = [_frame(spark, store, *one) for one in visible(chain([newest], those))]
    if not parts:  # a partitioned table without rows
        return spark.createDataFrame([], _schema(store, newest))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def published_path(source: str | Json) -> Path:
    """The folder of files that a step has published with ``publish_files``.

    Args:
        source: A location, for the newest version, or the result of a step, for its own version.

    Raises:
        NotPublished: There is none.
    """
    store, those = _versions(None, source)
    for version in those:
        return Path(store.location, ATTEMPTS, version.name)
    raise NotPublished(f"nothing is published at {source}")


def _versions(spark: SparkSession | None, source: str | Json) -> tuple[Store, Iterator[Version]]:
    """The versions, newest first; for a result, only its own."""
    if isinstance(source, str):
        target = target_of(source, spark)
        _make_dependencies(target)
        return target.store, versions(target.store)
    publication = _only_publication(source)
    name, location = publication.name, publication.location
    target = target_of(location, spark)
    text = target.store.read(f"{ATTEMPTS}/{name}/{MANIFEST}") if target.make(name) else None
    if text is None:
        raise NotPublished(f"version {name} of {location} is gone: it was replaced and removed")
    return target.store, iter([Version.read(text)])


def _make_dependencies(target: Target) -> None:
    """Make the versions that the dependencies of the current step have published at this location."""
    for publication in chain.from_iterable(map(publications_in, _inputs.get().values())):
        if publication.location == target.location:
            target.make(publication.name)


def _only_publication(result: Json) -> Publication:
    publications = list(publications_in(result))
    if len(publications) != 1:
        raise NotPublished(
            f"the result names {len(publications)} publications, not one: pass the part of it that publish "
            "returned"
        )
    return publications[0]


def _frame(spark: SparkSession, store: Store, version: Version, parts: tuple[str, ...] | None) -> DataFrame:
    schema = _schema(store, version)
    folder = f"{store.location}/{ATTEMPTS}/{version.name}"
    reader = spark.read.format(version.format).options(**version.options).schema(schema)
    whole = parts is None or parts == version.partitions
    paths = [folder] if whole else [f"{folder}/{part}" for part in parts or ()]
    frame = reader.option("basePath", folder).load(paths)
    # Spark puts the columns of partitions last.
    return frame.select([f"`{name.replace('`', '``')}`" for name in schema.names])


def _schema(store: Store, version: Version) -> StructType:
    from pyspark.sql.types import StructType

    if version.format == FILES or not isinstance(version.schema, dict):
        raise NotPublished(f"{store.location} holds files, not a table: see published_path")
    return StructType.fromJson(version.schema)
