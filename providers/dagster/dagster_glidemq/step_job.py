"""Steps and runs as jobs: ids, payloads, and the tags that choose queue and priority. No code, no secrets.

The payload names the run. The worker takes the code location, the config and the storages from its own
Dagster instance. So a client that can write to the queue can start steps of existing runs, but cannot run its
own code. The run state that a step needs (attempts, dynamic outputs) is packed by Dagster's own
serialization, which only creates objects of its registered classes.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import dagster as dg
from pydantic import BaseModel, Field, ValidationError

from dagster_glidemq.durations import in_seconds
from dagster_glidemq.private import (
    JobPythonOrigin,
    KnownExecutionState,
    RetryMode,
    deserialize_value,
    serialize_value,
)
from glidemq_orchestrate import JobOptions, Ordering, RateLimit
from glidemq_orchestrate.errors import ConfigurationError, InvalidJob
from glidemq_orchestrate.foundation.durations import MILLISECOND
from glidemq_orchestrate.runs import JsonLike
from glidemq_orchestrate.wire.keys import check_job_id, check_queue_name

STEP_JOB: Final = "dagster.step"
RUN_JOB: Final = "dagster.run"
MAX_UNPACKED: Final = 64 * 1024 * 1024


def step_job_id(run_id: str, step_key: str, attempt: int) -> str:
    """The id of the job of one attempt of a step; ``attempt`` is 0 for the first."""
    return _job_id(f"{run_id}.{step_key}.{attempt}")


def run_job_id(run_id: str, resume: int) -> str:
    """The id of the job of a run; ``resume`` is 0 for the first, then the number of the resume attempt."""
    return _job_id(f"run.{run_id}.{resume}")


def _job_id(text: str) -> str:
    try:
        return check_job_id(text)
    except InvalidJob:
        return f"dagster-{hashlib.sha256(text.encode()).hexdigest()}"


def location_of(origin: JobPythonOrigin) -> str:
    """The identity of a code location: steps of the same location share a warm process."""
    pointer: Any = origin.repository_origin.code_pointer
    return hashlib.sha256(serialize_value(pointer).encode()).hexdigest()[:32]


def storage_of(instance: dg.DagsterInstance) -> str:
    """The identity of an instance's storage: instances with the same identity have the same runs."""
    found: Any = getattr(instance.run_storage, "get_run_storage_id", str)
    return str(found())


class Payload(BaseModel, frozen=True, strict=True):
    """The common fields of ``StepJob`` and ``RunJob``.

    Attributes:
        run_id: The run, which the worker's Dagster instance must have.
        location: ``location_of`` its code.
        storage: ``storage_of`` the instance: if an instance with this storage lacks the run, the run was
            deleted.
        grace_seconds: How long it may take to end after an interrupt; then it is killed.
    """

    run_id: str
    location: str
    storage: str
    grace_seconds: float = Field(ge=0, le=86_400)

    @classmethod
    def read(cls, data: object) -> Self:
        """Read a payload.

        Raises:
            ValueError: It is none; the message does not show it.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as exc:
            wrong = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in exc.errors()]
            raise ValueError(f"the payload is invalid: {'; '.join(wrong)}") from None

    def payload(self) -> JsonLike:
        """The payload of the job."""
        return self.model_dump()


class RunJob(Payload, frozen=True, strict=True):
    """The payload from which a worker runs a run.

    Attributes:
        resume: Whether the run resumes after its worker was lost.
    """

    resume: bool


def packed(state: KnownExecutionState | None) -> str:
    """The state of a run as a text, for ``StepJob``."""
    text = serialize_value(state or KnownExecutionState())
    return base64.b64encode(zlib.compress(text.encode())).decode()


class StepJob(Payload, frozen=True, strict=True):
    """The payload from which a worker runs a step.

    Attributes:
        step_key: The step.
        retry_mode: What happens to a step that requests a retry.
        known_state: The state of the run so far, packed.
    """

    step_key: str
    retry_mode: str
    known_state: str

    def unpacked_state(self) -> KnownExecutionState:
        """The unpacked state of the run.

        Raises:
            Exception: The text is not a valid state.
        """
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(self.known_state, validate=True), MAX_UNPACKED)
        if not unpacker.eof:
            raise ValueError("the state of the run is cut short, or too large")
        return deserialize_value(text.decode(), KnownExecutionState)

    def unpacked_retry_mode(self) -> RetryMode:
        """The retry mode.

        Raises:
            ValueError: There is no retry mode of this name.
        """
        return RetryMode(self.retry_mode)


QUEUE_TAG: Final = "dagster-glidemq/queue"
"""The queue of a step; as a tag of a run, the queue of all its steps."""
RUN_QUEUE_TAG: Final = "dagster-glidemq/run_queue"
"""The queue of a run itself."""
JOB_TAG: Final = "dagster-glidemq/job_id"
"""The newest job of a run."""
PLACE_TAG: Final = "dagster-glidemq/job_queue"
"""The queue of that job."""
PRIORITY_TAG: Final = "dagster-glidemq/priority"
"""A whole number, higher first, like ``dagster/priority``, which applies if this tag is missing."""
CONCURRENCY_KEY_TAG: Final = "dagster-glidemq/concurrency_key"
"""Steps with one key in one queue run one at a time, in the order in which they were queued."""
CONCURRENCY_LIMIT_TAG: Final = "dagster-glidemq/concurrency_limit"
"""How many steps with one key run at a time; the newest step of the key decides. Default: 1."""
RATE_LIMIT_TAG: Final = "dagster-glidemq/rate_limit"
"""``N/DURATION``: at most N steps of the key start within the duration, such as ``10/60`` or ``10/1m``."""
_TELL: Final = frozenset(
    f"dagster-glidemq/{name}"
    for name in (
        "event", "event_job_id", "flow", "flow_id", "generation", "job_id", "job_queue", "jobs", "kind",
        "state", "watched_queue",
    )
)  # fmt: skip
"""Tags of runs that sensors and the launcher set; they do not change where steps are queued."""
_STEP_TAGS: Final = (QUEUE_TAG, PRIORITY_TAG, CONCURRENCY_KEY_TAG, CONCURRENCY_LIMIT_TAG, RATE_LIMIT_TAG)
DAGSTER_PRIORITY_TAG: Final = "dagster/priority"

HIGHEST: Final = 1_024
"""The highest distinct priority; 1 in glide-mq, where lower numbers run first."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The queue and the options of a job.

    Attributes:
        queue: The queue.
        options: Priority and ordering key; all other options have their defaults.
    """

    queue: str
    options: JobOptions


def place_of_step(step: Mapping[str, str], run: Mapping[str, str], queue: str) -> Placement:
    """The queue and options of a step.

    Args:
        step: The tags of the step.
        run: The tags of its run, for tags that the step does not have.
        queue: The queue if neither has the tag.

    Raises:
        ConfigurationError: A tag with our prefix is unknown, or has an invalid value.
    """
    tags = {**_ours(run), **_ours(step)}
    if unknown := sorted(set(tags) - {*_STEP_TAGS, RUN_QUEUE_TAG} - _TELL):
        raise ConfigurationError(
            f"there is no tag {unknown[0]}; the tags of steps are {', '.join(_STEP_TAGS)}"
        )
    ordering = _ordering(tags)
    priority = _priority(step) if _has_priority(step) else _priority(run)
    return _place(tags.get(QUEUE_TAG, queue), QUEUE_TAG, JobOptions(priority=priority, ordering=ordering))


def place_of_run(run: Mapping[str, str], queue: str) -> Placement:
    """The queue and options of a run.

    Raises:
        ConfigurationError: See ``place_of_step``.
    """
    return _place(run.get(RUN_QUEUE_TAG, queue), RUN_QUEUE_TAG, JobOptions(priority=_priority(run)))


def _place(queue: str, tag: str, options: JobOptions) -> Placement:
    try:
        return Placement(check_queue_name(queue), options)
    except ConfigurationError as exc:
        raise ConfigurationError(f"tag {tag}, or the queue of the config: {exc}") from exc


def _ours(tags: Mapping[str, str]) -> dict[str, str]:
    return {tag: value for tag, value in tags.items() if tag.startswith("dagster-glidemq/")}


def _has_priority(tags: Mapping[str, str]) -> bool:
    return PRIORITY_TAG in tags or DAGSTER_PRIORITY_TAG in tags


def _priority(tags: Mapping[str, str]) -> int:
    """The glide-mq priority: 1 runs first, 0 last. In the tags, higher runs first and 0 is the default."""
    tag = PRIORITY_TAG if PRIORITY_TAG in tags else DAGSTER_PRIORITY_TAG
    wanted = _whole(tags, tag, 0)
    return 0 if wanted <= 0 else max(HIGHEST + 1 - wanted, 1)


def _ordering(tags: Mapping[str, str]) -> Ordering | None:
    key = tags.get(CONCURRENCY_KEY_TAG)
    if key is None:
        for tag in (CONCURRENCY_LIMIT_TAG, RATE_LIMIT_TAG):
            if tag in tags:
                raise ConfigurationError(
                    f"tag {tag} limits the steps of a key: set {CONCURRENCY_KEY_TAG} too"
                )
        return None
    try:
        return Ordering(key, _whole(tags, CONCURRENCY_LIMIT_TAG, 1), _rate(tags.get(RATE_LIMIT_TAG)))
    except InvalidJob as exc:
        raise ConfigurationError(
            f"tags {CONCURRENCY_KEY_TAG}, {CONCURRENCY_LIMIT_TAG}, {RATE_LIMIT_TAG}: {exc}"
        ) from exc


def _rate(text: str | None) -> RateLimit | None:
    if text is None:
        return None
    count, _, span = text.partition("/")
    try:
        return RateLimit(int(count), in_seconds("the duration", span, min_=MILLISECOND))
    except ValueError as exc:
        raise ConfigurationError(
            f"tag {RATE_LIMIT_TAG} must be N/DURATION, such as 10/60 or 10/1m, got {text!r}"
        ) from exc


def _whole(tags: Mapping[str, str], tag: str, default: int) -> int:
    text = tags.get(tag)
    try:
        return default if text is None else int(text)
    except ValueError as exc:
        raise ConfigurationError(f"tag {tag} must be a whole number, got {text!r}") from exc
