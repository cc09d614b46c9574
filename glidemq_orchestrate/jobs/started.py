"""When the last run of a job began, from its stored fields. Pure."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.token import worker_of

START_FIELDS: Final[tuple[JobField, ...]] = ("state", "processedOn", "finishedOn", "gmo:token")
"""The fields that ``started`` takes."""


def started(state: str | None, begun: str | None, finished: str | None, token: str | None) -> str | None:
    """The stored time at which the last run began; None if it never ran, or that is not known.

    glide-mq's own functions replace the time by that of the failure, also for a job that never ran. Our
    workers, which leave a token, keep it.
    """
    is_replaced = state == "failed" and bool(begun) and begun == finished and worker_of(token or "") is None
    return None if is_replaced else begun
