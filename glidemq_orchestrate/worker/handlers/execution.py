"""A running handler, as middleware and the worker see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.tasks import JobTask


@dataclass(slots=True, eq=False)
class Execution:
    """A handler running for one job or, in a batch, for several.

    Attributes:
        attempts: The jobs, each with ``queue``, ``job_id``, ``name``, ``attempts_made`` (before this one),
            ``flow_id``, ``node`` and ``options``. Do not change them.
        started: When it began, by the clock of the worker's loop.
        contexts: The arguments of the handler: one for each job.
        stopped: The jobs that must stop: True if the job was revoked, False if it lost its lease.
        task: The task in which it runs.
        thread: The system's number of its thread, if the handler is a plain function.
        used: The processor time that it used in that thread, in seconds; None until it has returned.
        has_ended: Its place is free.
        is_over: The outcomes of all its attempts are reported.
    """

    attempts: Sequence[Attempt]
    started: float
    contexts: Sequence[Context] = ()
    stopped: dict[str, bool] | None = None
    task: JobTask | None = None
    thread: int | None = None
    used: float | None = None
    has_ended: bool = False
    is_over: bool = False
