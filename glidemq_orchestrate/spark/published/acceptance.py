"""From an accepted result to the version that readers see: once the server has accepted it, and only then.

The worker that ran the step makes the version when it hears of the acceptance. Where it could not, as it was
killed or the store was away, any reader of the result or a later worker does: the result is the authority,
and making a version again changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from typing import Final

from glidemq_orchestrate.spark.published.contents import file_of
from glidemq_orchestrate.spark.published.store import Store
from glidemq_orchestrate.spark.published.tidying import tidy_now_and_then
from glidemq_orchestrate.spark.published.version import ATTEMPTS, MANIFEST
from glidemq_orchestrate.worker.context import Context
from glidemq_orchestrate.worker.handler import JobEvent

logger = logging.getLogger("glidemq_orchestrate.spark")

PAUSES: Final = (0.1, 1.0, 5.0)
"""Seconds between the tries to make a version."""
Attempt = tuple[str, str, int]
"""Queue, job and epoch."""


def make_version(store: Store, name: str) -> bool:
    """Let an attempt count whose result was accepted. Repeatable; False if its folder is not there any more.

    Raises:
        Exception: Whatever the store raises.
    """
    if store.read(path := file_of(name)) is not None:
        return True
    text = store.read(f"{ATTEMPTS}/{name}/{MANIFEST}")
    if text is None:
        return False
    store.create(path, text)
    return True


class Accepted:
    """What the steps of this process have published and the server has not accepted yet. Thread-safe."""

    def __init__(self) -> None:
        self._expected: dict[Attempt, list[tuple[Store, str]]] = defaultdict(list)
        self._lock = threading.Lock()

    def expect(self, ctx: Context, store: Store, name: str) -> None:
        """An attempt has written all of it."""
        with self._lock:
            for queue, job_id, epoch in list(self._expected):
                if (queue, job_id) == (ctx.queue, ctx.job_id) and epoch < ctx.epoch:  # it was never reported
                    del self._expected[queue, job_id, epoch]
            self._expected[ctx.queue, ctx.job_id, ctx.epoch].append((store, name))

    def on_job(self, event: JobEvent) -> None:
        """Make the versions of an accepted attempt, in a thread; forget those of any other."""
        if event.kind == "active" or not self._expected:
            return
        with self._lock:
            published = self._expected.pop((event.queue, event.job_id, event.epoch), [])
        if published and event.kind == "completed":
            threading.Thread(
                target=self._make, args=(published, event.epoch), name="glidemq-published", daemon=True
            ).start()

    def _make(self, published: list[tuple[Store, str]], epoch: int) -> None:
        for store, name in published:
            try:
                _make_at_last(store, name)
            except Exception:
                logger.exception(
                    "version %s of %s was accepted and cannot be made; a reader of the result, or a worker, "
                    "will try again",
                    name,
                    store.location,
                    extra={"action": "version_not_made"},
                )
            else:
                tidy_now_and_then(store, epoch)  # which is the server's time when it began


def _make_at_last(store: Store, name: str) -> None:
    for pause in PAUSES:
        try:
            make_version(store, name)
        except Exception:  # noqa: BLE001  whatever the store raises
            time.sleep(pause)
        else:
            return
    make_version(store, name)


accepted: Final = Accepted()
