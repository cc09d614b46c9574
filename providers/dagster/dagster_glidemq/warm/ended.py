"""Tells a worker which of the runs that it works for have ended meanwhile, or were deleted.

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
from dagster._core.secrets.env_file import get_env_var_dict

from glidemq_orchestrate.lifeline.environment import patched

logger = logging.getLogger("dagster_glidemq.warm")

LOOK_SECONDS: Final = 5.0


class Watched:
    """A run that a job works for.

    Attributes:
        why: How the run has ended; empty while it has not.
    """

    def __init__(self, run_id: str, *, is_step: bool) -> None:
        self.run_id, self._is_step, self._seen = run_id, is_step, ""
        self.why = ""

    def note(self, status: dg.DagsterRunStatus | None, *, is_over: bool) -> None:
        """Note what the run is now; None if there is none."""
        how = "was deleted" if status is None else f"has ended: it is {status.value}"
        # The process of a run ends some time after its run: only one that is still there later counts.
        if is_over and (self._is_step or self._seen):
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
    def watching(self, run_id: str, *, is_step: bool) -> Iterator[Watched]:
        """Watch a run for as long as the block lasts."""
        watched = Watched(run_id, is_step=is_step)
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
        if self._instance is None:
            with patched(get_env_var_dict(os.getcwd())):  # noqa: PTH109  as Dagster's own commands do
                self._instance = dg.DagsterInstance.get()
        ids = sorted({one.run_id for one in watched})
        runs = {run.run_id: run for run in self._instance.get_runs(dg.RunsFilter(run_ids=ids))}
        for one in watched:
            run = runs.get(one.run_id)
            one.note(None if run is None else run.status, is_over=run is None or run.is_finished)
