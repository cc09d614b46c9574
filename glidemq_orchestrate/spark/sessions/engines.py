"""The engine for a master."""

from __future__ import annotations

from typing import TypeAlias

from glidemq_orchestrate.spark.sessions.classic import ClassicEngine
from glidemq_orchestrate.spark.sessions.connect import ConnectEngine
from glidemq_orchestrate.spark.sessions.warm import warm_session
from glidemq_orchestrate.spark.setup.spark_settings import SparkSettings

Engine: TypeAlias = ClassicEngine | ConnectEngine


def engine_for(settings: SparkSettings | None = None) -> Engine:
    """The engine of this process; its session is not built yet.

    Args:
        settings: Those of the session; None: those of the environment, or the session that the program has.
    """
    if settings is not None and settings.is_connect:
        return ConnectEngine(settings)
    warm_session.use(settings)
    return ClassicEngine(warm_session)
