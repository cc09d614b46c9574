"""Programs for ``spark-submit``: ``glidemq worker --app glidemq_orchestrate.spark.submit`` runs them.

A worker of ``glidemq_orchestrate.spark`` runs them too, beside the steps on its session; this one has no
session. ``application`` describes the payload of a ``spark.submit`` job, ``handler`` the life of the program,
and ``keeper`` the process that outlives a killed worker. Importing this package loads none of them, so that a
keeper starts fast.
"""

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.spark.submit.handler import handlers

__all__ = ["handlers"]

__getattr__: Final = _on_first_use(__name__, {"handlers": f"{__name__}.handler"})
