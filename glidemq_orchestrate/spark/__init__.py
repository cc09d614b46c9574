"""Spark steps for workers: ``glidemq worker --app glidemq_orchestrate.spark`` runs ``spark.python`` jobs.

Importing this package does not import PySpark: it is loaded with the session, when a worker starts.
"""

from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.spark.published.iceberg.publish import publish_iceberg
from glidemq_orchestrate.spark.published.publish import publish, publish_files
from glidemq_orchestrate.spark.published.reading import published_path, read_published
from glidemq_orchestrate.spark.published.tidying import tidy
from glidemq_orchestrate.spark.published.version import NotPublished
from glidemq_orchestrate.spark.source.registration import source_class
from glidemq_orchestrate.spark.steps import handlers

if TYPE_CHECKING:
    from glidemq_orchestrate.spark.source.source import GlideMQDataSource

__all__ = [
    "GlideMQDataSource",
    "NotPublished",
    "handlers",
    "publish",
    "publish_files",
    "publish_iceberg",
    "published_path",
    "read_published",
    "tidy",
]


def __getattr__(name: str) -> Any:
    """The data source, which needs PySpark."""
    if name == "GlideMQDataSource":
        return source_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
