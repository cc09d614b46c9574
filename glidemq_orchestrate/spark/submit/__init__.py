"""Programs for ``spark-submit``: ``glidemq worker --app glidemq_orchestrate.spark.submit`` runs them.

A worker of ``glidemq_orchestrate.spark`` runs them too, beside the steps on its session; this one has no
session. ``application`` describes the payload of a ``spark.submit`` job, ``handler`` the life of the program,
and ``drivers`` the processes that keep it alive. Importing this package loads none of them: the keeper of a
driver starts fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glidemq_orchestrate.spark.submit.handler import handlers

__all__ = ["handlers"]


def __getattr__(name: str) -> Any:
    if name != "handlers":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from glidemq_orchestrate.spark.submit.handler import handlers  # noqa: PLC0415

    return handlers
