"""The output of a job: a stream of named texts that it writes while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.errors import (
    ConfigurationError,
    InvalidJob,
)
from glidemq_orchestrate.jobs import calls as job_calls
from glidemq_orchestrate.jobs.bounds import check_text
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys

MAX_PARTS: Final = 900


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """One entry of a job's output; ``id`` is the position after which reading continues."""

    id: str
    fields: Mapping[str, str]


def add_output(queue: QueueKeys, job_id: str, fields: Mapping[str, str]) -> Op[str]:
    """Append to the output of a job."""
    check_output(fields)
    return (yield from ask(job_calls.add_output(queue, job_id, fields)))


def check_output(fields: Mapping[str, str]) -> None:
    """Check that the fields are valid as one entry of an output.

    Raises:
        InvalidJob, PayloadTooLarge: They are not.
    """
    if not fields or not all(isinstance(part, str) for pair in fields.items() for part in pair):
        raise InvalidJob("output must be at least one text, each with a name")
    if len(fields) > MAX_PARTS:
        raise InvalidJob(f"one entry of an output has at most {MAX_PARTS} parts, got {len(fields)}")
    check_text("output", "".join(part for pair in fields.items() for part in pair))


def read_output(
    queue: QueueKeys, job_id: str, after: str | None, limit: int, wait_ms: int
) -> Op[list[OutputChunk]]:
    """Read the output of a job after a position."""
    if limit < 1:
        raise ConfigurationError("limit must be at least 1")
    call = job_calls.read_output(queue, job_id, after or "0-0", limit, wait_ms if wait_ms > 0 else None)
    return [OutputChunk(entry_id, fields) for entry_id, fields in (yield from ask(call))]
