"""Makes versions for a worker that could not: it reads the results that the server has accepted lately."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.spark.published.acceptance import make_version
from glidemq_orchestrate.spark.published.store import store_of
from glidemq_orchestrate.spark.published.version import Publication, found
from glidemq_orchestrate.worker.handler import Serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

EVERY_SECONDS: Final = 60.0
PAGE: Final = 100
MOST: Final = 10_000
OVERLAP: Final = timedelta(minutes=2)
"""What ended so long before the last look is looked at again: its worker may still have been about to."""


class CatchUp:
    """A thread of a Spark worker. It looks when it starts and then each minute, at what has ended since.

    The first look goes through the last ``MOST`` jobs of the queue, so that what was missed while no worker
    was there is found too.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: dict[str, datetime] = {}

    def start(self, serving: Serving, session: Callable[[], SparkSession]) -> None:
        """Begin."""
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._serve, args=(serving, session), name="glidemq-catch-up", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End, after the publication at hand. Repeatable."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def _serve(self, serving: Serving, session: Callable[[], SparkSession]) -> None:
        while True:
            for name in serving.queues:
                try:
                    self._look(name, serving, session)
                except GlideMQError as exc:
                    logger.warning("published results of queue %s are not looked at: %s", name, exc)
                except Exception:
                    logger.exception("published results of queue %s are not looked at", name)
            if self._stopping.wait(EVERY_SECONDS):
                return

    def _look(self, name: str, serving: Serving, session: Callable[[], SparkSession]) -> None:
        """Make what is missing of the results that were accepted since the last look."""
        with Queue(name, serving.settings, prefix=serving.settings.prefix) as queue:
            since, newest, offset = self._seen.get(name), self._seen.get(name), 0
            while offset < MOST and not self._stopping.is_set():
                jobs = queue.get_jobs(JobState.COMPLETED, offset=offset, limit=PAGE, newest_first=True)
                for job in jobs:
                    ended = job.finished_at
                    if ended is not None and since is not None and ended < since - OVERLAP:
                        jobs = []
                        break
                    newest = max(filter(None, (newest, ended)), default=None)
                    for place in found(job.result):
                        self._make(place, session)
                offset += PAGE
                if len(jobs) < PAGE:
                    break
        if newest is not None:
            self._seen[name] = newest

    @staticmethod
    def _make(place: Publication, session: Callable[[], SparkSession]) -> None:
        try:
            make_version(store_of(place.location, session()), place.name)
        except Exception:
            logger.exception("version %s of %s cannot be made", place.name, place.location)


catch_up: Final = CatchUp()
