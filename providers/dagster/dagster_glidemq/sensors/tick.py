"""The requests of one tick of a sensor, and the arguments that all sensors share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import dagster as dg

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.durations import in_seconds
from glidemq_orchestrate import EventReader, FlowProducer
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.events import Event
from glidemq_orchestrate.runs import Patience

AssetEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
Requested = dg.RunRequest | dg.SkipReason | AssetEvent
RequestResult = Requested | Sequence[Requested] | None
"""The return type of a request function; None: nothing."""
Start = Literal["latest", "earliest"]

# Dagster ends a tick after a minute, and would repeat it endlessly.
TICK_SECONDS: Final = 15.0
PATIENCE_SECONDS: Final = 5.0
EVENTS_A_TICK: Final = 2_000
REQUESTS_A_TICK: Final = 100
REASONS_SHOWN: Final = 5
BEGINNING: Final = "0-0"


class SensorOptions(TypedDict, total=False):
    """The arguments of ``dagster.sensor`` that every sensor of this package takes."""

    job: Any
    jobs: Sequence[Any]
    job_name: str
    target: Any
    asset_selection: Any
    minimum_interval_seconds: int
    description: str
    default_status: dg.DefaultSensorStatus
    tags: Mapping[str, str]
    metadata: Mapping[str, Any]


_TARGETS: Final = ("job", "jobs", "job_name", "target", "asset_selection")


def check_options(name: str, options: SensorOptions, *, has_request: bool, max_requests: int) -> None:
    """Refuse a sensor that could not request anything.

    Raises:
        ConfigurationError: The sensor could request nothing.
    """
    if not has_request and not any(options.get(one) is not None for one in _TARGETS):
        raise ConfigurationError(f"sensor {name} requests nothing: give it a job, a target, or a request")
    if max_requests < 1:
        raise ConfigurationError(f"max_requests of sensor {name} must be 1 or more, got {max_requests}")


def patience_of(connection: GlideMQConnection) -> Patience:
    """Patience for the calls of a tick, which must be short: after an outage the next tick continues."""
    return Patience(min(in_seconds("patience", connection.patience), PATIENCE_SECONDS))


class TickRequests:
    """Collects the requests of a tick.

    Args:
        most: After this number of requests the tick is full; the requests of one event are never split.
        partitions: Partitions to which the keys of requests and asset events are added.
    """

    def __init__(self, most: int, partitions: dg.DynamicPartitionsDefinition | None = None) -> None:
        self._most, self._partitions = most, partitions
        self._end = time.monotonic() + TICK_SECONDS
        self._runs: dict[str, dg.RunRequest] = {}
        self._events: list[AssetEvent] = []
        self._reasons: list[str] = []
        self._keys: set[str] = set()

    def is_full(self) -> bool:
        """Whether the rest must wait for the next tick."""
        return len(self._runs) + len(self._events) >= self._most or time.monotonic() >= self._end

    def add(self, answer: RequestResult, key: str) -> None:
        """Add the return value of a request function; a repeat for the same key does nothing.

        Args:
            answer: A request, a skip reason, an asset event, several of these, or None.
            key: The run key of requests that have none; each key is processed once.

        Raises:
            ConfigurationError: The function returned something else.
        """
        if key in self._keys:
            return
        self._keys.add(key)
        for number, one in enumerate(_every(answer)):
            if isinstance(one, dg.RunRequest):
                own = one.run_key or (key if number == 0 else f"{key}/{number}")
                self._runs.setdefault(own, one.with_replaced_attrs(run_key=own))
            elif isinstance(one, dg.SkipReason):
                self._reasons.append(one.skip_message or "")
            elif isinstance(one, AssetEvent):
                self._events.append(one)
            else:
                raise ConfigurationError(
                    "a request function returns RunRequest, SkipReason, asset events, a list of them, or "
                    f"None; got {type(one).__name__}"
                )

    def result(self, cursor: str, nothing: str) -> dg.SensorResult:
        """The result of the tick; ``nothing``: the reason if there are no requests and no other reason."""
        runs = list(self._runs.values())
        reasons = "; ".join(dict.fromkeys(self._reasons[:REASONS_SHOWN])) or nothing
        reasons = f"{len(self._events)} asset events" if self._events else reasons
        partitions = [run.partition_key for run in runs] + [event.partition for event in self._events]
        new = list(dict.fromkeys(filter(None, partitions))) if self._partitions is not None else []
        return dg.SensorResult(
            run_requests=runs,
            skip_reason=None if runs else reasons,
            cursor=cursor,
            dynamic_partitions_requests=[self._partitions.build_add_request(new)]
            if self._partitions is not None and new
            else None,
            asset_events=self._events,
        )


def _every(answer: Any) -> Sequence[Any]:
    """A return value as a list. Requests and events of Dagster are tuples themselves."""
    if answer is None:
        return []
    is_several = isinstance(answer, list | tuple) and not isinstance(answer, Requested)
    return answer if is_several else [answer]


def new_events(reader: EventReader, patience: Patience, tick: TickRequests) -> Iterator[Event]:
    """The events after the position of a reader, until there are no more or the tick is full."""
    seen = 0
    while seen < EVENTS_A_TICK and not tick.is_full():
        events = patience(reader.read)
        if not events:
            return
        for event in events:
            yield event
            seen += 1
            if tick.is_full():
                return


def supervise_briefly(home: str, producer: FlowProducer, patience: Patience, log: Any) -> None:
    """Supervise a home queue briefly if nothing else does: with Node workers alone, flows would not end."""
    if refused := patience(lambda: producer.supervise(home)):
        log.warning(
            "%s has no supervisor: flows do not notice jobs that end on Node workers, and the server does "
            "not let this sensor do it. Fix: glidemq supervise %s",
            ", ".join(refused),
            " ".join(f"--queue {queue}" for queue in refused),
        )
