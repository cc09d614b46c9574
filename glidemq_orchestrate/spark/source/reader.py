"""The reader of a table: its parts, planned on the driver, and their rows, read by the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import datasource as api  # noqa: TID253  the importers of this module have it

from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.spark.source import array_elements, events, flows, jobs
from glidemq_orchestrate.spark.source.options import RetryingClient
from glidemq_orchestrate.spark.source.scan import Scan
from glidemq_orchestrate.spark.source.tables import record_batch

_TABLES: Final[Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]]] = {
    "jobs": (jobs.plan, jobs.rows),
    "flows": (flows.plan, flows.rows),
    "nodes": (flows.plan_nodes, flows.node_rows),
    "elements": (array_elements.plan, array_elements.rows),
    "events": (events.plan, events.rows),
}
"""How each table is divided into parts, and how the rows of a part are read."""
_OPERATORS: Final = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "In": "in",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}


class TableReader(api.DataSourceReader):
    """Reads a table, without a snapshot; see ``GlideMQDataSource``."""

    def __init__(self, settings: ConnectionSettings, scan: Scan) -> None:
        self._settings, self._scan = settings, scan
        self.pushFilters = _Push(self)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[api.InputPartition]:
        """The parts; each becomes a task."""
        with RetryingClient(self._settings) as client:
            plan, _ = _TABLES[self._scan.table]
            parts = plan(client, self._scan)
        return [api.InputPartition(part) for part in parts]

    def read(self, partition: api.InputPartition | None) -> Iterator[Any]:
        """The rows of a part, as record batches."""
        _, read = _TABLES[self._scan.table]
        if partition is None or partition.value is None:  # Spark's, when there is none
            return
        with RetryingClient(self._settings) as client:
            for rows in read(client, partition.value, self._scan):
                if rows:
                    yield record_batch(self._scan.table, rows)

    def narrow(self, filters: list[Any]) -> list[Any]:
        """Narrow the read by some of the filters. Returns the filters that Spark must apply.

        These are all filters, because rows may change while they are read.
        """
        for one in filters:
            operator = _OPERATORS.get(type(one).__name__)
            if operator is not None and len(one.attribute) == 1:
                self._scan = self._scan.narrowed(one.attribute[0], operator, one.value)
        return filters


class _Push:
    """``pushFilters`` of a reader.

    While ``spark.sql.python.filterPushdown.enabled`` is off, PySpark refuses readers that override the
    method, and a reader cannot read the setting. So this passes for PySpark's own method, by ``__func__``.
    """

    def __init__(self, reader: TableReader) -> None:
        self._reader = reader
        self.__func__ = getattr(api.DataSourceReader, "pushFilters", None)  # PySpark 4.0 has none

    def __call__(self, filters: list[Any]) -> list[Any]:
        return self._reader.narrow(filters)
