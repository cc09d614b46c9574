"""The options of a job, checked on creation; their form on the wire, and what a worker reads back."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, TypedDict

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, milliseconds, seconds
from glidemq_orchestrate.foundation.suggestions import did_you_mean
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import TAG, amount, lasting, named, whole
from glidemq_orchestrate.jobs.option_values import (
    Backoff,
    Deduplication,
    Fallback,
    JobRef,
    Keep,
    Ordering,
    Retention,
    check_retention,
    deduplication_wire,
    ordering_wire,
)
from glidemq_orchestrate.wire.codec import is_utf8
from glidemq_orchestrate.wire.keys import check_job_id
from glidemq_orchestrate.wire.stored import clipped_amount

MAX_PRIORITY: Final = 2048
MAX_TAGS: Final = 32
MAX_TAG_BYTES: Final = 1024
MIN_LEASE: Final = timedelta(seconds=1)
MAX_LEASE: Final = timedelta(days=1)
DEFAULT_LEASE: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job is run.

    Attributes:
        attempts: How many times the job may run in total, at least 1; a run lost with its worker does not
            count.
        backoff: Pause between attempts; without it a retry is immediate.
        timeout: Max duration of one run; afterwards the attempt fails. None: no limit.
        delay: Time before the first run; in a flow, counted from the end of the last dependency.
        job_id: A custom id, unique in the queue (letters, digits, punctuation except ``{ } :``). A flow
            sets it for its nodes.
        priority: 0 to 2048. 1 runs first; 0, the default, runs in order of adding, after every job with a
            priority.
        lifo: Whether it runs before jobs added earlier; not together with ``ordering``.
        ttl: Time after which it is not started any more, but fails with reason ``expired``.
        ordering: A key whose jobs run in order, and its limits.
        cost: Tokens that a start takes from the ``token_bucket`` of the ordering key; by default 1.
        deduplication: When not to add the job because of an earlier one.
        lease: How long a worker may go without a heartbeat before another takes the job over; 1 second to 1
            day. If it is shorter than the lease of the other worker, the loss may take as long as that to be
            noticed.
        remove_on_complete: Whether and when the completed job is removed.
        remove_on_fail: Whether and when the failed job is removed.
        fallbacks: What the attempts after the first use instead.
        must_pass: The job is a check: it fails, without a further attempt, when its handler returns
            ``False``, ``{"passed": false}``, or ``{"checks": [...]}`` with a failed check that does not have
            ``"severity": "WARN"``. The returned value is then stored as its ``progress``. Node workers ignore
            this option.
        tags: Words by which the job is found (``Queue.tagged``): at most 32, of 1 to 256 characters each.
            ``Queue.tag`` and ``untag`` change them later.
        history: Record what happens to the job, with its time, for ``Queue.history``: its last 99 changes.
        parent: An existing job that waits for this one; in a cluster its queue must be in the same slot. A
            flow sets it for its nodes.
        traceparent: The W3C trace context that the span of a run links to. ``Queue.add`` sets it when
            OpenTelemetry is configured.
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
    lease: Duration | None = None
    remove_on_complete: Retention = False
    remove_on_fail: Retention = False
    fallbacks: Sequence[Fallback] = ()
    must_pass: bool = False
    tags: Sequence[str] = ()
    history: bool = False
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
        object.__setattr__(self, "tags", checked_tags(self.tags))
        self._check_cost()

    def to_wire(self) -> str:
        """The ``opts`` JSON that workers read back; absent options are omitted, never null."""
        if self == DEFAULT_OPTIONS:
            return "{}"
        wire = self._run_wire() | self._place_wire() | self._retention_wire()
        return json.dumps(wire, separators=(",", ":"), ensure_ascii=False)

    def _check_times(self) -> None:
        object.__setattr__(self, "delay", lasting("delay", self.delay))
        for name, value in (("timeout", self.timeout), ("ttl", self.ttl)):
            if value is not None:
                object.__setattr__(self, name, lasting(name, value, min_=MILLISECOND))
        if self.lease is not None:
            lock = lasting("lease", self.lease, min_=MIN_LEASE, max_=MAX_LEASE)
            object.__setattr__(self, "lease", lock)

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
        for name, value in (("timeout", self.timeout), ("lockDuration", self.lease)):
            if value is not None:
                wire[name] = milliseconds(value)
        if self.fallbacks:
            wire["fallbacks"] = [fallback.to_wire() for fallback in self.fallbacks]
        wire |= dict.fromkeys(self._flags(), True)
        if self.tags:
            wire["tags"] = list(self.tags)
        if self.traceparent is not None:
            wire["traceparent"] = self.traceparent
        return wire

    def _flags(self) -> Iterable[str]:
        return (name for name, flag in (("mustPass", self.must_pass), ("history", self.history)) if flag)

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


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags, each once.

    Raises:
        InvalidJob: One of them is not valid, they are more than 32, or a text and not a list of texts.
    """
    if isinstance(tags, str):
        raise InvalidJob(f"tags must be a list of texts, got the text {described(tags)}. Fix: tags=[...]")
    found = tuple(dict.fromkeys(TAG.check(tag) for tag in tags))
    if len(found) > MAX_TAGS:
        raise InvalidJob(f"there are {len(found)} tags; the limit is {MAX_TAGS}")
    return found


def read_tags(value: object) -> tuple[str, ...]:
    """The tags in stored options; ``lua/shared/tags.lua`` has the same rule for what is none."""
    texts = [tag for tag in value if isinstance(tag, str)] if isinstance(value, list) else []
    found = dict.fromkeys(tag for tag in texts if 0 < len(tag.encode(errors="replace")) <= MAX_TAG_BYTES)
    return tuple(found)[:MAX_TAGS]


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
    lease: Duration | None
    remove_on_complete: Retention
    remove_on_fail: Retention
    fallbacks: Sequence[Fallback]
    must_pass: bool
    tags: Sequence[str]
    history: bool
    parent: JobRef | None
    traceparent: str | None


class OptionKeywords(AwaitedKeywords, total=False):
    """The options of a job as keywords; see ``JobOptions``."""

    timeout: Duration | None


def with_keywords(
    options: JobOptions, keywords: Mapping[str, Any], others: Collection[str] = ()
) -> JobOptions:
    """The options with some replaced.

    Args:
        options: The options.
        keywords: Those to replace, by name.
        others: The other arguments of the caller; an unknown keyword may have been meant as one of them.

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
            near = did_you_mean(name, [*known, *others]) or f". Fix: use {', '.join(known)}"
            raise InvalidJob(f"there is no option {described(name)}{near}")
    return replace(options, **keywords)


_CACHED: Final = 1024


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The stored job options that a worker needs; unknown and broken parts are ignored.

    ``remove_on_complete`` and ``remove_on_fail`` are glide-mq's retention as ``mode count age``, '' for none.
    ``portable``: flow and node of a job on the portable path;
    ``is_wide``: it has more dependents than one server call notifies.
    """

    attempts: int
    backoff: Backoff | None
    timeout: timedelta | None
    backoff_name: str = ""
    remove_on_complete: str = ""
    remove_on_fail: str = ""
    lease: timedelta | None = None
    fallbacks: tuple[Fallback, ...] = ()
    trace: str = ""
    portable: tuple[str, str] | None = None
    is_wide: bool = False
    must_pass: bool = False
    tags: tuple[str, ...] = ()

    @classmethod
    def from_wire(cls, text: str) -> RunOptions:
        """Read the ``opts`` JSON."""
        return _run_options(text) if len(text) <= _CACHED else _run_options.__wrapped__(text)


@lru_cache(maxsize=1024)  # most jobs of a queue have the same options
def _run_options(text: str) -> RunOptions:
    try:
        wire = json.loads(text or "{}")
    except (ValueError, RecursionError):
        wire = {}
    if not isinstance(wire, dict):
        wire = {}
    timeout, lock = clipped_amount(wire.get("timeout")), clipped_amount(wire.get("lockDuration"))
    backoff, trace, mark = wire.get("backoff"), wire.get("traceparent"), wire.get("gmo")
    return RunOptions(
        attempts=max(int(clipped_amount(wire.get("attempts"))), 1),
        backoff=_backoff(backoff),
        timeout=timedelta(milliseconds=timeout) if timeout > 0 else None,
        backoff_name=_backoff_name(backoff),
        remove_on_complete=_retention(wire.get("removeOnComplete")),
        remove_on_fail=_retention(wire.get("removeOnFail")),
        lease=timedelta(milliseconds=lock) if 1000 <= lock <= 86_400_000 else None,
        fallbacks=_fallbacks(wire.get("fallbacks")),
        trace=trace if isinstance(trace, str) else "",
        portable=_portable(mark),
        is_wide=isinstance(mark, dict) and "wide" in mark,
        must_pass=wire.get("mustPass") is True,
        tags=read_tags(wire.get("tags")),
    )


def _portable(mark: object) -> tuple[str, str] | None:
    """Flow and node of a node on the portable path; names that are not valid are ignored."""
    flow, node = (mark.get("flow"), mark.get("node")) if isinstance(mark, dict) else (None, None)
    if not isinstance(flow, str) or not isinstance(node, str) or not is_utf8(flow + node):
        return None
    return flow, node


def _backoff_name(wire: object) -> str:
    """The name of a backoff function of the worker; '' for the built-in ones."""
    name = wire.get("type") if isinstance(wire, dict) else None
    return name if isinstance(name, str) and name not in ("fixed", "exponential") else ""


def _retention(wire: object) -> str:
    if wire is True:
        return "true 0 0"
    if isinstance(wire, dict) and (wire.get("age") or wire.get("count")):
        return f"age_count {int(clipped_amount(wire.get('count')))} {int(clipped_amount(wire.get('age')))}"
    count = int(clipped_amount(wire))
    return f"count {count} 0" if count else ""


def _backoff(wire: object) -> Backoff | None:
    if not isinstance(wire, dict):
        return None
    return Backoff(
        kind="exponential" if wire.get("type") == "exponential" else "fixed",
        delay=timedelta(milliseconds=clipped_amount(wire.get("delay"))),
        jitter=min(clipped_amount(wire.get("jitter")), 1.0),
    )


def _fallbacks(wire: object) -> tuple[Fallback, ...]:
    if not isinstance(wire, list):
        return ()
    found = []
    for part in wire:
        fields = part if isinstance(part, dict) else {}
        try:
            found.append(Fallback(fields.get("model", ""), fields.get("provider"), fields.get("metadata")))
        except InvalidJob:
            return ()  # omitting one would shift the others
    return tuple(found)
