"""The reader of a stream that cannot be: it tells why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import datasource as api  # noqa: TID253  whoever imports this module has it

from glidemq_orchestrate.errors import ConfigurationError


class RefusedStream(api.DataSourceStreamReader):
    """A stream whose options are not valid: says so when it is asked for its first offset.

    When ``streamReader`` itself raises, PySpark ends with an error of its own that hides the reason.
    """

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  Spark's
        """Raise the error; Spark asks this of a new stream."""
        raise self._error

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]  # noqa: N802  as in PySpark 4.0
        """Raise the error; Spark asks this of a stream that goes on."""
        raise self._error

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[api.InputPartition]:
        """Raise the error; Spark asks this first where a batch was planned before."""
        del start, end
        raise self._error

    def read(self, partition: api.InputPartition) -> Iterator[Any]:
        """Raise the error; no task comes here."""
        del partition
        raise self._error
