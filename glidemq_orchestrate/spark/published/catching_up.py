"""Makes versions that a worker could not make, from the notes that the server took with accepted results.

A note stays until its version exists or its data are gone, even if the job is removed. The next check, within
a minute, then removes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs.pages import sorted_ids
from glidemq_orchestrate.spark.published.acceptance import Make
from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Op, ask, command, parts, send_all
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.registered import Serving

logger = logging.getLogger("glidemq_orchestrate.spark")

EVERY_SECONDS: Final = 60.0
PAGE: Final = 500


def noted_lines(queue: QueueKeys) -> Op[list[str]]:
    """All lines that are there, the oldest first."""
    key, found = queue.key("gmo:published"), list[str]()
    while len(page := (yield from ask(sorted_ids(key, len(found), PAGE, newest_first=False)))) == PAGE:
        found += page
    return found + page


def forget_lines(queue: QueueKeys, lines: Sequence[str]) -> Op[None]:
    """Remove lines: what they name is visible, or gone. Repeatable."""
    key = queue.key("gmo:published")
    yield from send_all([command("ZREM", key, *some, decode=replies.integer) for some in parts(lines, PAGE)])


class NotedQueue(Queue):
    """A queue, and its notes of accepted results."""

    def noted(self) -> list[str]:
        """A line for each publication that may not have its version yet; see ``Publication.of_line``."""
        return self._run(noted_lines(self._keys))

    def forget(self, lines: Sequence[str]) -> None:
        """Remove lines. Repeatable."""
        self._run(forget_lines(self._keys, lines))


class NoteChecker:
    """A thread of a Spark worker that checks the notes when it starts, and then each minute."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, serving: Serving, make: Make) -> None:
        """Start the thread."""
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._serve, args=(serving, make), name="glidemq-catch-up", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End after the current publication. Repeatable."""
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
                        self._check(queue, make)
                    except GlideMQError as exc:
                        logger.warning("the published results of queue %s cannot be checked: %s", name, exc)
                    except Exception:
                        logger.exception("the published results of queue %s cannot be checked", name)
                self._stopping.wait(EVERY_SECONDS)

    def _check(self, queue: NotedQueue, make: Make) -> None:
        """Make the missing versions of accepted results."""
        noted = {line: Publication.of_line(line) for line in queue.noted()}
        publications = [*filter(None, noted.values())]
        settled = set(make(publications, None) or ()) if publications else set()
        if over := [line for line, publication in noted.items() if publication in settled]:
            queue.forget(over)


catch_up: Final = NoteChecker()
