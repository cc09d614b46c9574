"""Selects the rows to read from a table: by options, and by the filters that Spark pushes down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.spark.source.options import Options
from glidemq_orchestrate.spark.source.part import ALL_TIMES, END_OF_TIME_MS, Times
from glidemq_orchestrate.spark.source.tables import TABLES
from glidemq_orchestrate.wire.keys import check_flow_id, check_queue_name

ROWS: Final = 10_000
MAX_ROWS: Final = 10_000_000
STATES: Final = frozenset(JobState) - {JobState.SKIPPED}
"""The states of jobs; ``skipped`` is a state of nodes."""
ENDED_JOBS: Final = frozenset({JobState.COMPLETED, JobState.FAILED})
ENDED_FLOWS: Final = frozenset({FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED})
_SPANS: Final = ("since", "until")
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": ("queue", "state", "payload", *_SPANS),
    "flows": ("queue", "state", "flow_id", "created_since", "created_until", "generations", *_SPANS),
    "nodes": ("queue", "state", "flow_state", "flow_id", "created_since", "created_until", *_SPANS),
    "elements": ("flow_id", "node"),
    "events": ("queue", *_SPANS),
}
_EVERY_STATE: Final = [*sorted(STATES - {JobState.UNKNOWN}), JobState.UNKNOWN]


@dataclass(frozen=True, slots=True)
class Scan:
    """The selection of a read. None, and all times: no limit.

    Attributes:
        queues: The queues of jobs and events, or the home queues of flows and nodes.
        states: The states of jobs, flows or nodes.
        times: When the jobs or flows ended, or the events happened.
        created: When the flows were created.
        rows: About how many rows a task reads.
        nodes: The arrays whose elements are read.
    """

    table: str
    queues: tuple[str, ...] | None = None
    states: tuple[str, ...] | None = None
    flow_states: tuple[str, ...] | None = None
    flow_ids: tuple[str, ...] | None = None
    times: Times = ALL_TIMES
    created: Times = ALL_TIMES
    payload: bool = True
    with_past: bool = False
    rows: int = ROWS
    nodes: tuple[str, ...] = ()

    @property
    def job_states(self) -> frozenset[JobState]:
        """The states that the selected jobs can have."""
        states = STATES if self.states is None else frozenset(map(JobState, self.states))
        return states if self.times.is_all else states & ENDED_JOBS

    @property
    def states_of_flows(self) -> frozenset[FlowState]:
        """The states that the selected flows can have, for the tables of flows and of nodes."""
        chosen = self.states if self.table == "flows" else self.flow_states
        states = frozenset(FlowState if chosen is None else map(FlowState, chosen))
        return states if self.times.is_all else states & ENDED_FLOWS

    def has(self, flow: FlowStatus) -> bool:
        """Whether a flow is selected."""
        return (
            flow.state in self.states_of_flows
            and self.selects(flow.home)
            and _is_in(self.created, flow.created_at)
            and _is_in(self.times, flow.finished_at)
        )

    def selects(self, queue: str) -> bool:
        """Whether a queue is selected, or is a shard of one that is."""
        return self.queues is None or not {queue, split_shard(queue)[0]}.isdisjoint(self.queues)

    def narrowed(self, attribute: str, operator: str, value: Any) -> Scan:
        """The selection narrowed by a filter; unchanged if the filter does not limit it.

        Args:
            attribute: The column.
            operator: ``=``, ``in``, ``<``, ``<=``, ``>`` or ``>=``.
            value: The value; several for ``in``.
        """
        field = _FILTERED[self.table].get(attribute)
        if field is None:
            return self
        if field in ("times", "created"):
            times: Times = getattr(self, field)
            limits = _times(operator, value)
            return self if limits is None else self._with(field, times.within(limits))
        if operator not in ("=", "in"):
            return self
        values = [value] if operator == "=" else list(value)
        if not all(isinstance(one, str) for one in values):
            return self
        if (known := _KNOWN.get((self.table, field))) is not None:
            values = [one for one in values if one in known]
        return self._with(field, _among(getattr(self, field), values))

    def _with(self, field: str, value: Any) -> Scan:
        changes: dict[str, Any] = {field: value}
        return replace(self, **changes)


_FILTERED: Final[Mapping[str, Mapping[str, str]]] = {
    "jobs": {"queue": "queues", "state": "states", "finished_at": "times"},
    "flows": {
        "home": "queues", "state": "states", "flow_id": "flow_ids",
        "finished_at": "times", "created_at": "created",
    },
    "nodes": {"home": "queues", "flow_state": "flow_states", "flow_id": "flow_ids"},
    "elements": {},
    "events": {"queue": "queues", "at": "times"},
}  # fmt: skip
_KNOWN: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("jobs", "states"): frozenset(STATES),
    ("flows", "states"): frozenset(FlowState),
    ("nodes", "flow_states"): frozenset(FlowState),
}


def scan_of(given: Mapping[str, str]) -> tuple[Scan, Options]:
    """The rows that the options of a read select.

    Raises:
        ConfigurationError: An option is unknown, missing or invalid.
    """
    lowered = {name.lower(): value for name, value in given.items()}
    table = lowered.get("table", "")
    if table not in TABLES:
        raise ConfigurationError(
            f"a read of glidemq needs the option table: one of {', '.join(TABLES)}; got {described(table)}"
        )
    options = Options(
        given, ("table", "rows_per_partition", *_OPTIONS[table]), f"a read of the glidemq table {table}"
    )
    if table == "elements":
        for name in ("flow_id", "node"):
            options.required(name)
    every_state = _EVERY_STATE if table == "jobs" else [*_EVERY_STATE, JobState.SKIPPED]
    states = list(FlowState) if table == "flows" else every_state
    past = (options.choices("generations", ("current", "all")) or ("current",))[0]
    return (
        Scan(
            table,
            options.names("queue", check_queue_name),
            options.choices("state", states),
            options.choices("flow_state", list(FlowState)),
            options.names("flow_id", check_flow_id),
            _between(options, "since", "until"),
            _between(options, "created_since", "created_until"),
            options.boolean("payload", default=True),
            past == "all",
            options.whole("rows_per_partition", ROWS, 1, MAX_ROWS),
            options.names("node") or (),
        ),
        options,
    )


def _between(options: Options, low: str, high: str) -> Times:
    since, until = options.moment_ms(low), options.moment_ms(high)
    if since is not None and until is not None and until <= since:
        raise ConfigurationError(f"the option {high} of {options.what} must be later than {low}")
    return Times(max(since or 0, 0), END_OF_TIME_MS if until is None else max(until, 0))


def _is_in(times: Times, moment: datetime | None) -> bool:
    return times.is_all or (moment is not None and times.has(round(moment.timestamp() * 1000)))


def _among(now: Iterable[str] | None, values: Iterable[str]) -> tuple[str, ...]:
    allowed = dict.fromkeys(values)
    return tuple(allowed) if now is None else tuple(one for one in now if one in allowed)


def _times(operator: str, value: Any) -> Times | None:
    """The times of a comparison, to the millisecond, or a wider range: Spark compares again."""
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    ms = round(moment.timestamp() * 1_000_000) // 1000
    low = max(ms, 0) if operator in ("=", ">", ">=") else 0
    high = max(ms + 1, 0) if operator in ("=", "<", "<=") else END_OF_TIME_MS
    return Times(low, high) if operator != "in" else None
