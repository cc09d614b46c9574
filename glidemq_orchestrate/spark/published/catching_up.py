"""Makes versions for a worker that could not: it reads what the server has noted when it accepted results.

A note stays until its version stands, or what was written is gone, whatever becomes of the job: then the next
look removes it, within a minute. Results that were accepted lately are read too: an earlier release has noted
nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Final

from glidemq_orchestrate._ops.queue import published as ops
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.spark.published.acceptance import Make
from glidemq_orchestrate.spark.published.version import Publication, found
from glidemq_orchestrate.worker.handler import Serving

logger = logging.getLogger("glidemq_orchestrate.spark")

EVERY_SECONDS: Final = 60.0
PAGE: Final = 100
MOST: Final = 10_000
OVERLAP: Final = timedelta(minutes=2)
"""What ended so long before the last look is looked at again: its worker may still have been about to."""


class NotedQueue(Queue):
    """A queue, and what was noted there of accepted results."""

    def noted(self) -> list[str]:
        """A line for each publication that may not count yet; see ``Publication.of_line``."""
        return self._run(ops.lines(self._keys))

    def forget(self, lines: Sequence[str]) -> None:
        """Remove lines. Repeatable."""
        self._run(ops.forget(self._keys, lines))


class CatchUp:
    """A thread of a Spark worker. It looks when it starts and then each minute, at what has ended since.

    The first look goes through the last ``MOST`` jobs of the queue, so that what was missed while no worker
    was there is found too.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: dict[str, datetime] = {}

    def start(self, serving: Serving, make: Make) -> None:
        """Begin."""
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._serve, args=(serving, make), name="glidemq-catch-up", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End, after the publication at hand. Repeatable."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def _serve(self, serving: Serving, make: Make) -> None:
        with ExitStack() as stack:
            queues = {
                name: stack.enter_context(NotedQueue(name, serving.settings, prefix=serving.settings.prefix))
                for name in serving.queues
            }
            while not self._stopping.is_set():
                for name, queue in queues.items():
                    try:
                        self._look(name, queue, make)
                    except GlideMQError as exc:
                        logger.warning("published results of queue %s are not looked at: %s", name, exc)
                    except Exception:
                        logger.exception("published results of queue %s are not looked at", name)
                self._stopping.wait(EVERY_SECONDS)

    def _look(self, name: str, queue: NotedQueue, make: Make) -> None:
        """Make what is missing of the results that were accepted."""
        noted = {line: Publication.of_line(line) for line in queue.noted()}
        settled = set(make(places, None) or ()) if (places := [*filter(None, noted.values())]) else set()
        if over := [line for line, place in noted.items() if place in settled]:
            queue.forget(over)
        self._look_at_results(name, queue, make)

    def _look_at_results(self, name: str, queue: Queue, make: Make) -> None:
        """The same for the results that were accepted since the last look and are still there."""
        seen, places = self._seen.get(name), list[Publication]()
        for job in self._ended(queue, seen and seen - OVERLAP):
            places += found(job.result)
            seen = max(filter(None, (seen, job.finished_at)), default=None)
        if places:
            make(places, None)
        if seen is not None:
            self._seen[name] = seen

    def _ended(self, queue: Queue, since: datetime | None) -> Iterator[Job]:
        """The jobs that have completed, the newest first, back to a time."""
        for offset in range(0, MOST, PAGE):
            jobs = queue.get_jobs(JobState.COMPLETED, offset=offset, limit=PAGE, newest_first=True)
            for job in jobs:
                if since is not None and job.finished_at is not None and job.finished_at < since:
                    return
                yield job
            if len(jobs) < PAGE or self._stopping.is_set():
                return


catch_up: Final = CatchUp()
