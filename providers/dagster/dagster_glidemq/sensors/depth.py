"""build_glidemq_queue_depth_sensor: a run when a queue has so many jobs.

The cursor is JSON: a random word, made by the first tick, the number of requests so far, whether the
condition held, and when a run was requested. Word and number are the run key, so a repeated tick asks for the
same run; after a reset of the cursor all keys are new.
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
from dagster_glidemq.sensors.tick import Answer, SensorOptions, Tick, check_options, patience_of
from glidemq_orchestrate import Duration, JobState, Queue
from glidemq_orchestrate.errors import ConfigurationError
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
    request: Callable[[int], Answer] | None = None,
    resource_key: str = "glidemq",
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Make a sensor that asks for a run when a queue begins to have so many jobs.

    One run for each time the number comes into the bounds, and again while it stays there if
    ``repeat`` says so. Only what ticks see counts: a queue that fills up and empties between two of
    them asks for nothing. The first tick stores that it began and asks for nothing. Counting is cheap: some
    calls, however many jobs there are. When the server cannot be reached for 5 seconds the tick fails, and
    the next one goes on.

    Args:
        name: Name of the sensor.
        queue: The queue. One that nobody has ever used has no jobs.
        at_least: The lower bound of the number.
        at_most: The upper one; at least one of the two is needed.
        states: Which jobs are counted together: of ``waiting``, ``prioritized``, ``delayed``, ``active``,
            ``suspended``, ``completed``, ``failed``.
        repeat: Ask again when the last request is so long ago and the number is still within the
            bounds; None: never.
        request: Gets the number; returns as that of ``build_glidemq_event_sensor``. By default a run of the
            target, with tags that name the queue and the number.
        resource_key: Key of the ``GlideMQResource``.
        **options: As for ``build_glidemq_event_sensor``.

    Raises:
        ConfigurationError: An argument cannot be right; nothing was sent.
    """
    check_queue_name(queue)
    pause = None if repeat is None else in_seconds("repeat", repeat)
    check_options(name, options, has_request=request is not None, max_requests=1)
    counted = _states(name, states)
    if at_least is None and at_most is None:
        raise ConfigurationError(f"sensor {name} has no bound: give it at_least or at_most")
    ask = request or (lambda number: _request(queue, number))

    def is_within(number: int) -> bool:
        return (at_least is None or number >= at_least) and (at_most is None or number <= at_most)

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)
    def evaluate(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        glidemq: GlideMQConnection = getattr(context.resources, resource_key)
        tick = Tick(1)
        if not context.cursor:
            return tick.result(_Position(secrets.token_hex(8)).write(), f"begins to look at queue {queue}")
        position = _Position.read(context.cursor)
        with Queue(queue, glidemq.settings()) as client:
            counts = patience_of(glidemq)(lambda: client.counts(indexed_only=True))
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


def _request(queue: str, number: int) -> dg.RunRequest:
    return dg.RunRequest(tags={"dagster-glidemq/watched_queue": queue, "dagster-glidemq/jobs": str(number)})
