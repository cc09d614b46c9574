"""Which engine serves a master."""

from __future__ import annotations

from glidemq_orchestrate.spark.classic import ClassicEngine
from glidemq_orchestrate.spark.connect import ConnectEngine
from glidemq_orchestrate.spark.engine import Engine
from glidemq_orchestrate.spark.session import warm_session
from glidemq_orchestrate.spark.settings import SparkSettings


def engine_for(settings: SparkSettings | None = None) -> Engine:
    """The engine of this process, with a session that is still to be built.

    Args:
        settings: Those of the session; None: of the environment, or of the session that the program has.
    """
    if settings is not None and settings.is_connect:
        return ConnectEngine(settings)
    warm_session.use(settings)
    return ClassicEngine(warm_session)
