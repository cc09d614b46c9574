"""Spark steps for workers: ``glidemq worker --app glidemq_orchestrate.spark`` runs ``spark.python`` jobs.

Importing this package loads nothing else: every public name is resolved on first use, and PySpark is loaded
with the session, when a worker starts.
"""

from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.spark.handler import handlers
    from glidemq_orchestrate.spark.published.locations.target import tidy
    from glidemq_orchestrate.spark.published.locations.version import NotPublished
    from glidemq_orchestrate.spark.published.publish import publish, publish_files, publish_iceberg
    from glidemq_orchestrate.spark.published.reading import published_path, read_published
    from glidemq_orchestrate.spark.source.source import GlideMQDataSource

_PUBLIC: Final = {
    "handler": ("handlers",),
    "published.locations.target": ("tidy",),
    "published.locations.version": ("NotPublished",),
    "published.publish": ("publish", "publish_files", "publish_iceberg"),
    "published.reading": ("published_path", "read_published"),
    "source.registration": ("source_class",),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

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


_load: Final = _on_first_use(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "GlideMQDataSource":  # it needs PySpark
        return _load("source_class")()
    return _load(name)
