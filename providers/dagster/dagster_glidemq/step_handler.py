"""GlideMQStepHandler: steps as jobs of a queue, for Dagster's ``StepDelegatingExecutor``.

Progress is in Dagster's event log; the queue only starts and ends steps. The job id of an attempt of a step
is derived from run, step and attempt, so another process can continue.

What a kill leaves behind, and what repairs it:

- after ``STEP_WORKER_STARTING`` was logged, before the job was added: no job; the health check of the resumed
  run finds that, and the executor launches the step.
- after the job was added: a job that the resumed run finds by its id, and waits for.
- after ``terminate_step`` had logged, before the revoke: a step whose run is ``CANCELING``: it does not
  begin, or runs to its end; ``GlideMQRunLauncher.terminate`` revokes it too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from dagster import DagsterEvent

from dagster_glidemq.attempts import ENDS, STARTS, Attempts
from dagster_glidemq.private import (
    CheckStepHealthResult,
    EngineEventData,
    RetryMode,
    StepHandler,
    StepHandlerContext,
)
from dagster_glidemq.queues import JobStates, Overdue, Queues, why_lost
from dagster_glidemq.step_job import (
    STEP_JOB,
    Placement,
    StepJob,
    location_of,
    packed,
    place_of_step,
    step_job_id,
    storage_of,
)
from glidemq_orchestrate import JobState, NewJob
from glidemq_orchestrate.errors import TransportError
from glidemq_orchestrate.runs import JsonLike

logger = logging.getLogger(__name__)

JOB_ID: Final = "glidemq/job_id"
QUEUE: Final = "glidemq/queue"
JOB: Final = "glidemq/job"
UNREAD_SECONDS: Final = 2.0
WAITING: Final = frozenset({JobState.WAITING, JobState.PRIORITIZED, JobState.DELAYED, JobState.GROUP_WAITING})


class GlideMQStepHandler(StepHandler):
    """Starts, watches and ends steps.

    Args:
        queues: The queues.
        queue: The queue of steps without a queue tag.
        start_timeout: Seconds that a step may wait while no live worker serves its queue.
        lease: A step is lost when its worker has not renewed its lease for this long.
        grace: Seconds that a step has to end after an interrupt.

    Attributes:
        missed: Called when the event log has had the end of a step for a while, but the executor still waits
            for it.
    """

    def __init__(
        self, queues: Queues, queue: str, *, start_timeout: float, lease: timedelta, grace: float
    ) -> None:
        self._queues, self._queue = queues, queue
        self._start_timeout, self._lease, self._grace = start_timeout, lease, grace
        self._overdue, self._states = Overdue(), JobStates(queues, STEP_JOB)
        self._storage: str | None = None
        self.missed: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """The name in the event log."""
        return "GlideMQStepHandler"

    def launch_step(self, step_handler_context: StepHandlerContext) -> Iterator[DagsterEvent]:
        """Log that the step is queued, then add its job. Repeatable: a waiting or running job stays.

        Raises:
            ConfigurationError: A tag has an invalid value.
            PayloadTooLarge: The state of the run takes more than 1 MiB packed: it has too many outputs.
            TransportError: The server cannot be reached for longer than ``patience``.
        """
        step = _SubmittedStep(step_handler_context, self._queue)
        metadata: dict[str, dg.MetadataValue[Any]] = {
            JOB_ID: dg.MetadataValue.text(step.job_id),
            QUEUE: dg.MetadataValue.text(step.place.queue),
        }
        if url := self._queues.link(step.place.queue, step.job_id):
            metadata[JOB] = dg.MetadataValue.url(url)
        yield DagsterEvent.step_worker_starting(
            step_handler_context.get_step_context(step.key),
            message=f"Queued glide-mq job {step.job_id} in queue {step.place.queue}.",
            metadata=metadata,
        )
        if self._storage is None:
            self._storage = storage_of(step_handler_context.instance)
        new = NewJob(STEP_JOB, step.payload(self._storage, self._grace), options=step.place.options)
        self._queues.add(step.place.queue, new, job_id=step.job_id, lease=self._lease)
        self._states.add(step.place.queue, step.job_id)

    def check_step_health(self, step_handler_context: StepHandlerContext) -> CheckStepHealthResult:
        """Check whether the step is lost.

        If the server does not respond, the step counts as healthy. A lost step is revoked first, so that a
        worker that only seemed to be lost ends it.
        """
        step = _SubmittedStep(step_handler_context, self._queue)
        try:
            if self._waits_for_a_worker(step):
                return CheckStepHealthResult.healthy()
            why = self._why_lost(step) or self._why_unserved(step)
            if why is None:
                return CheckStepHealthResult.healthy()
            if step.has_ended():
                if self._overdue.seconds(f"{step.job_id} is unread", is_so=True) >= UNREAD_SECONDS:
                    self.missed()
                return CheckStepHealthResult.healthy()
            self._queues.revoke(step.place.queue, step.job_id)
        except TransportError as exc:
            logger.warning("the health of step %s is not known: %s", step.key, exc)
            return CheckStepHealthResult.healthy()
        return CheckStepHealthResult.unhealthy(f"{why} (job {step.job_id} of queue {step.place.queue})")

    def terminate_step(self, step_handler_context: StepHandlerContext) -> Iterator[DagsterEvent]:
        """Revoke the job: a worker interrupts the step within a second or so. Repeatable.

        Raises:
            TransportError: The server cannot be reached for longer than ``patience``.
        """
        step = _SubmittedStep(step_handler_context, self._queue)
        yield DagsterEvent.engine_event(
            step_handler_context.get_step_context(step.key),
            f"Revoking glide-mq job {step.job_id} of queue {step.place.queue}.",
            EngineEventData(),
        )
        self._queues.revoke(step.place.queue, step.job_id)

    def _waits_for_a_worker(self, step: _SubmittedStep) -> bool:
        """Whether the step waits in a queue with workers: then the shared cache of states suffices.

        A step that was started and returned is recognised when a worker takes it, or when no worker is left.
        """
        queue = step.place.queue
        if self._states.state(queue, step.job_id) not in WAITING or not self._states.workers(queue):
            return False
        self._overdue.forget(queue, f"{queue}/{step.job_id}")
        return True

    def _why_lost(self, step: _SubmittedStep) -> str | None:
        job = self._queues.read(step.place.queue, step.job_id)
        step.is_active = job is not None and job.state is JobState.ACTIVE
        return why_lost(job, self._queues.now(step.place.queue), self._overdue)

    def _why_unserved(self, step: _SubmittedStep) -> str | None:
        """Why no worker will take a waiting step."""
        queue = step.place.queue
        is_unserved = not step.is_active and not self._states.workers(queue)
        if step.is_active or self._overdue.seconds(queue, is_so=is_unserved) < self._start_timeout:
            return None
        return (
            f"no live worker has served queue {queue} for {self._start_timeout:g} seconds; start one: "
            f"glidemq worker --app dagster_glidemq.worker --queue {queue}"
        )


class _SubmittedStep:
    """The identity of one attempt of a step."""

    def __init__(self, context: StepHandlerContext, queue: str) -> None:
        arguments = self._arguments = context.execute_step_args
        (self.key,) = arguments.step_keys_to_execute or ()
        self._context, self.is_active = context, False
        known = arguments.known_state
        self.attempt = known.get_retry_state().get_attempt_count(self.key) if known else 0
        self.job_id = step_job_id(arguments.run_id, self.key, self.attempt)
        self.place: Placement = place_of_step(context.step_tags[self.key], context.dagster_run.tags, queue)

    def payload(self, storage: str, grace: float) -> JsonLike:
        """The payload for the worker."""
        arguments = self._arguments
        return StepJob(
            run_id=arguments.run_id,
            step_key=self.key,
            location=location_of(arguments.job_origin),
            retry_mode=(arguments.retry_mode or RetryMode.DISABLED).value,
            known_state=packed(arguments.known_state),
            storage=storage,
            grace_seconds=grace,
        ).payload()

    def has_ended(self) -> bool:
        """Whether the event log has the end of this attempt."""
        log = self._context.instance.all_logs(self._arguments.run_id, of_type=set(STARTS | ENDS))
        return Attempts.of(log).has_ended(self.key, self.attempt)
