"""What tests of published tables share: writing a version, and reading what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import Context
from glidemq_orchestrate.spark import publish
from glidemq_orchestrate.spark.published.locations.store import LocalStore
from glidemq_orchestrate.spark.published.locations.target import Folder
from glidemq_orchestrate.spark.published.locations.version import name_of, newest_first
from glidemq_orchestrate.worker.handlers.context import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Owner(Reporter):
    """A worker that still owns the job."""

    def check_owner(self) -> None:
        """It does."""


def context(epoch: int) -> Context:
    return Context("spark", "j", "spark.python", 1, {}, {}, None, None, Owner(), epoch=epoch, token="t")


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def written(spark: SparkSession, location: Path, epoch: int, sql: str, **options: Any) -> Any:
    """Publish and accept the rows of a statement."""
    ctx = context(epoch)
    result = publish(ctx, str(location), spark.sql(sql), **options)
    Folder(LocalStore(location)).make(name_of(ctx))
    return result


def versions(location: Path) -> list[str]:
    """What counts there; a file that is being written does not yet."""
    names = LocalStore(location).names("versions")
    return newest_first(name.removesuffix(".json") for name in names if name.endswith(".json"))
