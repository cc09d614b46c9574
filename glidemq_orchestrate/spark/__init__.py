"""Spark steps for workers: ``glidemq worker --app glidemq_orchestrate.spark`` runs ``spark.python`` jobs.

Importing this package does not import PySpark: it is loaded with the session, when a worker starts.
"""

from glidemq_orchestrate.spark.published.publish import publish, publish_files
from glidemq_orchestrate.spark.published.reading import published_path, read_published
from glidemq_orchestrate.spark.published.tidying import tidy
from glidemq_orchestrate.spark.published.version import NotPublished
from glidemq_orchestrate.spark.steps import handlers

__all__ = [
    "NotPublished",
    "handlers",
    "publish",
    "publish_files",
    "published_path",
    "read_published",
    "tidy",
]
