"""The server's record of a job's driver: the progress of the job, stored before the driver starts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import JobNotFound
from glidemq_orchestrate.spark.submit.driver_folder import MAX_PATIENCE, machine
from glidemq_orchestrate.spark.submit.keeper import GRACE_SECONDS
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.registered import Serving
from glidemq_orchestrate.worker.handlers.signals import RetryLater

STORE_SECONDS: Final = 5.0
AGAIN: Final = timedelta(seconds=5)
SLACK_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"glidemq-[0-9a-f]{20}-\d+")


class DriverRecord:
    """What the last attempt of a job has reported about its driver.

    Args:
        progress: The progress of the job, in any form.
    """

    def __init__(self, progress: Json) -> None:
        stored = progress if isinstance(progress, dict) else {}
        name = stored.get("driver")
        is_name = isinstance(name, str) and _NAME.fullmatch(name) is not None
        is_whole = is_name and isinstance(stored.get("machine"), str) and not stored.get("ended")
        self.facts: dict[str, Json] = stored if is_whole else {}

    @property
    def name(self) -> str:
        """The name of the driver's folder; empty if there is no driver."""
        return str(self.facts.get("driver", ""))

    @property
    def is_here(self) -> bool:
        """Whether the driver was started on this machine, and is not known to have ended."""
        return bool(self.name) and self.facts["machine"] == machine()

    def wait(self, epoch: int, report: Callable[..., None]) -> None:
        """Return if it has certainly ended: a keeper without a worker ends its driver.

        Args:
            epoch: The number of this attempt.
            report: Called with the facts of the driver if it may still run.

        Raises:
            RetryLater: It may still run on another machine. A worker there that gets the job takes it over.
        """
        if not self.facts or self.is_here:
            return
        since, patience = _number(self.facts.get("alone_since")), _number(self.facts.get("patience"))
        since = since if since is not None and since <= epoch else epoch
        left = min(patience or 0.0, MAX_PATIENCE.total_seconds())
        left += GRACE_SECONDS + SLACK_SECONDS - (epoch - since) / 1000
        if left > 0:
            report(**{**self.facts, "alone_since": since})
            raise RetryLater(
                AGAIN,
                f"its driver may still run on {self.facts.get('host')}; waiting for its end",
                counts=False,
            )


def record_of(serving: Serving | None, ctx: Context) -> DriverRecord:
    """The record of a job; an empty one without a server.

    Raises:
        TransportError: The server cannot be reached.
    """
    with _reader(serving, ctx) as read:
        return read()


def wait_for(serving: Serving | None, ctx: Context, driver: str) -> None:
    """Return once the server, if there is one, has stored the name of this driver.

    Raises:
        RetryLater: It has not.
        TransportError: The server cannot be reached.
    """
    until = time.monotonic() + STORE_SECONDS
    with _reader(serving, ctx) as read:
        while serving is not None and read().name != driver:
            if time.monotonic() > until:
                raise RetryLater(AGAIN, "the server has not stored the name of the driver", counts=False)
            time.sleep(0.05)


@contextmanager
def _reader(serving: Serving | None, ctx: Context) -> Iterator[Callable[[], DriverRecord]]:
    if serving is None:
        yield lambda: DriverRecord(None)
        return
    settings = serving.settings
    with Queue(ctx.queue, settings, prefix=settings.prefix) as queue:

        def read() -> DriverRecord:
            try:
                return DriverRecord(queue.get_job(ctx.job_id).progress)
            except JobNotFound:
                return DriverRecord(None)

        yield read


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
