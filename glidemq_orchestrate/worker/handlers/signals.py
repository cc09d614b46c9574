"""What a handler may raise to control its job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from glidemq_orchestrate.errors import restored
from glidemq_orchestrate.wire.codec import JsonLike


class HandlerSignal(Exception):
    """Base of what a handler raises on purpose. Not a GlideMQError, so that no ``except`` swallows it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let signals cross processes as they are, whatever their constructors take."""
        return restored, (type(self), self.args, self.__dict__)


class Unrecoverable(HandlerSignal):
    """The job failed for good: no further attempt, whatever the options allow."""


class Skip(HandlerSignal):
    """This job is not needed: it ends as completed without a result, as a node of a flow as skipped.

    Its dependents are then skipped too, unless their rule allows them to run.
    """

    def __init__(self, reason: str = "its handler raised Skip") -> None:
        super().__init__(reason)


class RetryLater(HandlerSignal):
    """Not now: the handler runs again after ``delay``.

    This attempt failed and counts, so the job's attempts are the limit; with ``counts=False`` it costs none.
    """

    def __init__(
        self, delay: timedelta, reason: str = "asked to be retried later", *, counts: bool = True
    ) -> None:
        if not isinstance(delay, timedelta):
            raise TypeError(f"the delay of RetryLater must be a timedelta, got {delay!r}")
        if delay < timedelta(0):
            raise ValueError(f"the delay of RetryLater must not be negative, got {delay}")
        self.delay, self.counts = delay, counts
        super().__init__(reason)


class WaitForChildren(HandlerSignal):
    """Park this job until every child it has added has ended; then the handler runs again. Costs no attempt.

    A child that failed, expired, or was revoked or removed has ended, too: ``queue.children_values`` raises
    ``ChildrenFailed`` then, which tells which. A job that has added no child fails, also a
    node with dependencies. So does one that waits again when all have ended and it has added no more.
    Cancelling its flow or revoking the job leaves its children alone: ``ctx.flow.add_nodes`` adds nodes of
    the flow.
    """


class Suspend(HandlerSignal):
    """Park this job until a signal is sent to it; then the handler runs again with ``ctx.signals``.

    Costs no attempt. After ``timeout`` (None: never) the job fails.
    """

    def __init__(self, reason: str = "", timeout: timedelta | None = None) -> None:
        if timeout is not None and timeout < timedelta(milliseconds=1):
            raise ValueError(f"the timeout of Suspend must be at least a millisecond, got {timeout}")
        self.timeout = timeout
        super().__init__(reason)


class BatchError(HandlerSignal):
    """Raised by a batch handler when only some of its jobs failed.

    ``results`` has one item per job, in order: an exception for a job that failed, anything else is its
    result.
    """

    def __init__(self, results: Sequence[JsonLike | BaseException]) -> None:
        self.results = list(results)
        super().__init__(f"{sum(isinstance(item, BaseException) for item in results)} of the batch failed")
