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
from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.keys import check_job_id
from glidemq_orchestrate.retry import Backoff

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


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How one job is run.

    Attributes:
        attempts: Runs in all, at least 1; a run lost with its worker does not count.
        backoff: Pause between attempts; none means at once.
        timeout: Longest time of one run; afterwards the attempt fails. None: no limit.
        delay: Time before the first run; in a flow counted from the moment the dependencies are done.
        job_id: Own id, unique in the queue (letters, digits, punctuation but ``{ } :``). A node of a flow has
            its own.
    """

    attempts: int = 1
    backoff: Backoff | None = None
    timeout: timedelta | None = None
    delay: timedelta = timedelta(0)
    job_id: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant; the message names the option."""
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise InvalidJob(f"attempts must be a whole number of at least 1, got {self.attempts!r}")
        if self.timeout is not None and milliseconds(self.timeout) < 1:
            raise InvalidJob(f"timeout must be at least a millisecond, got {self.timeout}")
        if self.delay < timedelta(0):
            raise InvalidJob(f"delay must not be negative, got {self.delay}")
        if self.job_id is not None:
            check_job_id(self.job_id)

    def to_wire(self) -> str:
        """The ``opts`` JSON that workers read back; absent options are left out, never null."""
        wire: dict[str, Any] = {}
        if self.attempts > 1:
            wire["attempts"] = self.attempts
        if self.backoff is not None:
            wire["backoff"] = {"type": self.backoff.kind, "delay": milliseconds(self.backoff.delay)}
            if self.backoff.jitter:
                wire["backoff"]["jitter"] = self.backoff.jitter
        if self.timeout is not None:
            wire["timeout"] = milliseconds(self.timeout)
        if self.delay:
            wire["delay"] = milliseconds(self.delay)
        if self.job_id is not None:
            wire["jobId"] = self.job_id
        return json.dumps(wire, separators=(",", ":"))


DEFAULT_OPTIONS: Final = JobOptions()
_MOST: Final = 2**53


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a worker obeys of a job's stored options; unknown and broken parts are ignored.

    ``remove_on_complete`` and ``remove_on_fail`` are glide-mq's retention as ``mode count age``, '' for none.
    """

    attempts: int
    backoff: Backoff | None
    timeout: timedelta | None
    backoff_name: str = ""
    remove_on_complete: str = ""
    remove_on_fail: str = ""
    fallbacks: tuple[Mapping[str, Json], ...] = ()
    trace: str = ""

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
    timeout = _number(wire.get("timeout"))
    backoff = wire.get("backoff")
    fallbacks = wire.get("fallbacks")
    return RunOptions(
        attempts=max(int(_number(wire.get("attempts"))), 1),
        backoff=_backoff(backoff),
        timeout=timedelta(milliseconds=timeout) if timeout > 0 else None,
        backoff_name=_backoff_name(backoff),
        remove_on_complete=_retention(wire.get("removeOnComplete")),
        remove_on_fail=_retention(wire.get("removeOnFail")),
        fallbacks=tuple(item for item in fallbacks if isinstance(item, dict))
        if isinstance(fallbacks, list)
        else (),
        trace=str(wire.get("traceparent", "")),
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
    created_ms: int = 0
    signals: str = ""
    fallback_index: int = 0
    budget_key: str = ""
    inputs: Mapping[str, str] | None = field(default_factory=dict)

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

    @classmethod
    def from_row(cls, queue: str, token: str, processed_on: str, row: list[Any]) -> Attempt:
        """Build from a row of ``gmo_finish_and_fetch``."""
        job_id, entry_id, name, data, opts, made, flow_id, node = row[:8]
        created, signals, fallback, budget, inputs = row[8:]
        results: dict[str, str] | None = {}
        if inputs is not None:
            results = dict(zip(inputs[::2], inputs[1::2], strict=True))
        elif flow_id:
            results = None
        return cls(
            queue,
            job_id,
            entry_id,
            token,
            processed_on,
            name or "",
            data or "",
            RunOptions.from_wire(opts or ""),
            int(made or 0),
            flow_id,
            node,
            int(created or 0),
            signals or "",
            int(fallback or 0),
            budget or "",
            results,
        )


def milliseconds(duration: timedelta) -> int:
    """Whole milliseconds of a duration, rounded."""
    return round(duration / timedelta(milliseconds=1))


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
