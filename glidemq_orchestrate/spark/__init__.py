"""Spark steps for workers: ``glidemq worker --app glidemq_orchestrate.spark`` runs ``spark.python`` jobs.

Importing this package does not import PySpark: it is loaded with the session, when a worker starts.
"""

from glidemq_orchestrate.spark.steps import handlers

__all__ = ["handlers"]
