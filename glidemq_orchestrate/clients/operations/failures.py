"""The operations of Queue and AsyncQueue on failed jobs and their groups."""

from __future__ import annotations

from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import in_turn, on_all
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.queues import failure_groups, removal
from glidemq_orchestrate.queues.failure_groups import FailureGroups, merged_groups
from glidemq_orchestrate.queues.listing import MAX_EXAMINED
from glidemq_orchestrate.wire.call import Op


class FailureOperations(QueueOperationsBase):
    """Operations on failed jobs."""

    @in_turn("count")
    def retry_failed(self, count: int | None = None) -> Op[int]:
        """Rerun failed jobs, oldest first, all or at most ``count``; returns how many.

        "All" are the failed jobs at the start: jobs that fail again during the call remain failed, also those
        that another client has retried, which are not counted. So do nodes of flows: retry the flow.

        Raises:
            InvalidJob: ``count`` is less than 1; nothing was sent.
        """
        return (yield from removal.retry_failed(self._keys, count, self._clock.now_ms()))

    @on_all(merged_groups)
    def failures(self, *, max_examined: int | None = MAX_EXAMINED) -> Op[FailureGroups]:
        """Group the failed jobs by cause, largest group first, also those of Node workers.

        A group is what the handler named (``ctx.fail(group=)``); otherwise the class of the exception, or the
        first line of the reason; of an array, that of one of its elements. A node that failed only because of
        another one is not counted, but ``held_back`` of that other one's group is: for this, the nodes of the
        flows are read.

        Args:
            max_examined: The approximate max number of jobs and nodes to examine, newest failures first, by
                default what takes some seconds; None for all.

        Returns:
            The groups; ``is_partial`` is true if reading stopped at ``max_examined``: all numbers may be
            higher. If only flows were left then, ``held_back_is_partial`` alone is true: ``held_back``
            may be higher.
        """
        return failure_groups.queue_failures(self._keys, max_examined)

    @in_turn("limit")
    def retry_failures(self, group: str, *, limit: int = 1000) -> Op[int]:
        """Rerun the failed jobs of a group, oldest first; returns how many. 0 if no failed job is in it.

        Jobs that fail again during the call remain failed, also those that another client has retried, which
        are not counted. So do nodes of flows: use ``Flow.retry_failures``. A repeat continues with the next
        jobs.

        Args:
            group: A group of ``failures``.
            limit: The max number of jobs to rerun.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
        """
        return self._now(lambda now_ms: failure_groups.retry_group(self._keys, group, limit, now_ms))

    @in_turn("limit")
    def remove_failures(self, group: str, *, limit: int = 1000) -> Op[list[JobId]]:
        """Delete the failed jobs of a group, oldest first; returns their ids. Keeps what ``clean`` keeps.

        Repeatable; stops half-way if the connection breaks.

        Args:
            group: A group of ``failures``.
            limit: The max number of jobs to delete.

        Raises:
            InvalidJob: ``limit`` is less than 1; nothing was sent.
        """
        return self._now(lambda now_ms: failure_groups.remove_group(self._keys, group, limit, now_ms))
