"""Finds out when the last run of a job began, from its stored fields. Pure."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.token import worker_of

START_FIELDS: Final[tuple[JobField, ...]] = ("state", "processedOn", "finishedOn", "gmo:token")
"""The arguments of ``started``."""


def started(state: str | None, begun: str | None, finished: str | None, token: str | None) -> str | None:
    """The stored time when the last run began; None if it never ran or the time is unknown.

    glide-mq's own functions replace it by the time of a failure, even for a job that never ran. Our workers
    keep it, and are recognized by the token.
    """
    is_replaced = state == "failed" and bool(begun) and begun == finished and worker_of(token or "") is None
    return None if is_replaced else begun
