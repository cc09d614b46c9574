"""Finds the runs of a worker that have ended, were deleted, or were resumed by another worker.

A run may end without its steps: when it is marked as canceled or failed by force, when the server was away as
it was terminated, or by a time-out of Dagster's run monitoring. Nobody revokes its jobs then, so each worker
looks for itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import dagster as dg

from dagster_glidemq.private import get_env_var_dict
from dagster_glidemq.tags import JOB_TAG
from glidemq_orchestrate.lifeline.lifeline import patched

logger = logging.getLogger("dagster_glidemq.warm")

LOOK_SECONDS: Final = 5.0


class Watched:
    """A run that a job works for.

    Args:
        run_id: The run.
        run_job: The job that runs the run itself; empty for one of a step.

    Attributes:
        why: How the run has ended; empty while it has not.
        is_handed_over: The run was resumed: another process has it now.
    """

    def __init__(self, run_id: str, run_job: str) -> None:
        self.run_id, self._run_job, self._seen = run_id, run_job, ""
        self.why, self.is_handed_over = "", False

    def look(self, run: dg.DagsterRun | None) -> None:
        """Note how the run is now; None if there is none."""
        self.note(None if run is None else run.status, is_over=run is None or run.is_finished)
        if run is not None and self._run_job and run.tags.get(JOB_TAG, self._run_job) != self._run_job:
            self.is_handed_over, self.why = True, f"run {self.run_id} was resumed by another job"

    def note(self, status: dg.DagsterRunStatus | None, *, is_over: bool) -> None:
        """Note what the run is now; None if there is none."""
        how = "was deleted" if status is None else f"has ended: it is {status.value}"
        # The process of a run ends some time after its run: only one that is still there later counts.
        if is_over and (not self._run_job or self._seen):
            self.why = f"run {self.run_id} {how}"
        self._seen = how if is_over else ""


class EndedRuns:
    """Looks at the runs of all jobs of this process together, in a thread that lives while there are any.

    The storage may hang or fail: then nothing is known, and jobs go on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None
        self._instance: dg.DagsterInstance | None = None

    @contextmanager
    def watching(self, run_id: str, run_job: str) -> Iterator[Watched]:
        """Watch a run for as long as the block lasts."""
        watched = Watched(run_id, run_job)
        with self._lock:
            self._watched.add(watched)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, name="glidemq-runs", daemon=True)
                self._thread.start()
        try:
            yield watched
        finally:
            with self._lock:
                self._watched.discard(watched)

    def is_handed_over(self, watched: Watched) -> bool:
        """Whether the run was resumed, as far as can be read now."""
        try:
            self._read([watched])
        except Exception:
            logger.exception("whether run %s was resumed is not known", watched.run_id)
        return watched.is_handed_over

    def settle(self, run_id: str, run_job: str, why: str) -> None:
        """End a run whose process has ended before it, unless it will be resumed, or was.

        As Dagster's own launcher does it; nobody else would, without run monitoring.
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

    def _look(self) -> None:
        is_known = True
        while True:
            time.sleep(LOOK_SECONDS)
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

    def _read(self, watched: list[Watched]) -> None:
        ids = sorted({one.run_id for one in watched})
        runs = {run.run_id: run for run in self._open().get_runs(dg.RunsFilter(run_ids=ids))}
        for one in watched:
            one.look(runs.get(one.run_id))

    def _open(self) -> dg.DagsterInstance:
        with self._lock:
            if self._instance is None:
                with patched(get_env_var_dict(os.getcwd())):  # noqa: PTH109  as Dagster's own commands do
                    self._instance = dg.DagsterInstance.get()
            return self._instance
