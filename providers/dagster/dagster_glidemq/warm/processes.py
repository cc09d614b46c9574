"""The warm processes of a worker: one for each code location, and a spare that waits for the first.

They end the steps of runs that have ended, were deleted, or were resumed by another worker. A run may end
before its steps: by being forced to canceled or failed, if the server was unreachable during its termination,
or by a timeout of Dagster's run monitoring. Then no client revokes its jobs, so each worker checks for
itself.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import dagster as dg

from dagster_glidemq.private import get_env_var_dict
from dagster_glidemq.step_job import JOB_TAG, RunJob, StepJob
from dagster_glidemq.warm.process import Stale, WarmProcess
from glidemq_orchestrate import Unrecoverable
from glidemq_orchestrate.lifeline.lifeline import patched
from glidemq_orchestrate.worker import Cancelled

MAX: Final = 8
TRIES: Final = 4
OF_RUNS_SECONDS: Final = 600.0
"""How long each run gets a separate process after a process could not serve two runs."""


class WarmProcesses:
    """Runs steps and runs in the process that has their code. Thread-safe; a forked child starts empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[str, WarmProcess] = {}  # a location, or a run in it
        self._spare: WarmProcess | None = None
        self._apart: dict[str, Mapping[str, Any]] = {}  # by location
        self._of_runs: dict[str, float] = {}  # locations whose imports serve one run: since when
        self._owner = os.getpid()
        self._ended = EndedRuns()

    def warm_up(self) -> None:
        """Start the spare process that waits for the first location."""
        with self._lock:
            self._owner = os.getpid()
            self._spare = self._spare or WarmProcess()

    def run_step(self, job: StepJob, cancelled: Cancelled) -> None:
        """Run a step; see ``WarmProcess.run``. A process whose code has changed is replaced.

        If the run ends before the job, the job is interrupted as if it were cancelled.

        Raises:
            Unrecoverable: The step did not end by itself, or could not start.
        """
        self._run("step", job, "", cancelled)

    def run_run(self, job: RunJob, job_id: str, cancelled: Cancelled) -> None:
        """Run a run in the same way; if its process ends first, end the run here.

        Raises:
            Unrecoverable: See ``run_step``.
        """
        why = "it has left by itself"
        try:
            self._run("run", job, job_id, cancelled)
        except Unrecoverable as exc:
            why = str(exc)
            raise
        finally:
            self._ended.settle(job.run_id, job_id, why)

    def _run(self, kind: str, job: StepJob | RunJob, run_job: str, cancelled: Cancelled) -> None:
        with self._ended.watching(job.run_id, run_job) as watched:

            def how_to_end() -> int:
                if not (watched.why or cancelled.is_set()):
                    return 0
                is_anothers = cancelled.is_lost or (run_job and self._ended.is_handed_over(watched))
                return signal.SIGKILL if is_anothers else signal.SIGINT

            for _ in range(TRIES):
                place, process = self._take(job.location, job.run_id)
                try:
                    process.run(kind, job.payload(), how_to_end, job.grace_seconds)
                except Stale as exc:
                    self._forget(job.location, place, process, exc)
                except Unrecoverable as exc:
                    if watched.why and watched.why not in str(exc):
                        raise Unrecoverable(f"{watched.why}; {exc}") from None
                    raise
                else:
                    return
        raise Unrecoverable(f"{TRIES} warm processes ended, or had their code changed, before it began")

    def close(self) -> None:
        """End all processes. Does nothing in a forked child."""
        if self._owner != os.getpid():
            return
        with self._lock:
            left = [*self._by_place.values(), *([self._spare] if self._spare else [])]
            self._by_place, self._spare = {}, None
        for process in left:
            process.close()

    def _take(self, location: str, run_id: str) -> tuple[str, WarmProcess]:
        with self._lock:
            since = self._of_runs.get(location)
            is_shared = since is None or time.monotonic() - since > OF_RUNS_SECONDS
            place = location if is_shared else f"{location} {run_id}"
            process = self._by_place.get(place)
            if process is None or not process.is_usable:
                process = self._new(location)
                self._by_place[place] = process
                self._drop_idle()
            return place, process

    def _new(self, location: str) -> WarmProcess:
        if (apart := self._apart.get(location)) is not None:
            return WarmProcess(apart)
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.is_usable else WarmProcess()

    def _forget(self, location: str, place: str, process: WarmProcess, why: Stale) -> None:
        """Retire a process; it ends with its last job. ``why``: how to start the next process."""
        with self._lock:
            if self._by_place.get(place) is not process:
                return
            del self._by_place[place]
            self._apart.pop(location, None)
            if why.apart is not None:
                self._apart[location] = why.apart
            if why.is_of_a_run:
                self._of_runs[location] = time.monotonic()

    def _drop_idle(self) -> None:
        """End the process that has been idle longest if there are too many."""
        idle = [place for place, process in self._by_place.items() if process.is_idle]
        if len(self._by_place) > MAX and len(idle) > 1:
            oldest = min(idle, key=lambda place: self._by_place[place].used_at)
            if self._by_place[oldest].retire():  # it may have got a job in between
                threading.Thread(target=self._by_place.pop(oldest).close, daemon=True).start()


logger = logging.getLogger("dagster_glidemq.warm")

POLL_SECONDS: Final = 5.0


class WatchedRun:
    """The run of a job.

    Args:
        run_id: The run.
        run_job: The id of the job that runs the run itself; empty for the job of a step.

    Attributes:
        why: How the run has ended; empty until then.
        is_handed_over: The run was resumed: another process has it now.
    """

    def __init__(self, run_id: str, run_job: str) -> None:
        self.run_id, self._run_job, self._seen = run_id, run_job, ""
        self.why, self.is_handed_over = "", False

    def update(self, run: dg.DagsterRun | None) -> None:
        """Record the current run; None if it does not exist."""
        self.note(None if run is None else run.status, is_over=run is None or run.is_finished)
        if run is not None and self._run_job and run.tags.get(JOB_TAG, self._run_job) != self._run_job:
            self.is_handed_over, self.why = True, f"run {self.run_id} was resumed by another job"

    def note(self, status: dg.DagsterRunStatus | None, *, is_over: bool) -> None:
        """Record the current status of the run; None if it does not exist."""
        how = "was deleted" if status is None else f"has ended: it is {status.value}"
        # The process of a run ends some time after the run: only a process that lives longer counts.
        if is_over and (not self._run_job or self._seen):
            self.why = f"run {self.run_id} {how}"
        self._seen = how if is_over else ""


class EndedRuns:
    """Polls the runs of all jobs of this process together, in a thread that lives while there are any.

    If the storage hangs or fails, the state of runs is unknown, and jobs continue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[WatchedRun] = set()
        self._thread: threading.Thread | None = None
        self._instance: dg.DagsterInstance | None = None

    @contextmanager
    def watching(self, run_id: str, run_job: str) -> Iterator[WatchedRun]:
        """Watch a run while the block runs."""
        watched = WatchedRun(run_id, run_job)
        with self._lock:
            self._watched.add(watched)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._poll, name="glidemq-runs", daemon=True)
                self._thread.start()
        try:
            yield watched
        finally:
            with self._lock:
                self._watched.discard(watched)

    def is_handed_over(self, watched: WatchedRun) -> bool:
        """Whether the run was resumed; False if that cannot be read."""
        try:
            self._read([watched])
        except Exception:
            logger.exception("whether run %s was resumed is not known", watched.run_id)
        return watched.is_handed_over

    def settle(self, run_id: str, run_job: str, why: str) -> None:
        """End a run whose process has ended first, unless it was or will be resumed.

        Dagster's own launcher does the same; without run monitoring nothing else would.
        """
        try:
            instance = self._open()
            run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished or run.tags.get(JOB_TAG) != run_job:
                return
            if run.status is dg.DagsterRunStatus.CANCELING:
                instance.report_run_canceled(run, f"The process of the run has ended: {why}")
            elif not instance.run_will_resume(run_id):
                instance.report_run_failed(run, f"The process of the run has ended before the run: {why}")
        except Exception:
            logger.exception("the end of run %s cannot be written", run_id)

    def _poll(self) -> None:
        is_known = True
        while True:
            time.sleep(POLL_SECONDS)
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._thread = None
                    return
            try:
                self._read(watched)
                is_known = True
            except Exception:
                if is_known:
                    logger.exception("whether runs have ended is not known")
                is_known = False

    def _read(self, watched: list[WatchedRun]) -> None:
        ids = sorted({one.run_id for one in watched})
        runs = {run.run_id: run for run in self._open().get_runs(dg.RunsFilter(run_ids=ids))}
        for one in watched:
            one.update(runs.get(one.run_id))

    def _open(self) -> dg.DagsterInstance:
        with self._lock:
            if self._instance is None:
                with patched(get_env_var_dict(os.getcwd())):  # noqa: PTH109  as Dagster's own commands do
                    self._instance = dg.DagsterInstance.get()
            return self._instance
