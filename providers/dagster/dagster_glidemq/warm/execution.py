"""Loads the code of a run, and executes steps and runs as Dagster's own commands do. For one thread."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import dagster as dg
from dagster import DagsterEventType, DagsterExecutionInterruptedError

from dagster_glidemq.attempts import StepAttempt
from dagster_glidemq.private import (
    DAGSTER_CONFIG_YAML_FILENAME,
    EngineEventData,
    ExecuteStepArgs,
    JobPythonOrigin,
    ReconstructableJob,
    capture_interrupts,
    compute_logs,
    execute_run,
    execute_step,
    get_env_var_dict,
    import_commands,
    recon_job_from_origin,
    serializable_error_info_from_exc_info,
)
from dagster_glidemq.step_job import RunJob, StepJob, location_of, storage_of
from dagster_glidemq.warm.messages import INTERRUPTED, NotPrepared, Outdated
from dagster_glidemq.warm.sources import Sources

logger = logging.getLogger("dagster_glidemq.warm")

PRELOAD: Final = "GLIDEMQ_DAGSTER_PRELOAD"
"""Modules to import before the first job, separated by commas."""


class WarmExecution:
    """The instance and the code of a warm process; a child inherits them in their state at the fork.

    Args:
        sources: Records the sources of the code.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._opened: dg.DagsterInstance | None = None
        self._prepared: tuple[str, str] | None = None
        self._snapshots: dict[Any, str | None] = {}  # those of the runs that were prepared, by what they run
        self._location_name: str | None = None
        self._found: Any = None

    # --- in the process that forks ---

    def warm_up(self) -> None:
        """Import what steps need: an empty job triggers Dagster's lazy imports."""
        # The processes that Dagster starts to copy the output of each step to its own cost more than a step:
        # here it goes to the compute log only.
        if hasattr(compute_logs, "tail_to_stream"):
            compute_logs.tail_to_stream = _no_tail
        import_commands()
        _run_nothing()
        self._read_env_file(os.getcwd())  # noqa: PTH109  as Dagster's own commands do

    @property
    def is_open(self) -> bool:
        """Whether the instance is open."""
        return self._opened is not None

    def open(self) -> None:
        """Open the instance. Called only when there is a job, as its storages exist by then.

        Dagster creates the storages of a new ``DAGSTER_HOME`` when it is first opened. Two processes that do
        so concurrently leave a SQLite storage that can never be opened again.
        """
        if home := os.environ.get("DAGSTER_HOME"):
            self._sources.note(os.path.join(home, DAGSTER_CONFIG_YAML_FILENAME))  # noqa: PTH118  as in sources
        _ = self._instance

    def preload(self) -> None:
        """Import the modules of ``GLIDEMQ_DAGSTER_PRELOAD``; import errors are logged."""
        with self._sources.recording():
            for name in filter(None, os.environ.get(PRELOAD, "").split(",")):
                try:
                    importlib.import_module(name.strip())
                except Exception:
                    logger.exception("%s: cannot import %s", PRELOAD, name)

    def is_of_another_run(self, job: Any) -> bool:
        """Whether the loaded definitions belong to an earlier run."""
        return self._prepared is not None and isinstance(job, dict) and self._prepared[1] != job.get("run_id")

    def prepare(self, kind: str, job: Any) -> bool:
        """Load the code of the run for its children. Returns whether there was anything to load.

        Raises:
            NotPrepared: The instance has no such run, the run has ended, or its code differs from that of the
                job.
            Outdated: The loaded definitions belong to an earlier run, and differ from those of this run.
            BaseException: Any error of the import of the code.
        """
        try:
            read = (StepJob if kind == "step" else RunJob).read(job)
        except ValueError as exc:
            raise NotPrepared(str(exc)) from exc
        run_id = read.run_id
        if self._prepared == (kind, run_id):
            return False
        instance, run = self._instance, self._run(run_id, read.storage)
        if run.is_finished:
            raise NotPrepared(f"run {run_id} has ended: it is {run.status.value}")
        if location_of(_origin(run)) != read.location:
            raise NotPrepared(f"run {run_id} has its code in another location than its job")
        code = self._code(run)  # from the storage, whose files are not part of the code
        with self._sources.recording():
            self._read_environment(run)
            if kind == "step":
                code = code.get_subset(
                    op_selection=run.resolved_op_selection,
                    asset_selection=run.asset_selection,
                    asset_check_selection=run.asset_check_selection,
                )
            definition = code.get_definition()  # Dagster caches only the last one
        selected = (run.resolved_op_selection, run.asset_selection, run.asset_check_selection)
        if kind == "step" or not any(selected):
            self._compare(run, definition, selected)
        instance.get_records_for_run(run_id, limit=1)  # SQLite prepares the file of the run
        self._prepared = kind, run_id
        return True

    def _read_environment(self, run: dg.DagsterRun) -> None:
        """Set the variables that Dagster sets before it imports the code: from ``.env`` and the instance.

        Raises:
            Outdated: The code was imported with the variables of another location.
        """
        name = run.remote_job_origin.location_name if run.remote_job_origin else None
        if self._prepared is not None and self._location_name != name:
            raise Outdated
        self._location_name = name
        pointer: Any = _origin(run).repository_origin.code_pointer
        if folder := getattr(pointer, "working_directory", None):
            self._read_env_file(folder)
        self._instance.inject_env_vars(name)

    def _read_env_file(self, folder: str) -> None:
        """Set the variables of ``.env`` in a folder, as ``dagster dev`` does."""
        self._sources.note(os.path.join(folder, ".env"))  # noqa: PTH118  as in sources; also if there is none
        os.environ.update(get_env_var_dict(folder))

    def _compare(self, run: dg.DagsterRun, definition: Any, selected: Iterable[Any]) -> None:
        """Compare the definitions of the run with those that were imported for an earlier run.

        Raises:
            Outdated: They differ, and the import was for an earlier run.
        """
        what = (run.job_name, *(frozenset(part or ()) for part in selected))
        if self._prepared is not None and run.job_snapshot_id is not None:
            known = self._snapshots.get(what) or definition.get_job_snapshot_id()
            if known != run.job_snapshot_id:
                raise Outdated
        self._snapshots[what] = run.job_snapshot_id

    def explain(self, kind: str, job: Any, exc: BaseException) -> str:
        """Write the reason why the code cannot be loaded to the log of the run, and return it for the job."""
        if isinstance(exc, NotPrepared):
            return str(exc)
        what: Any = type(exc), exc, exc.__traceback__
        error = serializable_error_info_from_exc_info(what)
        why = f"the worker cannot load the code of the run: {type(exc).__name__}; the event log has more"
        try:
            read = (StepJob if kind == "step" else RunJob).read(job)
            data, step_key = EngineEventData.engine_error(error), getattr(read, "step_key", None)
            run = self._run(read.run_id, read.storage)
            self._instance.report_engine_event(why, run, data, step_key=step_key)
        except Exception:
            logger.exception("the log of the run cannot be written")
            return f"{why.partition(';')[0]}, and cannot write to the log of the run"
        return why

    @property
    def _instance(self) -> dg.DagsterInstance:
        if self._opened is None:
            self._opened = dg.DagsterInstance.get()
            _ = self._opened.compute_log_manager  # made on first use
        return self._opened

    def _run(self, run_id: str, storage: str) -> dg.DagsterRun:
        run = self._instance.get_run_by_id(run_id)
        if run is None and storage and storage == storage_of(self._instance):
            raise NotPrepared(f"run {run_id} was deleted")
        if run is None:
            home = os.environ.get("DAGSTER_HOME", "")
            raise NotPrepared(
                f"the Dagster instance of the worker (DAGSTER_HOME={home}) has no run {run_id}: "
                "it must have the storages of the one that launched it"
            )
        return run

    def _code(self, run: dg.DagsterRun) -> ReconstructableJob:
        """The code to import, with the metadata that the code server has loaded for it.

        Raises:
            Outdated: The code was imported with other metadata.
        """
        found = None
        if run.has_repository_load_data and run.execution_plan_snapshot_id is not None:
            plan = self._instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
            found = plan.repository_load_data
        if self._prepared is not None and self._found != found:
            raise Outdated
        self._found = found
        return recon_job_from_origin(_origin(run)).with_repository_load_data(found)

    # --- in the child ---

    def run(self, kind: str, job: Any, begin: Callable[[], object]) -> int:
        """Execute a step or a run; returns the exit code, which is ``INTERRUPTED`` after an interrupt.

        Args:
            kind: ``step`` or ``run``.
            job: The payload.
            begin: Called when interrupts can be handled.

        Raises:
            Exception: An error of Dagster; errors of steps are in the log of the run.
        """
        _seed()
        try:
            with capture_interrupts():
                begin()
                return self._step(StepJob.read(job)) if kind == "step" else self._whole_run(RunJob.read(job))
        except (KeyboardInterrupt, DagsterExecutionInterruptedError):
            return INTERRUPTED

    def log_once(self, job: Any, text: str) -> None:
        """Write a message to the log of the run, unless another worker has already written it."""
        run_id, step_key = job["run_id"], job.get("step_key")
        run = self._instance.get_run_by_id(run_id)
        entries = self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT)
        if run is not None and not any(text in entry.message for entry in entries):
            self._instance.report_engine_event(text, run, step_key=step_key)

    def end(self) -> None:
        """Run the exit handlers of an ordinary process, such as those that send traces."""
        atexit._run_exitfuncs()  # noqa: SLF001  the interpreter does not end by itself in a forked child

    def _step(self, job: StepJob) -> int:
        run, attempt = self._run(job.run_id, job.storage), StepAttempt(self._instance, job)
        if not attempt.may_begin():
            return 0
        attempt.fence()
        arguments = ExecuteStepArgs(
            job_origin=_origin(run),
            run_id=job.run_id,
            step_keys_to_execute=[job.step_key],
            retry_mode=job.unpacked_retry_mode(),
            known_state=job.unpacked_state(),
            should_verify_step=attempt.number == 0,  # of an earlier attempt there may be more events
        )
        for _ in execute_step(arguments, self._instance, run):
            pass
        return 0

    def _whole_run(self, job: RunJob) -> int:
        self.cancel_instead()
        return execute_run(
            job.run_id, self._instance, lambda event: self._heard(job.run_id, event), resume=job.resume
        )

    def cancel_instead(self) -> None:
        """Let a terminated run end as canceled where Dagster would mark it as failed.

        Dagster does so itself while a run executes, but not before: it treats a run that is ``CANCELING`` at
        its start as one whose worker was restarted.
        """
        instance, fail = self._instance, self._instance.report_run_failed

        def end(run: dg.DagsterRun, *args: Any, **named: Any) -> Any:
            now = instance.get_run_by_id(run.run_id)
            if now is not None and now.status is dg.DagsterRunStatus.CANCELING:
                return instance.report_run_canceled(run, "The run was terminated before it began.")
            return fail(run, *args, **named)

        instance.report_run_failed = end  # type: ignore[assignment, method-assign]

    def _heard(self, run_id: str, event: dg.DagsterEvent) -> None:
        """Mark a run as ``CANCELING`` again if it was terminated before its start made it ``STARTED``."""
        if event.event_type is not DagsterEventType.RUN_START:
            return
        run = self._instance.get_run_by_id(run_id)
        if run is not None and self._instance.all_logs(run_id, of_type=DagsterEventType.RUN_CANCELING):
            self._instance.report_run_canceling(run, "The run was to be terminated when it started.")


def _origin(run: dg.DagsterRun) -> JobPythonOrigin:
    if run.job_code_origin is None:
        raise NotPrepared(f"run {run.run_id} does not name its code: it was not launched from a location")
    return run.job_code_origin


@contextmanager
def _no_tail(path: object, stream: object) -> Iterator[tuple[None, None]]:
    del path, stream
    yield None, None


def _run_nothing() -> None:
    @dg.op
    def nothing() -> int:
        return 0

    @dg.op
    def after(given: int) -> None:
        del given

    @dg.job(executor_def=dg.in_process_executor)
    def warm_up() -> None:
        after(nothing())

    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        warm_up.execute_in_process(run_config=quiet, instance=instance)


def _seed() -> None:
    """Seed NumPy separately in each child; ``random`` does so itself."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
