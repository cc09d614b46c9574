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
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.target import Target, target_of
from glidemq_orchestrate.spark.published.tidying import tidy_now_and_then
from glidemq_orchestrate.spark.published.version import Publication
from glidemq_orchestrate.worker.handler import JobEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

PAUSES: Final = (0.1, 1.0, 5.0)
"""Seconds between the tries to make a version."""
Attempt = tuple[str, str, int]
"""Queue, job and epoch."""


Make = Callable[[Sequence[Publication], int | None], object]
"""Makes versions, as ``make_versions`` does, where a session is."""


def make_versions(
    places: Iterable[Publication], spark: SparkSession | None = None, epoch: int | None = None
) -> None:
    """Let what was accepted count; what cannot be made is logged.

    Args:
        places: What was published.
        spark: For locations that are not on this machine.
        epoch: Of the attempt that has just been accepted: about the server's time, by which old attempts
            there are removed. None when it was long ago: nothing is removed, and one try is enough.
    """
    for place in places:
        try:
            target = target_of(place.location, spark)
            _make_at_last(target, place.name, PAUSES if epoch is not None else ())
        except Exception:
            logger.exception(
                "version %s of %s was accepted and cannot be made; a reader of the result, or a worker, "
                "will try again",
                place.name,
                place.location,
                extra={"action": "version_not_made"},
            )
        else:
            if epoch is not None:
                tidy_now_and_then(target, epoch)


class Accepted:
    """What the steps of this process have published and the server has not accepted yet. Thread-safe.

    Attributes:
        make: Makes versions.
    """

    def __init__(self, make: Make = lambda places, epoch: make_versions(places, None, epoch)) -> None:
        self.make = make
        self._expected: dict[Attempt, list[Publication]] = defaultdict(list)
        self._lock = threading.Lock()

    def expect(self, attempt: Attempt, places: Sequence[Publication]) -> None:
        """An attempt has written all of them."""
        if not places:
            return
        with self._lock:
            for one in list(self._expected):
                if one[:2] == attempt[:2] and one[2] < attempt[2]:  # it was never reported
                    del self._expected[one]
            self._expected[attempt] += places

    def take(self, attempt: Attempt) -> list[Publication]:
        """What an attempt has published, and forget it."""
        with self._lock:
            return self._expected.pop(attempt, [])

    def on_job(self, event: JobEvent) -> None:
        """Make the versions of an accepted attempt, in a thread; forget those of any other."""
        if event.kind == "active" or not self._expected:
            return
        published = self.take((event.queue, event.job_id, event.epoch))
        if published and event.kind == "completed":
            threading.Thread(
                target=self.make, args=(published, event.epoch), name="glidemq-published", daemon=True
            ).start()


def _make_at_last(target: Target, name: str, pauses: Iterable[float]) -> None:
    for pause in pauses:
        try:
            target.make(name)
        except Exception:  # noqa: BLE001  whatever the store raises
            time.sleep(pause)
        else:
            return
    target.make(name)


accepted: Final = Accepted()
