"""Makes versions for a worker that could not: it reads what the server has noted when it accepted results.

A note stays until its version stands, or what was written is gone, whatever becomes of the job: then the next
look removes it, within a minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.spark.published import accepted as ops
from glidemq_orchestrate.spark.published.acceptance import Make
from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.worker.handlers.handler import Serving

logger = logging.getLogger("glidemq_orchestrate.spark")

EVERY_SECONDS: Final = 60.0


class NotedQueue(Queue):
    """A queue, and what was noted there of accepted results."""

    def noted(self) -> list[str]:
        """A line for each publication that may not count yet; see ``Publication.of_line``."""
        return self._run(ops.lines(self._keys))

    def forget(self, lines: Sequence[str]) -> None:
        """Remove lines. Repeatable."""
        self._run(ops.forget(self._keys, lines))


class CatchUp:
    """A thread of a Spark worker. It looks when it starts, and then each minute."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

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
                        self._look(queue, make)
                    except GlideMQError as exc:
                        logger.warning("published results of queue %s are not looked at: %s", name, exc)
                    except Exception:
                        logger.exception("published results of queue %s are not looked at", name)
                self._stopping.wait(EVERY_SECONDS)

    def _look(self, queue: NotedQueue, make: Make) -> None:
        """Make what is missing of the results that were accepted."""
        noted = {line: Publication.of_line(line) for line in queue.noted()}
        settled = set(make(places, None) or ()) if (places := [*filter(None, noted.values())]) else set()
        if over := [line for line, place in noted.items() if place in settled]:
            queue.forget(over)


catch_up: Final = CatchUp()
