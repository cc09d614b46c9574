"""The operations of Queue and AsyncQueue on tags."""

from __future__ import annotations

from collections.abc import Iterable

from glidemq_orchestrate.clients.operations.combining import added_up, with_total
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import in_pages, with_job
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs.tags import TagCount, change_tags, tag_counts
from glidemq_orchestrate.queues import listing
from glidemq_orchestrate.queues.listing import TaggedJobs
from glidemq_orchestrate.wire.call import Op, ask


class TagOperations(QueueOperationsBase):
    """Operations on the tags of jobs."""

    @in_pages(added_up, whole=True)
    def tags(self, *, offset: int = 0, limit: int = 100) -> Op[list[TagCount]]:
        """List the tags with their numbers of jobs, most used first.

        Jobs that another library has removed may be counted for some minutes.

        Raises:
            InvalidJob: ``offset`` is negative, or ``limit`` less than 1; nothing was sent.
        """
        whole("offset", offset, 0)
        whole("limit", limit, 1)
        return ask(tag_counts(self._keys, offset, limit))

    @in_pages(with_total)
    def tagged(
        self, tag: str, *, offset: int = 0, limit: int = 100, exclude_data: bool = False
    ) -> Op[TaggedJobs]:
        """List the jobs with a tag, those that have had it longest first; empty if no job has it.

        Args:
            tag: The tag.
            offset: The number of jobs to skip.
            limit: The max number of jobs to return; ``total`` of the result is how many have the tag.
            exclude_data: Omit data and result, and do not transfer them.

        Raises:
            InvalidJob: An argument is not valid; nothing was sent.
        """
        whole("offset", offset, 0)
        whole("limit", limit, 1)
        return self._now(
            lambda now_ms: listing.tagged(
                self._keys, tag, range(offset, offset + limit), now_ms, exclude_data=exclude_data
            )
        )

    @with_job
    def tag(self, job_id: str, tags: Iterable[str]) -> Op[list[str]]:
        """Add tags to a job, by which ``tagged`` finds it; returns all its tags. Repeatable.

        Raises:
            InvalidJob: A tag is not valid, or the job would have more than 32; nothing was changed.
            JobNotFound: No job has this id.
        """
        return self._now(lambda now_ms: change_tags(self._keys, job_id, "add", tags, now_ms))

    @with_job
    def untag(self, job_id: str, tags: Iterable[str]) -> Op[list[str]]:
        """Take tags off a job; returns the remaining ones. Ignores tags that it does not have. Repeatable.

        Raises:
            InvalidJob: A tag is not valid; nothing was sent.
            JobNotFound: No job has this id.
        """
        return self._now(lambda now_ms: change_tags(self._keys, job_id, "remove", tags, now_ms))
