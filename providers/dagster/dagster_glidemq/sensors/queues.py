"""Sensors for a queue: a run when it has a number of jobs; runs and asset events for its events.

The cursor of the first is JSON: a random word from the first tick, the number of requests so far, whether the
condition held, and when a run was requested. Word and number form the run key, so a repeated tick requests
the same run; after a reset of the cursor all keys are new. The cursor of the second is the id of the last
processed event. Events are read without a consumer group: its acknowledgement would come before Dagster has
stored the requests.
"""

import json
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Unpack

import dagster as dg

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.durations import in_seconds
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
from glidemq_orchestrate import EventReader, FlowProducer, JobState, Queue
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.events import Event, EventFilter
from glidemq_orchestrate.runs import Duration
from glidemq_orchestrate.wire.keys import check_queue_name

COUNTED: Final = frozenset(JobState) - {
    JobState.WAITING_CHILDREN,
    JobState.GROUP_WAITING,
    JobState.SKIPPED,
    JobState.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class _Position:
    word: str
    number: int = 0
    holds: bool = False
    asked_at: float = 0.0

    @classmethod
    def read(cls, cursor: str) -> "_Position":
        try:
            stored: Any = json.loads(cursor)
            return cls(
                str(stored["word"]), int(stored["number"]), bool(stored["holds"]), float(stored["asked_at"])
            )
        except (ValueError, TypeError, KeyError) as exc:
            raise ConfigurationError(
                "the cursor of this sensor is not one that it has stored: reset it in the UI"
            ) from exc

    def write(self) -> str:
        return json.dumps(asdict(self))


def build_glidemq_queue_depth_sensor(  # noqa: PLR0913  keyword-only, most have defaults
    *,
    name: str,
    queue: str,
    at_least: int | None = None,
    at_most: int | None = None,
    states: Collection[str] = (JobState.WAITING, JobState.PRIORITIZED),
    repeat: Duration | None = None,
    request: Callable[[int], RequestResult] | None = None,
    resource_key: str = "glidemq",
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that requests a run when the number of jobs of a queue enters given bounds.

    It requests one run each time the number enters the bounds, and with ``repeat`` further runs while it
    stays there. Only the numbers at ticks count: a queue that fills up and empties between two ticks requests
    nothing. The first tick only initializes the cursor. Counting is cheap: a few calls, for any number of
    jobs. If the server cannot be reached for 5 seconds, the tick fails, and the next tick continues.

    Args:
        name: Name of the sensor.
        queue: The queue. A queue that was never used has no jobs.
        at_least: The lower bound of the number.
        at_most: The upper bound; at least one of the two is required.
        states: The states of the jobs to count, out of ``waiting``, ``prioritized``, ``delayed``, ``active``,
            ``suspended``, ``completed``, ``failed``. Elements of arrays that wait or run count like jobs.
        repeat: Request another run after this long, if the number is still within the bounds; None: never.
        request: Gets the number, and returns values as for ``build_glidemq_event_sensor``. By default it
            requests a run of the target, with tags that name the queue and the number.
        resource_key: Key of the ``GlideMQResource``.
        **options: See ``build_glidemq_event_sensor``.

    Raises:
        ConfigurationError: An argument cannot be right; nothing was sent.
    """
    check_queue_name(queue)
    pause = None if repeat is None else in_seconds("repeat", repeat)
    check_options(name, options, has_request=request is not None, max_requests=1)
    counted = _states(name, states)
    if at_least is None and at_most is None:
        raise ConfigurationError(f"sensor {name} has no bound: give it at_least or at_most")
    ask = request or (lambda number: _depth_request(queue, number))

    def is_within(number: int) -> bool:
        return (at_least is None or number >= at_least) and (at_most is None or number <= at_most)

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)
    def evaluate(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        glidemq: GlideMQConnection = getattr(context.resources, resource_key)
        tick = TickRequests(1)
        if not context.cursor:
            return tick.result(_Position(secrets.token_hex(8)).write(), f"started to watch queue {queue}")
        position = _Position.read(context.cursor)
        with Queue(queue, glidemq.settings()) as client:
            counts = patience_of(glidemq)(lambda: client.counts(indexed_only=True).with_elements())
        number = sum(counts[state] for state in counted)
        holds, now = is_within(number), time.time()
        is_due = pause is not None and now - position.asked_at >= pause
        if holds and (is_due or not position.holds):
            position = replace(position, number=position.number + 1, asked_at=now)
            tick.add(ask(number), f"{queue}/{position.word}/{position.number}")
        position = replace(position, holds=holds)
        return tick.result(
            position.write(), f"queue {queue} has {number} jobs that are {' or '.join(counted)}"
        )

    return evaluate


def _states(name: str, states: Collection[str]) -> list[JobState]:
    known = [] if isinstance(states, str) else [JobState.read(state) for state in states]
    if not known or not COUNTED.issuperset(known):
        raise ConfigurationError(
            f"states of sensor {name} must be a list of {', '.join(sorted(COUNTED))}, got {states!r:.100}"
        )
    return list(dict.fromkeys(known))


def _depth_request(queue: str, number: int) -> dg.RunRequest:
    return dg.RunRequest(tags={"dagster-glidemq/watched_queue": queue, "dagster-glidemq/jobs": str(number)})


ENDS = ("completed", "failed")


def build_glidemq_event_sensor(  # noqa: PLR0913  keyword-only, most have defaults
    *,
    name: str,
    queue: str,
    kinds: Collection[str] = ENDS,
    request: Callable[[Event], RequestResult] | None = None,
    run_key: Callable[[Event], str] | None = None,
    start: Start = "latest",
    max_requests: int = REQUESTS_A_TICK,
    resource_key: str = "glidemq",
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that requests runs, or records asset events, for the events of a queue.

    Each event is passed on at least once, in order. One run is launched for it, even if Dagster is killed and
    repeats the tick; asset events may then be recorded twice. A server keeps about the newest 1,000 events of
    a queue. Events that are trimmed before they are read are lost: the tick logs a warning, and with
    ``gmo.events-lost`` in ``kinds`` an event is passed on in their place. If the server cannot be reached for
    5 seconds, the tick fails, and the next tick continues.

    Args:
        name: Name of the sensor. Run keys belong to the name: under another name, runs are launched again.
        queue: The queue.
        kinds: Kinds of events, see ``glidemq_orchestrate.EventKind``: ``completed``, ``failed``, ``added``,
            ``flow.completed``, ... If a kind is about flows, each tick supervises the queue for up to two
            seconds unless something else does: with Node workers alone, flows would not end.
        request: Gets an event, and returns a ``RunRequest``, a ``SkipReason``, an ``AssetMaterialization``,
            ``AssetObservation`` or ``AssetCheckEvaluation``, a list of these, or None. By default it requests
            a run of the target, with tags that name the event. If it raises, the tick fails and is repeated
            from that event on, until the function is fixed.
        run_key: Returns the run key for requests without one; by default from queue, id and kind of the
            event.
        start: Where the first tick starts: ``latest``: after the newest event, whose id is stored at once;
            ``earliest``: at the oldest event that is kept.
        max_requests: The max number of runs and asset events of one tick.
        resource_key: Key of the ``GlideMQResource``.
        **options: ``job``, ``jobs``, ``job_name``, ``target``, ``asset_selection``,
            ``minimum_interval_seconds``, ``description``, ``default_status``, ``tags`` and ``metadata``, as
            for ``dagster.sensor``.

    Raises:
        ConfigurationError: An argument cannot be right; nothing was sent.

    Example:
        .. code-block:: python

            def loaded(event: Event) -> dg.AssetMaterialization:
                return dg.AssetMaterialization("orders", metadata={"job": event.job_id})

            orders = build_glidemq_event_sensor(
                name="orders_loaded", queue="orders", kinds=["completed"], request=loaded
            )
    """
    check_queue_name(queue)
    check_options(name, options, has_request=request is not None, max_requests=max_requests)
    wanted = EventFilter(kinds=kinds)
    is_of_flows = any(kind.startswith("flow.") for kind in kinds or ())
    ask = request or (lambda event: _event_request(queue, event))
    key_of = run_key or (lambda event: f"{queue}/{event.id}/{event.kind}")

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)
    def evaluate(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        glidemq: GlideMQConnection = getattr(context.resources, resource_key)
        patience, tick = patience_of(glidemq), TickRequests(max_requests)
        if is_of_flows:
            with FlowProducer(glidemq.settings()) as producer:
                supervise_briefly(queue, producer, patience, context.log)
        position = context.cursor or (BEGINNING if start == "earliest" else None)
        with EventReader(queue, glidemq.settings(), position=position) as reader:
            if position is None:
                position = patience(reader.start)
                return tick.result(position, f"starts after event {position} of queue {queue}")
            for event in new_events(reader, patience, tick):
                if event.is_gap:
                    context.log.warning(
                        "events of queue %s after %s were trimmed before they were read", queue, event.id
                    )
                if wanted.kinds is None or event.kind in wanted.kinds:
                    tick.add(ask(event), key_of(event))
                position = event.id
        return tick.result(position, f"nothing new on queue {queue}")

    return evaluate


def _event_request(queue: str, event: Event) -> dg.RunRequest:
    known = {"watched_queue": queue, "event": event.id, "kind": event.kind}
    known |= {"event_job_id": event.job} if event.job else {}
    known |= {"flow_id": event.flow_id} if event.flow_id else {}
    return dg.RunRequest(tags={f"dagster-glidemq/{part}": value for part, value in known.items()})
