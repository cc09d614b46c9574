"""The operations of Queue and AsyncQueue on jobs that wait for others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import with_job
from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.texts import shown
from glidemq_orchestrate.jobs import job
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.queues import dependencies
from glidemq_orchestrate.queues.dependencies import CancelledJobs, ChangedDependencies
from glidemq_orchestrate.wire.call import Op, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys


class DependencyOperations(QueueOperationsBase):
    """Operations on jobs that wait for other jobs."""

    def cancel(self, job_ids: Iterable[str], *, cascade: bool = False) -> Op[CancelledJobs]:
        """End jobs as ``revoke`` does, unless another job waits for one of them: it would wait for ever.

        All or none, unless another client lets a job wait for one of them at the same time; safe to repeat.
        In a queue with shards: all or none of those in one shard.

        Args:
            job_ids: At most 100 jobs of this queue.
            cascade: Cancel the jobs that wait for them too, at most 200 in all.

        Returns:
            What became of each: the jobs that had ended, and ids that do not exist, are listed separately.

        Raises:
            HasDependents: A job that is not in the list, or with ``cascade`` one in another queue, waits for
                one of them. Nothing was changed.
            JobStateConflict: One of them, or one that waits for it, is a node of a flow. Nothing was changed.
            InvalidJob: There are too many jobs. Nothing was changed.
        """
        return self._cancel(dependencies.checked_ids(job_ids), cascade=cascade)

    def _cancel(self, job_ids: Sequence[str], *, cascade: bool) -> Op[CancelledJobs]:
        now_ms = self._clock.now_ms()
        by_member: dict[QueueKeys, list[str]] = {}
        if (yield from self._shards()) is None:
            by_member[self._keys] = list(job_ids)
        else:
            for job_id, holder in zip(job_ids, (yield from self._holders(job_ids)), strict=True):
                by_member.setdefault((holder or self).keys, []).append(job_id)
        every = yield from side_by_side(
            [dependencies.cancel_jobs(keys, ids, now_ms, cascade=cascade) for keys, ids in by_member.items()]
        )
        return CancelledJobs(
            tuple(one for part in every for one in part.cancelled),
            tuple(one for part in every for one in part.stopping),
            tuple(one for part in every for one in part.ended),
            tuple(one for part in every for one in part.unknown),
        )

    def depends_on(self, job_id: str, others: Iterable[str]) -> Op[ChangedDependencies]:
        """Make a job that waits to be started wait for other jobs of this queue to complete. Repeatable.

        A job that fails holds it back until it is retried and completes, is removed, or ``depends_off``.
        Afterwards it returns to its place: with its priority, and delayed until the time when it was due.
        Between nodes, use a flow, which has rules and policies for failures.

        Args:
            job_id: The job: waiting, delayed, prioritized, or waiting for other jobs.
            others: At most 100 jobs.

        Returns:
            What became of each: jobs that have ended, and ids that do not exist, are listed separately.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: The job has begun, has an ordering key, or is a node of a flow; or one of the
                others waits for it. Nothing was changed.
            InvalidJob: There are too many jobs, or one of them is in another shard than the job; nothing was
                changed.
        """
        return self._depends_on(job_id, dependencies.checked_ids(others))

    def _depends_on(self, job_id: str, others: Sequence[str]) -> Op[ChangedDependencies]:
        here, *there = yield from self._holders([job_id, *others])
        keys = (here or self).keys
        for other, holder in zip(others, there, strict=True):
            if holder is not None and holder.keys != keys:
                raise InvalidJob(
                    f"job {shown(job_id)} is in queue {keys.queue}, and job {shown(other)} in queue "
                    f"{holder.keys.queue}: a job can wait for jobs of its own shard only. Fix: use a flow, "
                    "or add both to one shard, named as the queue"
                )
        return (yield from dependencies.add_dependencies(keys, job_id, others, self._clock.now_ms()))

    @with_job
    def depends_off(self, job_id: str, others: Iterable[str] | None = None) -> Op[ChangedDependencies]:
        """Make a job no longer wait for these jobs, or for any. Repeatable until the job can start.

        Args:
            job_id: A job that waits for others.
            others: At most 100 jobs of this queue; None: all that it waits for.

        Raises:
            JobNotFound: No job has this id.
            JobStateConflict: The job does not wait for other jobs, or only for those that its handler has
                added; or it is a node of a flow. Nothing was changed.
            InvalidJob: There are too many jobs; nothing was sent.
        """
        return self._now(lambda now_ms: dependencies.remove_dependencies(self._keys, job_id, others, now_ms))

    @with_job
    def children_values(self, job_id: str) -> Op[dict[JobRef, Any]]:
        """Read the results of the completed jobs that a job depends on, in any queue.

        Raises:
            ChildrenFailed: Some ended without a result: failed, expired, revoked or removed. The exception
                has their reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """
        return job.children_values(self._keys, job_id)

    @with_job
    def parents(self, job_id: str) -> Op[list[JobRef]]:
        """List the dependents of a job, in any queue.

        Raises:
            JobNotFound: No job has this id.
        """
        return job.parents(self._keys, job_id)
