"""GlideMQRunLauncher: each run becomes a job of a queue, run by a warm worker.

The job id of a run, and of each resume, is derived from the run id. Its queue is in a tag of the run, written
before the job is added. A kill between the two leaves a tag without a job. Such a run counts as one whose
worker is lost, and stays ``STARTING`` until Dagster's ``start_timeout_seconds``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Self

import dagster as dg
from dagster import DagsterEventType

from dagster_glidemq.attempts import ENDS
from dagster_glidemq.connection import LEASE_SECONDS, GlideMQConnection, connection_fields, connection_of
from dagster_glidemq.durations import DAY, duration_field, in_seconds
from dagster_glidemq.private import (
    CheckRunHealthResult,
    ConfigurableClass,
    ConfigurableClassData,
    EngineEventData,
    LaunchRunContext,
    ResumeRunContext,
    RunLauncher,
    WorkerStatus,
)
from dagster_glidemq.queues import MARGIN_SECONDS, Overdue, Queues, why_lost
from dagster_glidemq.step_handler import JOB_ID, QUEUE
from dagster_glidemq.step_job import (
    JOB_TAG,
    PLACE_TAG,
    RUN_JOB,
    RunJob,
    location_of,
    place_of_run,
    run_job_id,
    storage_of,
)
from glidemq_orchestrate import NewJob
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.runs import Duration

GRACE_SECONDS: Final = 60.0


class GlideMQRunLauncher(RunLauncher[dg.DagsterInstance], ConfigurableClass):
    """Launches each run as a job of a queue.

    Workers run them: ``glidemq worker --app dagster_glidemq.worker --queue dagster-runs``.

    Supports run monitoring, and resuming with an executor such as ``glidemq_executor``, which takes its
    connection and its queue from here. Connects on first use only, as every process that opens the instance
    creates a launcher.

    Example:
        .. code-block:: yaml

            run_launcher:
              module: dagster_glidemq
              class: GlideMQRunLauncher
              config:
                url: {env: GLIDEMQ_URL}
    """

    def __init__(  # noqa: PLR0913  its config
        self,
        connection: GlideMQConnection,
        *,
        run_queue: str = "dagster-runs",
        step_queue: str = "dagster-steps",
        lease: Duration | str = LEASE_SECONDS,
        grace: Duration | str = GRACE_SECONDS,
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        if run_queue == step_queue:
            raise ConfigurationError(
                f"run_queue and step_queue are both {run_queue}: runs that wait for their steps would occupy "
                "their slots"
            )
        self.connection, self.run_queue, self.step_queue = connection, run_queue, step_queue
        self._lease = timedelta(seconds=in_seconds("lease", lease, min_=timedelta(seconds=1), max_=DAY))
        self._grace = in_seconds("grace", grace, max_=DAY)
        self._inst_data = inst_data
        self._queues, self._overdue = Queues(connection), Overdue()
        super().__init__()  # type: ignore[no-untyped-call]  # of Dagster

    # --- construction by Dagster ---

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """The entry of the launcher in ``dagster.yaml``."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, dg.Field]:
        """The schema of the config."""
        return {
            **connection_fields(is_required=True),
            "run_queue": _queue_field(
                "dagster-runs", "The queue of runs without the tag dagster-glidemq/run_queue."
            ),
            "step_queue": _queue_field("dagster-steps", "The queue of steps, for glidemq_executor."),
            "lease": duration_field(
                LEASE_SECONDS,
                "A run is lost if its worker has not renewed its lease for this long, 1s to 1d.",
            ),
            "grace": duration_field(
                GRACE_SECONDS,
                "How long a run may take to end after a termination; then its process is killed.",
            ),
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """Create the launcher from its config."""
        names = ("run_queue", "step_queue", "lease", "grace")
        own = {name: config_value[name] for name in names if name in config_value}
        return cls(connection_of(config_value), inst_data=inst_data, **own)

    # --- runs ---

    def launch_run(self, context: LaunchRunContext) -> None:
        """Add the job of a run. Repeatable: a job that waits or runs is left unchanged.

        Raises:
            ConfigurationError: A tag of the run has an invalid value.
            TransportError: The server cannot be reached for longer than ``patience``.
        """
        self._launch(context.dagster_run, 0)

    @property
    def supports_resume_run(self) -> bool:
        """Always true: runs can be resumed."""
        return True

    def resume_run(self, context: ResumeRunContext) -> None:
        """Revoke the job whose worker was lost, and add a job that continues the run. Repeatable.

        Raises:
            TransportError: The server cannot be reached for longer than ``patience``.
        """
        self._revoke(context.dagster_run)
        self._launch(context.dagster_run, context.resume_attempt_number or 1)

    def _launch(self, run: dg.DagsterRun, resume: int) -> None:
        if run.job_code_origin is None:
            raise ConfigurationError(f"run {run.run_id} has no code origin: launch it from a code location")
        place, job_id = place_of_run(run.tags, self.run_queue), run_job_id(run.run_id, resume)
        self._instance.add_run_tags(run.run_id, {JOB_TAG: job_id, PLACE_TAG: place.queue})
        link = self._queues.link(place.queue, job_id)
        self._instance.report_engine_event(
            f"Queued glide-mq job {job_id} in queue {place.queue}.",
            run,
            EngineEventData(metadata={"glidemq/job": dg.MetadataValue.url(link)} if link else {}),
        )
        location, storage = location_of(run.job_code_origin), storage_of(self._instance)
        job = RunJob(
            run_id=run.run_id,
            location=location,
            storage=storage,
            grace_seconds=self._grace,
            resume=resume > 0,
        )
        new = NewJob(RUN_JOB, job.payload(), options=place.options)
        self._queues.add(place.queue, new, job_id=job_id, lease=self._lease)

    def terminate(self, run_id: str) -> bool:
        """Revoke the job of a run and those of its steps. Returns whether there was any. Repeatable.

        The run becomes ``CANCELING``; its process then marks it as ``CANCELED``, within about a second.
        Without a process, because no worker has started the run or its worker was lost, this method marks it
        as ``CANCELED``. The state of a run that has ended does not change, but its waiting and running jobs
        are revoked.

        Raises:
            TransportError: The server cannot be reached for longer than ``patience``. The run is
                ``CANCELING``; call again to continue.
        """
        run = self._instance.get_run_by_id(run_id)
        if run is None:
            return False
        was_over = run.is_finished
        if not was_over and run.status is not dg.DagsterRunStatus.CANCELING:
            self._instance.report_run_canceling(run)
        word, is_alive = self._revoke(run)
        words = [self._queues.revoke(*place) for place in _steps_in_flight(self._instance, run_id)]
        if was_over:
            return any([word, *words])
        if not is_alive:
            run = self._instance.get_run_by_id(run_id)
            if run is not None and not run.is_finished:
                self._instance.report_run_canceled(run)
        return True

    def _revoke(self, run: dg.DagsterRun) -> tuple[str, bool]:
        """Revoke the newest job of a run. Returns the outcome, and whether a process will end the run."""
        if (place := _place_of_job(run)) is None:
            return "", False
        queue, job_id = place
        word = self._queues.revoke(queue, job_id)
        return word, word != "revoked" and self._why_lost(queue, job_id, margin=0.0) is None

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Always true: run monitoring is supported."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Check whether a worker runs the run, or it still waits for one.

        Raises:
            TransportError: The server does not respond: the state of the run is unknown.
        """
        if (place := _place_of_job(run)) is None:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "The run was not launched as a glide-mq job.")
        queue, job_id = place
        why = self._why_lost(queue, job_id)
        if why is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, run_worker_id=job_id)
        return CheckRunHealthResult(
            WorkerStatus.FAILED, f"{why} (job {job_id} of queue {queue})", run_worker_id=job_id
        )

    def get_run_worker_debug_info(
        self,
        run: dg.DagsterRun,
        include_container_logs: bool | None = True,  # noqa: ARG002, FBT001, FBT002  Dagster's
    ) -> str | None:
        """The state of the run's job and the workers of its queue; Dagster shows it when a run times out."""
        if (place := _place_of_job(run)) is None:
            return None
        queue, job_id = place
        try:
            job, workers = self._queues.read(queue, job_id), self._queues.workers_for(queue, RUN_JOB)
        except GlideMQError as exc:
            return (
                f"glide-mq job {job_id} of queue {queue}: the server does not respond ({type(exc).__name__})"
            )
        state = "gone" if job is None else f"{job.state.value}, worker {job.worker or 'none yet'}"
        serving = (
            f"{workers} live workers serve the queue"
            if workers
            else (
                "no live worker serves the queue; start one: "
                f"glidemq worker --app dagster_glidemq.worker --queue {queue}"
            )
        )
        return f"glide-mq job {job_id} of queue {queue} is {state}; {serving}"

    def _why_lost(self, queue: str, job_id: str, *, margin: float = MARGIN_SECONDS) -> str | None:
        job, now = self._queues.read(queue, job_id), self._queues.now(queue)
        return why_lost(job, now, self._overdue, margin=margin)

    def dispose(self) -> None:
        """Close the connections."""
        self._queues.close()


def _queue_field(default: str, description: str) -> dg.Field:
    return dg.Field(dg.StringSource, is_required=False, default_value=default, description=description)


def _place_of_job(run: dg.DagsterRun) -> tuple[str, str] | None:
    """Queue and id of the newest job of a run. A re-execution has the tags of its parent at first."""
    queue, job_id = run.tags.get(PLACE_TAG), run.tags.get(JOB_TAG, "")
    is_its_own = job_id.startswith(run_job_id(run.run_id, 0).removesuffix("0"))
    return (queue, job_id) if queue is not None and is_its_own else None


def _steps_in_flight(instance: dg.DagsterInstance, run_id: str) -> Iterator[tuple[str, str]]:
    """Queue and job of the queued steps that have not ended, by the event log."""
    kinds = {DagsterEventType.STEP_WORKER_STARTING, *ENDS}
    open_steps: dict[str, tuple[str, str]] = {}
    for entry in instance.all_logs(run_id, of_type=kinds):
        event = entry.dagster_event
        if event is None or event.step_key is None:
            continue
        if event.event_type in ENDS:
            open_steps.pop(event.step_key, None)
            continue
        known = event.engine_event_data.metadata
        place = [str(known[name].value) for name in (QUEUE, JOB_ID) if name in known]
        if len(place) == 2:
            open_steps[event.step_key] = place[0], place[1]
    yield from open_steps.values()
