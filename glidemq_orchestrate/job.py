"""A job as users see it, and the only place that knows the field names of glide-mq's job hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NewType

from glidemq_orchestrate.codec import Json, decode
from glidemq_orchestrate.options import (
    DEFAULT_OPTIONS,
    Deduplication,
    Fallback,
    JobOptions,
    JobParent,
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
    "JobParent",
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


class JobState(StrEnum):
    """Where a job is; the values are glide-mq's."""

    WAITING = "waiting"
    ACTIVE = "active"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    WAITING_CHILDREN = "waiting-children"
    GROUP_WAITING = "group-waiting"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing happens any more without a retry."""
        return self in (JobState.COMPLETED, JobState.FAILED)


_MOST: Final = 2**53


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a worker obeys of a job's stored options; unknown and broken parts are ignored."""

    attempts: int
    backoff: Backoff | None
    timeout: timedelta | None

    @classmethod
    def from_wire(cls, text: str) -> RunOptions:
        """Read the ``opts`` JSON."""
        try:
            wire = json.loads(text or "{}")
        except (ValueError, RecursionError):
            wire = {}
        if not isinstance(wire, dict):
            wire = {}
        timeout = _number(wire.get("timeout"))
        return cls(
            attempts=max(int(_number(wire.get("attempts"))), 1),
            backoff=_backoff(wire.get("backoff")),
            timeout=timedelta(milliseconds=timeout) if timeout > 0 else None,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it was when it was read. Times are UTC; a time is None until it happened.

    ``result`` is what the handler returned; ``failed_reason`` stays after a later success.
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

    @classmethod
    def from_wire(cls, queue: str, fields: Mapping[str, str]) -> Job:
        """Build from the fields of a job hash.

        Raises:
            DecodeError: The stored data or result is not JSON.
        """
        job_id = fields.get("id", "")
        return cls(
            id=JobId(job_id),
            queue=queue,
            name=fields.get("name", ""),
            state=JobState(fields["state"]),
            data=decode(fields.get("data"), where=f"data of job {job_id}"),
            result=decode(fields.get("returnvalue"), where=f"result of job {job_id}"),
            failed_reason=fields.get("failedReason") or None,
            attempts_made=int(fields.get("attemptsMade") or 0),
            max_attempts=max(int(fields.get("maxAttempts") or 0), 1),
            progress=read_progress(fields.get("progress")),
            created_at=moment(fields.get("timestamp")),
            started_at=moment(fields.get("processedOn")),
            finished_at=moment(fields.get("finishedOn")),
            flow_id=fields.get(FIELD_FLOW),
            node=fields.get(FIELD_NODE),
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """An activated job in the hands of a worker, with what proves that the attempt is the worker's."""

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

    @classmethod
    def from_wire(cls, queue: str, entry_id: str, token: str, fields: Mapping[str, str]) -> Attempt:
        """Build from the fields of the job hash that the activation returned."""
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
