"""Makes the version that readers see, once the server has accepted the result, and never before.

The worker that ran the step makes the version when its result is accepted. If it cannot, because it was
killed or the store was unavailable, any reader of the result or a later worker does: the server has noted
what was accepted (see ``catching_up``), and making a version again changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.locations.target import Target, target_of, tidy_hourly
from glidemq_orchestrate.spark.published.locations.version import NotPublished, Publication
from glidemq_orchestrate.worker.handlers.registered import JobEvent
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

PAUSES: Final = (0.1, 1.0, 5.0)
"""Seconds between attempts to make a version."""
AttemptKey = tuple[str, str, int]
"""Queue, job and epoch."""


Make = Callable[[Sequence[Publication], int | None], Collection[Publication] | None]
"""Makes versions like ``make_versions``, where there is a session."""
LOG_SECONDS: Final = 3_600.0
"""How often a version that still cannot be made is logged."""
MAX_LOGGED: Final = 10_000
_logged: Final[dict[Publication, float]] = {}


def make_versions(
    publications: Iterable[Publication], spark: SparkSession | None = None, epoch: int | None = None
) -> list[Publication]:
    """Make the versions of accepted publications; errors are logged.

    Returns those that are settled: they count, or their data are gone.

    Args:
        publications: The publications.
        spark: A session, for locations that are not on this machine.
        epoch: The epoch of the attempt that was just accepted: about the server's time, by which old attempts
            are removed. None if it was accepted long ago: then nothing is removed, and one try is enough.
    """
    settled = list[Publication]()
    for publication in publications:
        try:
            target = target_of(publication.location, spark)
            is_made = _make_with_retries(target, publication.name, PAUSES if epoch is not None else ())
        except Exception as exc:  # noqa: BLE001  any class of the store or the catalog
            _log_failure(publication, exc)
            continue
        settled.append(publication)
        if not is_made:
            _log_failure(publication, None)
        elif epoch is not None:
            tidy_hourly(target, epoch)
    return settled


def _log_failure(publication: Publication, exc: Exception | None) -> None:
    """Log why a version is not made, once an hour, although it is tried much more often."""
    if time.monotonic() < _logged.get(publication, -LOG_SECONDS) + LOG_SECONDS:
        return
    if len(_logged) >= MAX_LOGGED:
        _logged.clear()
    _logged[publication] = time.monotonic()
    if exc is None:
        outlook = "its data were removed. Fix: run the job again"
    elif isinstance(exc, NotPublished | Unrecoverable):
        outlook = "trying again. Fix: repair the location, or run the job again"
    else:
        outlook = "a reader of the result or a worker will try again"
    logger.error(
        "version %s of %s was accepted but cannot be made; %s",
        publication.name,
        publication.location,
        outlook,
        exc_info=exc,
        extra={"action": "version_not_made"},
    )


class Accepted:
    """What the steps of this process have published, until the server has accepted it. Thread-safe.

    Attributes:
        make: Makes versions.
    """

    def __init__(self, make: Make = lambda written, epoch: make_versions(written, None, epoch)) -> None:
        self.make = make
        self._expected: dict[AttemptKey, list[Publication]] = defaultdict(list)
        self._lock = threading.Lock()

    def expect(self, attempt: AttemptKey, publications: Sequence[Publication]) -> None:
        """Record what an attempt has written."""
        if not publications:
            return
        with self._lock:
            for one in list(self._expected):
                if one[:2] == attempt[:2] and one[2] < attempt[2]:  # an attempt that was never reported
                    del self._expected[one]
            self._expected[attempt] += publications

    def take(self, attempt: AttemptKey) -> list[Publication]:
        """Remove and return what an attempt has published."""
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


def _make_with_retries(target: Target, name: str, pauses: Iterable[float]) -> bool:
    for pause in pauses:
        try:
            return target.make(name)
        except Exception:  # noqa: BLE001  any class of the store
            time.sleep(pause)
    return target.make(name)


accepted: Final = Accepted()
