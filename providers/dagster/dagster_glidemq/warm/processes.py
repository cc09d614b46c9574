"""The warm processes of a worker: one for each code location, and one that waits for the first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from dagster_glidemq.step_job import RunJob, StepJob
from dagster_glidemq.warm.ended import EndedRuns
from dagster_glidemq.warm.process import Stale, WarmProcess
from glidemq_orchestrate import Unrecoverable
from glidemq_orchestrate.worker.handlers.context import Cancelled

MAX: Final = 8
TRIES: Final = 4
OF_RUNS_SECONDS: Final = 600.0
"""How long each run has a process of its own where one process could not serve two."""


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
        """Start the process that waits for the first location."""
        with self._lock:
            self._owner = os.getpid()
            self._spare = self._spare or WarmProcess()

    def run_step(self, job: StepJob, cancelled: Cancelled) -> None:
        """Run a step; see ``WarmProcess.run``. A process whose code has changed is replaced.

        A job whose run ends before it is interrupted, as if it were cancelled.

        Raises:
            Unrecoverable: It ended otherwise than by itself, or could not begin.
        """
        self._run("step", job, "", cancelled)

    def run_run(self, job: RunJob, job_id: str, cancelled: Cancelled) -> None:
        """Run a run, in the same way; one whose process ends before it is ended here.

        Raises:
            Unrecoverable: As for a step.
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
        """Let no further job go to it; it ends with its last one. ``why`` says how the next one begins."""
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
        """End the process that was idle for longest when there are too many."""
        idle = [place for place, process in self._by_place.items() if process.is_idle]
        if len(self._by_place) > MAX and len(idle) > 1:
            oldest = min(idle, key=lambda place: self._by_place[place].used_at)
            if self._by_place[oldest].retire():  # a job may have come to it since
                threading.Thread(target=self._by_place.pop(oldest).close, daemon=True).start()
