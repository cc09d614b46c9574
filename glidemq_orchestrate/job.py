"""A job as users see it, and the only place that knows the field names of glide-mq's job hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NewType

from glidemq_orchestrate.codec import Json, decode
from glidemq_orchestrate.errors import DecodeError, InvalidJob
from glidemq_orchestrate.options import (
    DEFAULT_OPTIONS,
    Deduplication,
    Fallback,
    JobOptions,
    JobRef,
    Keep,
    Ordering,
    RateLimit,
    Retention,
    TokenBucket,
    milliseconds,
)
from glidemq_orchestrate.retry import Backoff

__all__ = [
    "DEFAULT_OPTIONS",
    "Attempt",
    "Deduplication",
    "Fallback",
    "Job",
    "JobId",
    "JobOptions",
    "JobRef",
    "JobState",
    "Keep",
    "Ordering",
    "RateLimit",
    "Retention",
    "RunOptions",
    "TokenBucket",
    "milliseconds",
]

JobId = NewType("JobId", str)

FIELD_FLOW: Final = "gmo:flow"
FIELD_HOME: Final = "gmo:home"
FIELD_NODE: Final = "gmo:node"
# Named one by one: other fields of a job hash may hold bytes that are no text.
JOB_FIELDS_WITHOUT_PAYLOAD: Final = (
    *("id", "name", "opts", "timestamp", "attemptsMade", "state", "delay", "priority", "maxAttempts"),
    *("processedOn", "finishedOn", "failedReason", "parentId", "parentQueue", "orderingKey", "groupKey"),
    *("cost", "expireAt", "lifo", "progress", "revoked", "stalledCount", "schedulerName", "tpmTokens"),
    *("fallbackIndex", FIELD_FLOW, FIELD_HOME, FIELD_NODE),
)
JOB_FIELDS: Final = (*JOB_FIELDS_WITHOUT_PAYLOAD, "data", "returnvalue")


class JobState(StrEnum):
    """Where a job is; the values are glide-mq's, but for that of a node of a flow that is not needed."""

    WAITING = "waiting"
    ACTIVE = "active"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    WAITING_CHILDREN = "waiting-children"
    GROUP_WAITING = "group-waiting"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Only of nodes: as a job it has completed, without a result."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing happens any more without a retry."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.SKIPPED)


_MOST: Final = 2**53


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a worker obeys of a job's stored options; unknown and broken parts are ignored.

    ``remove_on_complete`` and ``remove_on_fail`` are glide-mq's retention as ``mode count age``, '' for
    none. ``portable``: flow and node of a job that went by the portable path; ``is_wide``: more depend on
    it than the server tells.
    """

    attempts: int
    backoff: Backoff | None
    timeout: timedelta | None
    backoff_name: str = ""
    remove_on_complete: str = ""
    remove_on_fail: str = ""
    lock_duration: timedelta | None = None
    fallbacks: tuple[Fallback, ...] = ()
    trace: str = ""
    portable: tuple[str, str] | None = None
    is_wide: bool = False

    @classmethod
    def from_wire(cls, text: str) -> RunOptions:
        """Read the ``opts`` JSON."""
        return _run_options(text) if len(text) <= _CACHED else _run_options.__wrapped__(text)


_CACHED: Final = 1024


@lru_cache(maxsize=1024)  # most jobs of a queue have the same options
def _run_options(text: str) -> RunOptions:
    try:
        wire = json.loads(text or "{}")
    except (ValueError, RecursionError):
        wire = {}
    if not isinstance(wire, dict):
        wire = {}
    timeout, lock = _number(wire.get("timeout")), _number(wire.get("lockDuration"))
    backoff, mark = wire.get("backoff"), wire.get("gmo")
    mark = mark if isinstance(mark, dict) else {}
    return RunOptions(
        attempts=max(int(_number(wire.get("attempts"))), 1),
        backoff=_backoff(backoff),
        timeout=timedelta(milliseconds=timeout) if timeout > 0 else None,
        backoff_name=_backoff_name(backoff),
        remove_on_complete=_retention(wire.get("removeOnComplete")),
        remove_on_fail=_retention(wire.get("removeOnFail")),
        lock_duration=timedelta(milliseconds=lock) if 1000 <= lock <= 86_400_000 else None,
        fallbacks=_fallbacks(wire.get("fallbacks")),
        trace=str(wire.get("traceparent", "")),
        portable=(str(mark["flow"]), str(mark["node"])) if "node" in mark and "flow" in mark else None,
        is_wide="wide" in mark,
    )


def _backoff_name(wire: object) -> str:
    """The name of a backoff that a worker must have been given; '' for the built-in ones."""
    name = wire.get("type") if isinstance(wire, dict) else None
    return name if isinstance(name, str) and name not in ("fixed", "exponential") else ""


def _retention(wire: object) -> str:
    if wire is True:
        return "true 0 0"
    if isinstance(wire, dict) and (wire.get("age") or wire.get("count")):
        return f"age_count {int(_number(wire.get('count')))} {int(_number(wire.get('age')))}"
    count = int(_number(wire))
    return f"count {count} 0" if count else ""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it was when it was read. Times are UTC; a time is None until it happened.

    ``result`` is what the handler returned; ``failed_reason`` stays after a later success.

    Attributes:
        delay: What it was added with, or was given since; not the pause before a retry.
        ordering_key: The key whose jobs run in order.
        cost: Tokens of the bucket of its key; None where the default of 1 holds.
        expires_at: It is not started any more after this.
        revoked: It was revoked; an active job may complete all the same.
        lost_runs: How often a worker was lost with it.
        parent: The job that waits for it; ``Queue.parents`` knows all.
        scheduler: The scheduler that repeats it after its end.
        tokens: What was reported for the rate limit by tokens.
        fallback_index: 0 for the first attempt, then counting on, also past the end of the fallbacks.
        broken: Data or result is not JSON, or unpacks to more than 1 MiB; both are None then.
    """

    id: JobId
    queue: str
    name: str
    state: JobState
    data: Json
    result: Json
    failed_reason: str | None
    attempts_made: int
    max_attempts: int
    progress: Json
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    flow_id: str | None
    node: str | None
    options: RunOptions
    delay: timedelta
    priority: int
    lifo: bool
    ordering_key: str | None
    cost: float | None
    expires_at: datetime | None
    revoked: bool
    lost_runs: int
    parent: JobRef | None
    scheduler: str | None
    tokens: int
    fallback_index: int
    broken: bool = False

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """What the attempts after the first use instead."""
        return self.options.fallbacks

    @property
    def current_fallback(self) -> Fallback | None:
        """What the next or running attempt uses instead; None for the original and past the end."""
        at = self.fallback_index - 1
        return self.fallbacks[at] if 0 <= at < len(self.fallbacks) else None

    @classmethod
    def from_wire(cls, queue: str, fields: Mapping[str, str], *, lenient: bool = False) -> Job:
        """Build from the fields of a job hash.

        Raises:
            DecodeError: The stored data or result is not JSON; not when ``lenient``.
        """
        job_id, broken = fields.get("id", ""), False
        try:
            data = decode(fields.get("data"), where=f"data of job {job_id}")
            result = decode(fields.get("returnvalue"), where=f"result of job {job_id}")
        except DecodeError:
            if not lenient:
                raise
            data, result, broken = None, None, True
        return cls(
            id=JobId(job_id),
            queue=queue,
            name=fields.get("name", ""),
            state=JobState(fields["state"]),
            data=data,
            result=result,
            failed_reason=fields.get("failedReason") or None,
            attempts_made=_count(fields, "attemptsMade"),
            max_attempts=max(_count(fields, "maxAttempts"), 1),
            progress=read_progress(fields.get("progress")),
            created_at=moment(fields.get("timestamp")),
            started_at=moment(fields.get("processedOn")),
            finished_at=moment(fields.get("finishedOn")),
            flow_id=fields.get(FIELD_FLOW),
            node=fields.get(FIELD_NODE),
            options=RunOptions.from_wire(fields.get("opts", "")),
            delay=timedelta(milliseconds=_count(fields, "delay")),
            priority=_count(fields, "priority"),
            lifo=fields.get("lifo") == "1",
            ordering_key=fields.get("groupKey") or fields.get("orderingKey") or None,
            cost=_count(fields, "cost") / 1000 if fields.get("cost") else None,
            expires_at=moment(fields.get("expireAt")),
            revoked=fields.get("revoked") == "1",
            lost_runs=_count(fields, "stalledCount"),
            parent=_single_parent(fields),
            scheduler=fields.get("schedulerName") or None,
            tokens=_count(fields, "tpmTokens"),
            fallback_index=_count(fields, "fallbackIndex"),
            broken=broken,
        )


@dataclass(slots=True)
class Attempt:
    """An activated job in the hands of a worker, with what proves that the attempt is the worker's.

    ``inputs``: the stored results of the dependencies by node name; None when they have to be read in pages.
    """

    queue: str
    job_id: str
    entry_id: str
    token: str
    processed_on: str
    name: str
    data: str
    options: RunOptions
    attempts_made: int
    flow_id: str | None
    node: str | None
    signals: str = ""
    fallback_index: int = 0
    budget_key: str = ""
    inputs: Mapping[str, str] | None = field(default_factory=dict)

    @classmethod
    def from_wire(cls, queue: str, entry_id: str, token: str, fields: Mapping[str, str]) -> Attempt:
        """Build from the fields of an active job hash."""
        return cls(
            queue=queue,
            job_id=fields["id"],
            entry_id=entry_id,
            token=token,
            processed_on=fields["processedOn"],
            name=fields.get("name", ""),
            data=fields.get("data", ""),
            options=RunOptions.from_wire(fields.get("opts", "")),
            attempts_made=int(fields.get("attemptsMade") or 0),
            flow_id=fields.get(FIELD_FLOW),
            node=fields.get(FIELD_NODE),
        )

    @classmethod
    def from_row(cls, queue: str, token: str, row: list[Any]) -> Attempt:
        """Build from a row of ``gmo_finish_and_fetch``."""
        job_id, entry_id, processed_on, name, data, opts, made, flow_id, node = row[:9]
        signals, fallback, budget, inputs = row[9:]
        options = RunOptions.from_wire(opts or "")
        if not flow_id and options.portable:
            flow_id, node = options.portable
        results: dict[str, str] | None = None if flow_id else {}
        if inputs is not None:
            results = dict(zip(inputs[::2], inputs[1::2], strict=True))
        return cls(
            queue,
            job_id,
            entry_id,
            token,
            processed_on,
            name or "",
            data or "",
            options,
            int(made or 0),
            flow_id,
            node,
            signals or "",
            int(fallback or 0),
            budget or "",
            results,
        )


def moment(text: str | None) -> datetime | None:
    """A stored time in ms since the epoch, as an aware datetime; absent and empty are None."""
    return datetime.fromtimestamp(int(float(text)) / 1000, UTC) if text else None


def read_progress(text: str | None) -> Json:
    """Stored progress: JSON where it is JSON, else the text."""
    if not text:
        return None
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value


def _number(value: object) -> float:
    """A number of the wire as it can be counted with: not negative, at most 2^53."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return 0.0
    return float(min(value, _MOST))


def _backoff(wire: object) -> Backoff | None:
    if not isinstance(wire, dict):
        return None
    return Backoff(
        kind="exponential" if wire.get("type") == "exponential" else "fixed",
        delay=timedelta(milliseconds=_number(wire.get("delay"))),
        jitter=min(_number(wire.get("jitter")), 1.0),
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
            return ()  # a hole would shift the others
    return tuple(found)


def _single_parent(fields: Mapping[str, str]) -> JobRef | None:
    queue, job_id = fields.get("parentQueue"), fields.get("parentId")
    if not queue or not job_id:
        return None
    try:
        return JobRef(queue, job_id)
    except InvalidJob:
        return None


def _count(fields: Mapping[str, str], name: str) -> int:
    try:
        return int(float(fields.get(name) or 0))
    except (ValueError, OverflowError):
        return 0
