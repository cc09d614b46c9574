"""Exceptions that a handler raises to control its job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glidemq_orchestrate.errors import restored
from glidemq_orchestrate.foundation.durations import MILLISECOND, Duration, duration, optional_duration
from glidemq_orchestrate.foundation.values import FAILURE_GROUP
from glidemq_orchestrate.wire.codec import JsonLike


class HandlerSignal(Exception):
    """The base of these exceptions. It is no GlideMQError, so ``except GlideMQError`` does not catch it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle signals without calling their constructors, which take other arguments."""
        return restored, (type(self), self.args, self.__dict__)


class Unrecoverable(HandlerSignal):
    """The job fails without a further attempt, even if its options allow one.

    With ``group``, it counts in this group of ``Queue.failures``; see ``Context.fail``.
    """

    group = ""

    def __init__(self, *reason: object, group: str = "") -> None:
        self.group = FAILURE_GROUP.check(group) if group else ""
        super().__init__(*reason)


class Skip(HandlerSignal):
    """This job is not needed: it completes without a result; a node of a flow ends as skipped.

    Its dependents are skipped too, unless their rule allows them to run.
    """

    def __init__(self, reason: str = "its handler raised Skip") -> None:
        super().__init__(reason)


class RetryLater(HandlerSignal):
    """Run the handler again after ``delay``.

    This attempt counts as failed, within the job's number of attempts; with ``counts=False`` it costs none.
    """

    def __init__(
        self, delay: Duration, reason: str = "its handler raised RetryLater", *, counts: bool = True
    ) -> None:
        self.delay, self.counts = duration("the delay of RetryLater", delay), counts
        super().__init__(reason)


class WaitForChildren(HandlerSignal):
    """Park this job until all children that it has added end; then run the handler again. Costs no attempt.

    A child that failed, expired, or was revoked or removed counts as ended: ``queue.children_values`` then
    raises ``ChildrenFailed``, which names them. A job that has added no child fails, even if it is a node
    with dependencies; so does a job that waits again although all its children have ended. Cancelling the
    flow or revoking the job does not affect the children; nodes that belong to the flow are added with
    ``ctx.flow.add_nodes``.
    """


class Suspend(HandlerSignal):
    """Park this job until a signal is sent to it; then run the handler again with ``ctx.signals``.

    Costs no attempt. After ``timeout`` the job fails; None: no limit.
    """

    def __init__(self, reason: str = "", timeout: Duration | None = None) -> None:
        self.timeout = optional_duration("the timeout of Suspend", timeout, min_=MILLISECOND)
        super().__init__(reason)


class BatchError(HandlerSignal):
    """Raised by a batch handler when only some of its jobs failed.

    ``results`` has one item per job, in order: an exception if the job failed, else its result.
    """

    def __init__(self, results: Sequence[JsonLike | BaseException]) -> None:
        self.results = list(results)
        super().__init__(f"{sum(isinstance(item, BaseException) for item in results)} of the batch failed")
