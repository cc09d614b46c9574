"""Registers the data source in every session of a step, when the session first uses its name.

Registering it at the start of a session would cost each session milliseconds, and the first session of a JVM
seconds, because Spark then searches all packages for data sources. PySpark cannot register a class lazily, so
the methods that take a format are replaced once there is a session.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.spark.source.tables import NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from glidemq_orchestrate.spark.source.source import GlideMQDataSource

_USES: Final = re.compile(rf"\busing\s+`?{NAME}\b", re.IGNORECASE)


_lock = threading.Lock()
"""Held during a registration: of two concurrent ones, Spark refuses one."""


@functools.cache
def source_class() -> type[GlideMQDataSource]:
    """The class of the data source.

    Raises:
        ConfigurationError: PySpark is missing, or too old.
    """
    try:
        with importing():
            import pyarrow as pa  # noqa: F401, PLC0415  PySpark needs it for every data source
            from pyspark.sql import datasource  # noqa: F401
    except ImportError as exc:
        raise ConfigurationError(
            "the data source glidemq needs PySpark 4 and pyarrow: pip install 'glidemq-orchestrate[spark]'"
        ) from exc
    with importing():
        from glidemq_orchestrate.spark.source.source import GlideMQDataSource  # noqa: PLC0415  it needs PySpark
    return GlideMQDataSource


def register(spark: SparkSession) -> None:
    """Make the data source known to a session. Repeatable, also by several threads at once.

    Raises:
        ConfigurationError: PySpark is missing, or too old.
    """
    source = source_class()
    with _lock:
        if hasattr(spark, "_jvm"):  # a session with a JVM: Spark looks the name up in the active one
            spark.createDataFrame([], "one int")
        spark.dataSource.register(source)


def _renew_lock() -> None:
    """Give a child a new lock: the thread that holds the old one may not be in the child."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@functools.cache
def offer() -> None:
    """Let sessions with a JVM register the data source when they first need it; repeatable."""
    from pyspark.sql import SparkSession, readwriter
    from pyspark.sql.streaming import readwriter as streaming

    _replace(SparkSession, readwriter, streaming)


@functools.cache
def offer_for_connect() -> None:
    """The same for sessions of Spark Connect; repeatable."""
    from pyspark.sql.connect import readwriter
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.streaming import readwriter as streaming

    _replace(SparkSession, readwriter, streaming)


def _replace(sessions: Any, tables: Any, streams: Any) -> None:
    for user in (
        tables.DataFrameReader,
        tables.DataFrameWriter,
        streams.DataStreamReader,
        streams.DataStreamWriter,
    ):
        user.format = _registering(user.format)
    sessions.sql = _registering_in(sessions.sql)


def _registering(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def formatted(self: Any, source: Any, *given: Any, **named: Any) -> Any:
        if isinstance(source, str) and source.lower() == NAME:
            from pyspark.sql import SparkSession

            if (spark := SparkSession.getActiveSession()) is not None:
                register(spark)
        return method(self, source, *given, **named)

    return formatted


def _registering_in(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, sqlQuery: Any, *given: Any, **named: Any) -> Any:  # noqa: N803  PySpark's
        if isinstance(sqlQuery, str) and _USES.search(sqlQuery):
            register(self)
        return method(self, sqlQuery, *given, **named)

    return run
