"""A running handler, as the parts of a worker and its middleware see it."""

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
            ``flow_id``, ``node`` and ``options``. Read them only.
        started: When it began, by the clock of the worker's loop.
        contexts: The arguments of the handler: one for each job.
        stopped: The jobs that shall stop: True for one that was revoked, False for one that lost its lease.
        task: The task in which it runs.
        thread: The system's number of the thread in which its handler runs, if it is a plain function.
        used: The processor time of that thread in it, in seconds; None until it has returned.
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
