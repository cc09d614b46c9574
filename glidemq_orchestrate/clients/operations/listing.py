"""What Queue and AsyncQueue do: that finds jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glidemq_orchestrate.clients.operations.queue_base import QueueOperationsBase
from glidemq_orchestrate.jobs.bounds import LOOK_AT
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import listing as ops
from glidemq_orchestrate.queues.listing import FoundJobs, JobCounts, JobFilter, JobPage
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike


class ListingOperations(QueueOperationsBase):
    """Calls that find jobs."""

    def get_jobs(
        self,
        state: JobState,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        exclude_data: bool = False,
    ) -> Op[list[Job]]:
        """List the jobs of one state.

        Waiting jobs come in the order in which workers take them, ended and delayed ones by time. Jobs that
        wait for other jobs have no order, and finding them means scanning all keys of the server, a page at a
        time. A job whose data is not valid JSON is listed with ``broken`` set.

        Args:
            state: Any state.
            offset: How many to skip. Jobs that change state meanwhile may be skipped or listed twice.
            limit: How many to return at most.
            newest_first: In reverse; for completed, failed, delayed, prioritized and suspended jobs.
            exclude_data: Leave data and result out, and do not transfer them.
        """
        return ops.get_jobs(
            self._keys,
            JobFilter(state),
            range(offset, offset + limit),
            exclude_data=exclude_data,
            newest_first=newest_first,
        )

    def search(  # noqa: PLR0913  what is wanted, and how much
        self,
        *,
        state: JobState | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        look_at: int | None = LOOK_AT,
    ) -> Op[FoundJobs]:
        """Find the jobs that match all given criteria; no call to the server takes longer than a page.

        Args:
            state: Only jobs of this state; without it all keys of the server are scanned.
            name: Only jobs of this name, exactly.
            data: Only jobs whose data has these keys with these values at the top level.
            limit: How many to return at most.
            exclude_data: Leave data and result out of the returned jobs.
            look_at: About how many jobs are examined at most, by default a second's work; if a state has no
                index, other keys count a little too. None: all. ``scan_jobs`` reads all of a large queue in
                pages.

        Returns:
            The jobs; ``is_partial`` is true if the search ended at ``look_at``, and there may be more.
        """
        return ops.search(self._keys, JobFilter(state, name, data), limit, look_at, exclude_data=exclude_data)

    def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobState | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> Op[JobPage]:
        """Examine about a thousand keys, and return the matching jobs among them.

        Start with cursor ``"0"`` and continue with the cursor of each page until that is ``"0"`` again. A
        page may be empty; a job that exists all the time is returned at least once.
        """
        return ops.scan_jobs(self._keys, JobFilter(state, name), cursor, exclude_data=exclude_data)

    def states(self, job_ids: Sequence[str]) -> Op[list[JobState | None]]:
        """The state of each of many jobs, in this order, 500 in a trip; None for one that does not exist."""
        return ops.states(self._keys, job_ids)

    def counts(self, *, indexed_only: bool = False, look_at: int | None = LOOK_AT) -> Op[JobCounts]:
        """How many jobs are in each state. A job that a worker has taken and not started counts as active.

        Args:
            indexed_only: Leave out the jobs that wait for other jobs or for their ordering key: glide-mq has
                no index for those, and counting them means scanning the keys of the server.
            look_at: About how many jobs are examined for that, by default a second's work. None: all.

        Returns:
            The numbers; ``at_least`` holds the states whose counting ended at ``look_at``.
        """
        return ops.counts(self._keys, indexed_only=indexed_only, look_at=look_at)
