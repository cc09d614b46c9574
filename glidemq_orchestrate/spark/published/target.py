"""What can be published to: a folder of versions, or a table of Iceberg. From an accepted attempt on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from glidemq_orchestrate.spark.published.folder import Folder
from glidemq_orchestrate.spark.published.iceberg.table import IcebergTable, is_iceberg
from glidemq_orchestrate.spark.published.store import Store, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Target(Protocol):
    """A location, and how an attempt comes to count there.

    Attributes:
        location: As it stands in results.
        store: Where attempts write.
    """

    @property
    def location(self) -> str:
        """See the class."""

    @property
    def store(self) -> Store:
        """See the class."""

    def make(self, name: str) -> bool:
        """Let an attempt count whose result was accepted. Repeatable; False if what it wrote is not there.

        Raises:
            Exception: Whatever the store or the catalog raises.
        """

    def tidy(self, grace: timedelta, replaced: timedelta | None, now_ms: int) -> int:
        """Remove what no reader will ask for, and return how many folders that were; see ``tidy``."""


def target_of(location: str, spark: SparkSession | None) -> Target:
    """The target of a location: a path, a URI, or ``iceberg:catalog.namespace.table``.

    Raises:
        Unrecoverable: It cannot be one, or cannot be reached without a Spark session.
    """
    if is_iceberg(location):
        return IcebergTable.opened(location, spark)
    return Folder(store_of(location, spark))
