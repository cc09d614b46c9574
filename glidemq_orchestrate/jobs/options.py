"""The options of one job, checked on creation, and their form on the wire. Independent of the server."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final, TypedDict

from glidemq_orchestrate.errors import ConfigurationError, EncodeError, InvalidJob
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, milliseconds, seconds
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs.backoff import Backoff
from glidemq_orchestrate.jobs.bounds import amount, lasting, named, whole
from glidemq_orchestrate.jobs.deduplication import Deduplication, deduplication_wire
from glidemq_orchestrate.jobs.ordering import Ordering, ordering_wire
from glidemq_orchestrate.jobs.retention import Keep, Retention, check_retention
from glidemq_orchestrate.wire.codec import Json, encode
from glidemq_orchestrate.wire.keys import check_job_id, check_queue_name

MAX_PRIORITY: Final = 2048


MIN_LOCK: Final = timedelta(seconds=1)


MAX_LOCK: Final = timedelta(days=1)


DEFAULT_LOCK: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Fallback:
    """What an attempt after the first uses instead: ``fallbacks[0]`` on the second, and so on."""

    model: str
    provider: str | None = None
    metadata: Mapping[str, Json] | None = None

    def __post_init__(self) -> None:
        """Refuse a model that is not a name, and metadata that is not JSON."""
        named("fallbacks.model", self.model)
        check_fields(self, InvalidJob)
        try:
            encode(self.metadata, where="fallbacks.metadata")
        except EncodeError as exc:
            raise InvalidJob(str(exc)) from exc

    def to_wire(self) -> dict[str, Any]:
        """The element of the ``fallbacks`` list."""
        wire: dict[str, Any] = {"model": self.model}
        if self.provider is not None:
            wire["provider"] = self.provider
        if self.metadata is not None:
            wire["metadata"] = dict(self.metadata)
        return wire


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job of any queue under the same prefix."""

    queue: str
    id: str

    def __post_init__(self) -> None:
        """Refuse names that no job can have."""
        try:
            check_queue_name(self.queue)
            check_job_id(self.id)
        except (ConfigurationError, InvalidJob) as exc:
            raise InvalidJob(f"not a job: {exc}") from exc


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How one job is run.

    Attributes:
        attempts: How many times the job may run in total, at least 1; a run lost with its worker does not
            count.
        backoff: Pause between attempts; without it a retry is immediate.
        timeout: Longest time of one run; afterwards the attempt fails. None: no limit.
        delay: Time before the first run; in a flow counted from the moment the dependencies have ended.
        job_id: An id of your own, unique in the queue (letters, digits, punctuation except ``{ } :``). A flow
            sets it for its nodes.
        priority: 0 to 2048. 1 runs first; 0, the default, runs in order of adding, after every job with a
            priority.
        lifo: Whether it runs before jobs added earlier; not together with ``ordering``.
        ttl: Time after which it is no longer started: it fails with reason ``expired``.
        ordering: A key whose jobs run in order, and its limits.
        cost: Tokens that a start takes from the ``token_bucket`` of the ordering key; 1 when left out.
        deduplication: When to skip adding the job because it was added earlier.
        lock_duration: How long a worker keeps the job without a heartbeat before another takes it over; 1
            second to 1 day.
        remove_on_complete: Whether and when the completed job is removed.
        remove_on_fail: Whether and when the failed job is removed.
        fallbacks: What the attempts after the first use instead.
        must_pass: The job is a check: it fails, without a further attempt, when its handler returns
            ``False``, ``{"passed": false}``, or ``{"checks": [...]}`` with such a part that does not have
            ``"severity": "WARN"``. What it returned is its ``progress`` then. Workers of Node.js do not know
            this option.
        parent: A job that waits for this one, and that exists; in a cluster its queue is in the same slot. A
            flow sets it for its nodes.
        traceparent: The W3C trace context that the span of a run links to. ``Queue.add`` sets it when
            OpenTelemetry is set up.
    """

    attempts: int = 1
    backoff: Backoff | None = None
    timeout: Duration | None = None
    delay: Duration = 0
    job_id: str | None = None
    priority: int = 0
    lifo: bool = False
    ttl: Duration | None = None
    ordering: Ordering | None = None
    cost: float | None = None
    deduplication: Deduplication | None = None
    lock_duration: Duration | None = None
    remove_on_complete: Retention = False
    remove_on_fail: Retention = False
    fallbacks: Sequence[Fallback] = ()
    must_pass: bool = False
    parent: JobRef | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range and options that conflict; the message names the option."""
        whole("attempts", self.attempts, 1)
        whole("priority", self.priority, 0, MAX_PRIORITY)
        self._check_times()
        if self.job_id is not None:
            check_job_id(self.job_id)
        if self.cost is not None:
            amount("cost", self.cost)
        if self.traceparent is not None:
            named("traceparent", self.traceparent)
        if self.lifo and self.ordering is not None:
            raise InvalidJob("lifo and ordering cannot be combined")
        check_retention("remove_on_complete", self.remove_on_complete)
        check_retention("remove_on_fail", self.remove_on_fail)
        check_fields(self, InvalidJob)
        self._check_cost()

    def to_wire(self) -> str:
        """The ``opts`` JSON that workers read back; absent options are left out, never null."""
        if self == DEFAULT_OPTIONS:
            return "{}"
        wire = self._run_wire() | self._place_wire() | self._retention_wire()
        return json.dumps(wire, separators=(",", ":"), ensure_ascii=False)

    def _check_times(self) -> None:
        object.__setattr__(self, "delay", lasting("delay", self.delay))
        for name, value in (("timeout", self.timeout), ("ttl", self.ttl)):
            if value is not None:
                object.__setattr__(self, name, lasting(name, value, min_=MILLISECOND))
        if self.lock_duration is not None:
            lock = lasting("lock_duration", self.lock_duration, min_=MIN_LOCK, max_=MAX_LOCK)
            object.__setattr__(self, "lock_duration", lock)

    def _check_cost(self) -> None:
        bucket = self.ordering.token_bucket if self.ordering else None
        if bucket and (1.0 if not self.cost else self.cost) > bucket.capacity:
            raise InvalidJob(
                f"cost {self.cost or 1} is more than ordering.token_bucket.capacity {bucket.capacity}: "
                "the job could never start"
            )

    def _run_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {}
        if self.attempts > 1:
            wire["attempts"] = self.attempts
        if self.backoff is not None:
            wire["backoff"] = {"type": self.backoff.kind, "delay": milliseconds(self.backoff.delay)}
            if self.backoff.jitter:
                wire["backoff"]["jitter"] = self.backoff.jitter
        for name, value in (("timeout", self.timeout), ("lockDuration", self.lock_duration)):
            if value is not None:
                wire[name] = milliseconds(value)
        if self.fallbacks:
            wire["fallbacks"] = [fallback.to_wire() for fallback in self.fallbacks]
        if self.must_pass:
            wire["mustPass"] = True
        if self.traceparent is not None:
            wire["traceparent"] = self.traceparent
        return wire

    def _place_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {}
        if self.delay:
            wire["delay"] = milliseconds(self.delay)
        if self.job_id is not None:
            wire["jobId"] = self.job_id
        if self.priority:
            wire["priority"] = self.priority
        if self.lifo:
            wire["lifo"] = True
        if self.ttl is not None:
            wire["ttl"] = milliseconds(self.ttl)
        if self.ordering is not None:
            wire["ordering"] = ordering_wire(self.ordering)
        if self.cost is not None:
            wire["cost"] = self.cost
        if self.deduplication is not None:
            wire["deduplication"] = deduplication_wire(self.deduplication)
        if self.parent is not None:
            wire["parent"] = {"queue": self.parent.queue, "id": self.parent.id}
        return wire

    def _retention_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {}
        for name, value in (
            ("removeOnComplete", self.remove_on_complete),
            ("removeOnFail", self.remove_on_fail),
        ):
            if isinstance(value, Keep):
                age = {} if value.age is None else {"age": math.ceil(seconds(value.age))}
                wire[name] = age | ({} if value.count is None else {"count": value.count})
            elif value:
                wire[name] = value
        return wire


DEFAULT_OPTIONS: Final = JobOptions()


class AwaitedKeywords(TypedDict, total=False):
    """The options of a job as keywords, but for its ``timeout``; see ``JobOptions``."""

    attempts: int
    backoff: Backoff | None
    delay: Duration
    job_id: str | None
    priority: int
    lifo: bool
    ttl: Duration | None
    ordering: Ordering | None
    cost: float | None
    deduplication: Deduplication | None
    lock_duration: Duration | None
    remove_on_complete: Retention
    remove_on_fail: Retention
    fallbacks: Sequence[Fallback]
    must_pass: bool
    parent: JobRef | None
    traceparent: str | None


class OptionKeywords(AwaitedKeywords, total=False):
    """The options of a job as keywords; see ``JobOptions``."""

    timeout: Duration | None


def with_keywords(options: JobOptions, keywords: Mapping[str, Any]) -> JobOptions:
    """The options with some replaced.

    Raises:
        InvalidJob: A keyword is not the name of an option, or its value is not valid.
    """
    if not keywords:
        return options
    if not isinstance(options, JobOptions):
        raise InvalidJob(f"options must be JobOptions, got {type(options).__name__}")
    known = [part.name for part in fields(JobOptions)]
    for name in keywords:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise InvalidJob(f"there is no option {described(name)}; did you mean {near!r}?")
    return replace(options, **keywords)
