"""build_glidemq_event_sensor: runs and asset events for the events of a queue.

The cursor is the id of the last event that was looked at. It is read with plain reads from there: no consumer
group, whose acknowledgement would come before Dagster has stored what it was asked for.
"""

from collections.abc import Callable, Collection
from typing import Unpack

import dagster as dg

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.sensors.tick import (
    BEGINNING,
    REQUESTS_A_TICK,
    Answer,
    SensorOptions,
    Start,
    Tick,
    check_options,
    look_after,
    new_events,
    patience_of,
)
from glidemq_orchestrate import Event, EventFilter, EventReader, FlowProducer
from glidemq_orchestrate.wire.keys import check_queue_name

ENDS = ("completed", "failed")


def build_glidemq_event_sensor(  # noqa: PLR0913  keyword-only, most have defaults
    *,
    name: str,
    queue: str,
    kinds: Collection[str] = ENDS,
    request: Callable[[Event], Answer] | None = None,
    run_key: Callable[[Event], str] | None = None,
    start: Start = "latest",
    max_requests: int = REQUESTS_A_TICK,
    resource_key: str = "glidemq",
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Make a sensor that asks for runs, or records asset events, for the events of a queue.

    Each event is handed over at least once, in order. One run is launched for it, also when Dagster is killed
    and repeats the tick; asset events may then be recorded twice. A server keeps about the newest 1,000
    events of a queue. Those that were trimmed before they were read are lost: the log of the tick says so,
    and ``kinds`` with ``gmo.events-lost`` hands over an event in their place. When the server cannot be
    reached for 5 seconds the tick fails, and the next one goes on.

    Args:
        name: Name of the sensor. Run keys count for one name: another one launches runs again.
        queue: The queue.
        kinds: Kinds of events, see ``glidemq_orchestrate.EventKind``: ``completed``, ``failed``, ``added``,
            ``flow.completed``, ... With one of flows each tick supervises the queue for up to two seconds
            where nobody does: flows that only workers in Node serve would not end.
        request: What to do for an event: returns a ``RunRequest``, a ``SkipReason``, an
            ``AssetMaterialization``, ``AssetObservation`` or ``AssetCheckEvaluation``, a list of these, or
            None. By default a run of the target, with tags that name the event. If it raises, the tick fails
            and is repeated from that event on, until the function has been mended.
        run_key: Makes the run key of requests without one; by default of queue, id and kind of the event.
        start: Where the first tick begins: ``latest``: after the newest event, which is stored at once;
            ``earliest``: at the oldest that is kept.
        max_requests: The most runs and asset events of one tick.
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
    ask = request or (lambda event: _request(queue, event))
    key_of = run_key or (lambda event: f"{queue}/{event.id}/{event.kind}")

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)
    def evaluate(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        glidemq: GlideMQConnection = getattr(context.resources, resource_key)
        patience, tick = patience_of(glidemq), Tick(max_requests)
        if is_of_flows:
            with FlowProducer(glidemq.settings()) as producer:
                look_after(queue, producer, patience, context.log)
        position = context.cursor or (BEGINNING if start == "earliest" else None)
        with EventReader(queue, glidemq.settings(), position=position) as reader:
            if position is None:
                position = patience(reader.start)
                return tick.result(position, f"begins after event {position} of queue {queue}")
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


def _request(queue: str, event: Event) -> dg.RunRequest:
    known = {"watched_queue": queue, "event": event.id, "kind": event.kind}
    known |= {"event_job_id": event.job} if event.job else {}
    known |= {"flow_id": event.flow_id} if event.flow_id else {}
    return dg.RunRequest(tags={f"dagster-glidemq/{part}": value for part, value in known.items()})
