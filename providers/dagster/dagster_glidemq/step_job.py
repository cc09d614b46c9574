"""A step as a job: its id and its payload, which hold no code and no secrets.

The payload names the run; what to import, the config and where the storages are, a worker takes from its own
Dagster instance. So a client that can write to the queue can start steps of runs that exist, but run no code
of its own. The state of the run that a step needs (attempts, dynamic outputs) is packed by Dagster's own
serialization, which makes objects of its registered classes only.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from dagster_glidemq.private import (
    JobPythonOrigin,
    KnownExecutionState,
    RetryMode,
    deserialize_value,
    serialize_value,
)
from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.runs import JsonLike
from glidemq_orchestrate.wire.keys import check_job_id

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
    """What tells code locations apart: steps of one location share a warm process."""
    pointer: Any = origin.repository_origin.code_pointer
    return hashlib.sha256(serialize_value(pointer).encode()).hexdigest()[:32]


def storage_of(instance: dg.DagsterInstance) -> str:
    """What tells the storages of instances apart: of two with the same one, both have every run."""
    found: Any = getattr(instance.run_storage, "get_run_storage_id", str)
    return str(found())


@dataclass(frozen=True, slots=True)
class StepJob:
    """What a worker needs to run a step.

    Attributes:
        run_id: The run, which the worker's Dagster instance must have.
        step_key: The step.
        location: ``location_of`` its code.
        retry_mode: What happens to a step that asks for a retry.
        known_state: What has happened in the run so far, packed.
        storage: ``storage_of`` the instance: one that has it and not the run tells that it was deleted.
        grace_seconds: How long it may take to end when it is interrupted; then it is killed.
    """

    run_id: str
    step_key: str
    location: str
    retry_mode: str
    known_state: str
    storage: str
    grace_seconds: float

    @classmethod
    def of(  # noqa: PLR0913  what a step is
        cls,
        run_id: str,
        step_key: str,
        *,
        origin: JobPythonOrigin,
        retry_mode: RetryMode,
        known_state: KnownExecutionState | None,
        storage: str,
        grace_seconds: float,
    ) -> StepJob:
        """The job of a step."""
        text = serialize_value(known_state or KnownExecutionState())
        packed = base64.b64encode(zlib.compress(text.encode())).decode()
        return cls(run_id, step_key, location_of(origin), retry_mode.value, packed, storage, grace_seconds)

    @classmethod
    def read(cls, data: object) -> StepJob:
        """Read a payload.

        Raises:
            ValueError: It is none; the message does not show it.
        """
        fields = _fields(data, {name: str for name in cls.__slots__ if name != "grace_seconds"})
        return cls(**fields, grace_seconds=_grace(data))

    def payload(self) -> JsonLike:
        """The payload of the job."""
        return {name: getattr(self, name) for name in self.__slots__}

    def unpacked_state(self) -> KnownExecutionState:
        """The state of the run.

        Raises:
            Exception: It is not one.
        """
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(self.known_state, validate=True), MAX_UNPACKED)
        if not unpacker.eof:
            raise ValueError("the state of the run is cut short, or too large")
        return deserialize_value(text.decode(), KnownExecutionState)

    def unpacked_retry_mode(self) -> RetryMode:
        """The retry mode.

        Raises:
            ValueError: There is none of this name.
        """
        return RetryMode(self.retry_mode)


@dataclass(frozen=True, slots=True)
class RunJob:
    """What a worker needs to run a run.

    Attributes:
        run_id: The run, which the worker's Dagster instance must have.
        location: ``location_of`` its code.
        resume: Whether its worker was lost, and it goes on.
        storage, grace_seconds: As for a step.
    """

    run_id: str
    location: str
    resume: bool
    storage: str
    grace_seconds: float

    @classmethod
    def read(cls, data: object) -> RunJob:
        """Read a payload.

        Raises:
            ValueError: It is none; the message does not show it.
        """
        fields = _fields(data, {"run_id": str, "location": str, "resume": bool, "storage": str})
        return cls(**fields, grace_seconds=_grace(data))

    def payload(self) -> JsonLike:
        """The payload of the job."""
        return {name: getattr(self, name) for name in self.__slots__}


def _fields(data: object, kinds: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError("the payload is not an object")  # noqa: TRY004  one error for all
    for name, kind in kinds.items():
        if not isinstance(data.get(name), kind):
            raise ValueError(  # noqa: TRY004  one error for all
                f"{name} in the payload is missing, or not of the type {kind.__name__}"
            )
    return {name: data[name] for name in kinds}


def _grace(data: Any) -> float:
    seconds = data.get("grace_seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 86_400:
        raise ValueError("grace_seconds in the payload is missing, or not 0 to 86400")
    return float(seconds)
