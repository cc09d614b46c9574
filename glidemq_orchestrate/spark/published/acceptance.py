"""From an accepted result to the version that readers see: once the server has accepted it, and only then.

The worker that ran the step makes the version when it hears of the acceptance. Where it could not, as it was
killed or the store was away, any reader of the result or a later worker does: the server has noted what was
accepted (see ``catching_up``), and making a version again changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.locations.target import Target, target_of, tidy_now_and_then
from glidemq_orchestrate.spark.published.locations.version import NotPublished, Publication
from glidemq_orchestrate.worker.handlers.handler import JobEvent
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

PAUSES: Final = (0.1, 1.0, 5.0)
"""Seconds between the tries to make a version."""
Attempt = tuple[str, str, int]
"""Queue, job and epoch."""


Make = Callable[[Sequence[Publication], int | None], Collection[Publication] | None]
"""Makes versions, as ``make_versions`` does, where a session is."""
TELL_SECONDS: Final = 3_600.0
"""So often it is told that a version still cannot be made."""
MAX_TOLD: Final = 10_000
_told: Final[dict[Publication, float]] = {}


def make_versions(
    places: Iterable[Publication], spark: SparkSession | None = None, epoch: int | None = None
) -> list[Publication]:
    """Let what was accepted count; what cannot be made is logged.

    Returns those about which nothing is left to be done: they count, or what they had written is gone.

    Args:
        places: What was published.
        spark: For locations that are not on this machine.
        epoch: Of the attempt that has just been accepted: about the server's time, by which old attempts
            there are removed. None when it was long ago: nothing is removed, and one try is enough.
    """
    settled = list[Publication]()
    for place in places:
        try:
            target = target_of(place.location, spark)
            is_made = _make_at_last(target, place.name, PAUSES if epoch is not None else ())
        except Exception as exc:  # noqa: BLE001  of the store or the catalog
            _complain(place, exc)
            continue
        settled.append(place)
        if not is_made:
            _complain(place, None)
        elif epoch is not None:
            tidy_now_and_then(target, epoch)
    return settled


def _complain(place: Publication, exc: Exception | None) -> None:
    """Log why a version is not made, once an hour: it is tried much more often."""
    if time.monotonic() < _told.get(place, -TELL_SECONDS) + TELL_SECONDS:
        return
    if len(_told) >= MAX_TOLD:
        _told.clear()
    _told[place] = time.monotonic()
    if exc is None:
        outlook = "what it had written was removed: run the job again"
    elif isinstance(exc, NotPublished | Unrecoverable):
        outlook = "it is tried again, but somebody has to see to it, or to run the job again"
    else:
        outlook = "a reader of the result, or a worker, will try again"
    logger.error(
        "version %s of %s was accepted and cannot be made; %s",
        place.name,
        place.location,
        outlook,
        exc_info=exc,
        extra={"action": "version_not_made"},
    )


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


def _make_at_last(target: Target, name: str, pauses: Iterable[float]) -> bool:
    for pause in pauses:
        try:
            return target.make(name)
        except Exception:  # noqa: BLE001  whatever the store raises
            time.sleep(pause)
    return target.make(name)


accepted: Final = Accepted()
