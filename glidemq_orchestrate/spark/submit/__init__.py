"""Programs for ``spark-submit``: ``glidemq worker --app glidemq_orchestrate.spark.submit`` runs them.

A worker of ``glidemq_orchestrate.spark`` does so too, beside the steps on its session; this one has none. See
``application`` for the payload of a ``spark.submit`` job, and ``driver`` for what becomes of the program.
"""

from glidemq_orchestrate.spark.submit.handler import handlers

__all__ = ["handlers"]
