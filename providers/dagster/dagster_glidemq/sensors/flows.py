"""build_glidemq_flow_sensor: runs and asset events for flows that have ended.

Flows end in another order than they begin, so no time of a flow can be a cursor. The events of a flow's home
queue contain its end: the cursor is the id of the last event of each queue. If events were trimmed before
they were read, the flows themselves are read, page by page from the newest on. All flows that still exist are
read; those that have ended since the last event read are passed on. A tick that fills up within that list
stores its position, and the next tick continues there before it reads further events.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

import dagster as dg

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.sensors.tick import (
    BEGINNING,
    REQUESTS_A_TICK,
    RequestResult,
    SensorOptions,
    Start,
    TickRequests,
    check_options,
    new_events,
    patience_of,
    supervise_briefly,
)
from glidemq_orchestrate import EventReader, FlowProducer, FlowState
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound
from glidemq_orchestrate.events import Event
from glidemq_orchestrate.flows import FlowId, FlowStatus
from glidemq_orchestrate.runs import Patience
from glidemq_orchestrate.wire.keys import check_queue_name

ENDED: Final = (FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED)
PAGE: Final = 500
# The end time of a flow comes from the clock of the reporting client, the id of an event from the server.
CLOCKS_DIFFER_MS: Final = 10_000


class Gap(NamedTuple):
    """A list of flows that is being read because events are missing.

    Attributes:
        since: The time of the last event before the missing events, in ms.
        created: When the last flow read from the list was created, in ms; 0: none was read.
        stored_as: The id under which that flow is stored.
    """

    since: int
    created: int = 0
    stored_as: str = ""


class FlowCursor(NamedTuple):
    """The position in a queue: the id of its last event ('': not begun), and a list that is being read."""

    event: str
    gap: Gap | None = None


def build_glidemq_flow_sensor(  # noqa: PLR0913  keyword-only, most have defaults
    *,
    name: str,
    queues: Collection[str],
    states: Collection[str] = ENDED,
    labels: Mapping[str, str] | None = None,
    flow_name: str | None = None,
    request: Callable[[FlowStatus], RequestResult] | None = None,
    partitions: dg.DynamicPartitionsDefinition | None = None,
    partition_key: Callable[[FlowStatus], str] | None = None,
    start: Start = "latest",
    max_requests: int = REQUESTS_A_TICK,
    resource_key: str = "glidemq",
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that requests runs, or records asset events, for flows that have ended.

    Every generation of a flow that ends is passed on at least once, in its state at the time of reading. A
    generation that is repaired and ends again is passed on again; while it runs, it is not passed on. Each
    end requests one run, even if Dagster is killed and repeats the tick; asset events may then be recorded
    twice. A flow that is removed before it is read is lost: set ``retention`` to more than the longest time
    without a tick.

    If only Node workers serve the queues of a flow, and no client waits for it, each tick supervises its home
    queue for up to two seconds, so that the flow proceeds. ``glidemq supervise`` does so continuously.

    An event costs about three calls. If more than about 1,000 events arrive between ticks, the oldest are
    gone. Then all flows on the server are read, 100 per call, over several ticks if there are many, and some
    flows may be passed on again. If the server cannot be reached for 5 seconds, the tick fails, and the next
    tick continues.

    Args:
        name: Name of the sensor. Run keys belong to the name: under another name, runs are launched again.
        queues: The home queues of the flows. The home of a flow is the queue of most of its nodes; of equal
            ones, the first.
        states: Only flows in these final states, out of ``completed``, ``failed``, ``cancelled``.
        labels: Only flows with all these labels.
        flow_name: Only flows with this name.
        request: Gets a flow, and returns values as for ``build_glidemq_event_sensor``. By default it requests
            a run of the target, with tags that name the flow, and with its partition if ``partitions`` is
            given.
        partitions: Partitions to which the keys of requests and asset events are added before the runs start.
            Existing keys are unchanged.
        partition_key: Returns the partition key of a flow for the default request; by default its id, in
            which ``...`` becomes ``___``.
        start: Where the first tick starts: ``latest``: with flows that end from then on; ``earliest``: with
            all ended flows that still exist.
        max_requests: The max number of runs and asset events of one tick.
        resource_key: Key of the ``GlideMQResource``.
        **options: See ``build_glidemq_event_sensor``.

    Raises:
        ConfigurationError: An argument is invalid; nothing was sent.
    """
    homes = _queues(name, queues)
    check_options(name, options, has_request=request is not None, max_requests=max_requests)
    wanted = _Wanted(_states(name, states), dict(labels or {}), flow_name)
    key_of = partition_key or (lambda flow: flow.id.replace("...", "___"))  # Dagster refuses dots
    ask = request or (lambda flow: _request(flow, key_of(flow) if partitions is not None else None))

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)
    def evaluate(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        glidemq: GlideMQConnection = getattr(context.resources, resource_key)
        tick = TickRequests(max_requests, partitions)
        positions = _read(context.cursor, homes)
        with FlowProducer(glidemq.settings()) as producer:
            ended = _Ended(producer, patience_of(glidemq), wanted, context.log)
            # The queue that is most behind comes first: none starves while another fills each tick.
            for home in sorted(homes, key=lambda queue: _ms(positions[queue].event)):
                if not tick.is_full():
                    supervise_briefly(home, producer, ended.patience, context.log)
                begun = positions[home].event or (BEGINNING if start == "earliest" else None)
                with EventReader(home, glidemq.settings(), position=begun) as reader:
                    if begun is None:
                        positions[home] = FlowCursor(ended.patience(reader.start))
                        continue
                    for flow, position in ended.of(home, reader, positions[home].gap, tick):
                        if flow is not None:
                            tick.add(ask(flow), _key(flow))
                        positions[home] = position
        return tick.result(json.dumps(positions), f"no flow of {', '.join(homes)} has ended")

    return evaluate


FoundFlow = tuple[FlowStatus | None, FlowCursor]
"""A flow to pass on, or None, and the position after it."""


class _Wanted:
    """The filter for flows."""

    def __init__(self, states: frozenset[FlowState], labels: dict[str, str], flow_name: str | None) -> None:
        self.states, self.labels, self.flow_name = states, labels, flow_name
        self.kinds = {f"flow.{state}" for state in states}

    def takes(self, flow: FlowStatus) -> bool:
        return (
            flow.state in self.states
            and self.flow_name in (None, flow.name)
            and self.labels.items() <= dict(flow.labels).items()
        )


class _Ended:
    """Finds the flows that have ended."""

    def __init__(self, producer: FlowProducer, patience: Patience, wanted: _Wanted, log: Any) -> None:
        self.patience = patience
        self._producer, self._wanted, self._log = producer, wanted, log

    def of(self, home: str, reader: EventReader, gap: Gap | None, tick: TickRequests) -> Iterator[FoundFlow]:
        """The ended flows of a queue; the rest follows in the next tick if this tick is full."""
        position = reader.start()
        if gap is not None:
            yield from self._missed(home, position, gap, tick)
        lost: Gap | None = None
        for event in new_events(reader, self.patience, tick):
            if event.is_gap:
                self._log.warning("events of queue %s after %s are lost: all flows are read", home, event.id)
                lost = Gap(_ms(event.id))
                continue
            is_end = event.kind in self._wanted.kinds  # each end has a separate event
            yield (self._flow(event) if is_end else None), FlowCursor(event.id, lost)
            if lost is not None:
                yield from self._missed(home, event.id, lost, tick)
                lost = None

    def _flow(self, event: Event) -> FlowStatus | None:
        """The generation that an event reports as ended, if it is wanted and does not run again."""
        try:
            flow = self.patience(partial(self._producer.get, event.flow_id))
            is_current = flow.generation == event.generation
            history = [self.patience(flow.status)] if is_current else self.patience(flow.history)
        except FlowNotFound:
            self._log.warning("flow %s has ended and was removed before it was read", event.flow_id)
            return None
        found = [one for one in history if one.generation == event.generation]
        return found[0] if found and self._wanted.takes(found[0]) else None

    def _missed(self, home: str, event: str, gap: Gap, tick: TickRequests) -> Iterator[FoundFlow]:
        """The generations of all existing flows that have ended since the gap began, newest flow first."""
        label = next(iter(self._wanted.labels.items()), None)
        while not tick.is_full():
            before = _mark(gap)
            page = self.patience(partial(self._producer.list, label=label, before=before, limit=PAGE))
            for flow in page:
                gap = Gap(gap.since, _time(flow.created_at), flow.stored_as or flow.id)
                for one in self._generations(flow) if flow.queue == home else ():
                    if self._wanted.takes(one) and _ended(one) >= gap.since - CLOCKS_DIFFER_MS:
                        yield one, FlowCursor(event, gap)
                if tick.is_full():
                    return
            if len(page) < PAGE:
                yield None, FlowCursor(event)
                return
            yield None, FlowCursor(event, gap)

    def _generations(self, flow: FlowStatus) -> Sequence[FlowStatus]:
        """All generations of a flow from a list, which has only the newest one."""
        if flow.generation == 0:
            return [flow]
        try:
            return self.patience(self.patience(partial(self._producer.get, flow.id)).history)
        except FlowNotFound:
            return [flow]


def _queues(name: str, queues: Collection[str]) -> list[str]:
    if isinstance(queues, str) or not queues:
        raise ConfigurationError(f"queues of sensor {name} must be a list of queues, got {queues!r:.100}")
    return [check_queue_name(queue) for queue in dict.fromkeys(queues)]


def _states(name: str, states: Collection[str]) -> frozenset[FlowState]:
    if isinstance(states, str) or not states or not set(ENDED).issuperset(states):
        raise ConfigurationError(
            f"states of sensor {name} must be a list of {', '.join(ENDED)}, got {states!r:.100}"
        )
    return frozenset(FlowState(state) for state in states)


def _read(cursor: str | None, homes: Sequence[str]) -> dict[str, FlowCursor]:
    """The stored position of each queue."""
    try:
        stored = json.loads(cursor) if cursor else {}
        return {home: _position(*stored.get(home, ["", None])) for home in homes}
    except (ValueError, TypeError, AttributeError) as exc:
        raise ConfigurationError(
            "the cursor of this sensor is not one that it has stored: reset it in the UI"
        ) from exc


def _position(event: str, gap: Sequence[Any] | None) -> FlowCursor:
    return FlowCursor(str(event), None if gap is None else Gap(int(gap[0]), int(gap[1]), str(gap[2])))


def _ms(event: str) -> int:
    return int(event.partition("-")[0] or 0)


def _time(moment: datetime | None) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1_000)


def _ended(flow: FlowStatus) -> int:
    return _time(flow.finished_at)


def _mark(gap: Gap) -> FlowStatus | None:
    """The flow after which the list continues: only its position in the list matters."""
    if not gap.stored_as:
        return None
    created = datetime.fromtimestamp(gap.created / 1_000, UTC)
    return FlowStatus(
        FlowId(gap.stored_as),
        "",
        FlowState.UNKNOWN,
        "",
        0,
        0,
        0,
        "",
        {},
        created,
        None,
        stored_as=gap.stored_as,
    )


def _key(flow: FlowStatus) -> str:
    return f"{flow.id}/{flow.generation}/{_ended(flow)}"


def _request(flow: FlowStatus, partition: str | None) -> dg.RunRequest:
    known = {
        "flow_id": flow.id,
        "flow": flow.name,
        "state": flow.state.value,
        "generation": str(flow.generation),
    }
    return dg.RunRequest(
        partition_key=partition, tags={f"dagster-glidemq/{part}": value for part, value in known.items()}
    )
