"""The keys of a queue of ChasquiMQ. They share the hash tag ``{chasqui:<queue>}``, and so one slot.

Names that begin with ``gmo:`` are ours, the others ChasquiMQ's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.texts import SURROGATES, shown
from glidemq_orchestrate.foundation.values import NameRule

ChasquiKeyName = Literal[
    "stream", "dlq", "delayed", "events", "repeat", "promoter:lock", "scheduler:lock"
]  # fmt: skip
"""The keys that a queue has once each."""

QUEUE: Final = NameRule("queue name", marks="{}", is_plain=True)
GROUP: Final = "default"
"""The consumer group of workers, unless they are given another."""
MAX_NAME_BYTES: Final = 256
_JOB_ID: Final = NameRule("job id", InvalidJob, max_length=1024, is_plain=True)


@dataclass(frozen=True, slots=True)
class ChasquiKeys:
    """The keys of one queue."""

    queue: str

    def key(self, name: ChasquiKeyName) -> str:
        """A key that the queue has once."""
        return f"{{chasqui:{self.queue}}}:{name}"

    def spec(self, schedule: str) -> str:
        """The hash of a schedule: its ``spec``, and how often it has ``fired``."""
        return f"{{chasqui:{self.queue}}}:repeat:spec:{schedule}"

    def result(self, job_id: str) -> str:
        """The result of a job."""
        return f"{{chasqui:{self.queue}}}:result:{job_id}"

    def delayed_marker(self, job_id: str) -> str:
        """Set while the id of a delayed job may not be scheduled again."""
        return f"{{chasqui:{self.queue}}}:dlid:{job_id}"

    def delayed_member(self, job_id: str) -> str:
        """The exact member of a delayed job, for cancelling it."""
        return f"{{chasqui:{self.queue}}}:didx:{job_id}"

    def added(self, producer_id: str, job_id: str) -> str:
        """Ours: set while a producer may not add the same id again, on servers without ``IDMP``."""
        return f"{{chasqui:{self.queue}}}:gmo:added:{producer_id}:{job_id}"

    def call(self, token: str) -> str:
        """Ours: set after one call has added many jobs, so that it can be repeated."""
        return f"{{chasqui:{self.queue}}}:gmo:call:{token}"

    def handed_over(self, job_id: str) -> str:
        """Ours: the entry that a bridge has added for an attempt of a job of ours."""
        return f"{{chasqui:{self.queue}}}:gmo:handed-over:{job_id}"


def check_queue(name: str) -> str:
    """Return the name of a queue if it is valid.

    Raises:
        ConfigurationError: It is not.
    """
    return QUEUE.check(name)


def check_job_id(job_id: str) -> str:
    """Return a job id if it is valid: not blank, without control characters.

    Raises:
        InvalidJob: It is not valid. ChasquiMQ's own packages refuse blank ids, too.
    """
    if isinstance(job_id, str) and job_id and not job_id.strip():
        raise InvalidJob("job id must not be blank")
    return _JOB_ID.check(job_id)


def check_job_name(name: str) -> str:
    """Return a job name if it is valid: at most 256 bytes; it may be empty.

    Raises:
        InvalidJob: It is not valid.
    """
    if not isinstance(name, str):
        raise InvalidJob(f"job name must be text, got {type(name).__name__}")
    if len(name) <= MAX_NAME_BYTES and name.isascii():
        return name
    if SURROGATES.search(name):
        raise InvalidJob(f"job name {shown(name)} is not valid: it has a lone surrogate")
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise InvalidJob(f"job name {shown(name)} has {size} bytes; ChasquiMQ allows {MAX_NAME_BYTES}")
    return name
