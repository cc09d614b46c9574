"""The operations of Queue and AsyncQueue that find, read and count jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, cast

from glidemq_orchestrate.clients.operations.combining import counted, first_known, found, in_order
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import in_pages, on_all, with_job
from glidemq_orchestrate.flows.status import Wait
from glidemq_orchestrate.jobs import job
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.states import JobState, JobStateLike
from glidemq_orchestrate.queues import listing, waits
from glidemq_orchestrate.queues.listing import MAX_EXAMINED, FoundJobs, JobCounts, JobFilter, JobPage
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import QueueKeys

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class FindingOperations(QueueOperationsBase):
    """Operations that find and read jobs."""

    @in_pages(in_order)
    def get_jobs(
        self,
        state: JobStateLike,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        exclude_data: bool = False,
    ) -> Op[list[Job]]:
        """List the jobs of one state.

        Waiting jobs are in the order in which workers take them, ended and delayed ones by time. Jobs that
        wait for other jobs have no order, and to find them, all keys of the server are scanned in pages. A
        job with data that is not valid JSON has ``broken`` set. Slices of arrays that
        workers hold are among the active ones: the id is that of the array's job, and a number in braces.

        Args:
            state: The state of the jobs.
            offset: The number of jobs to skip. Jobs that change state during the call may be skipped or
                listed twice.
            limit: The max number of jobs to return.
            newest_first: Reverse the order; for completed, failed, delayed, prioritized and suspended jobs.
            exclude_data: Omit data and result, and do not transfer them.

        Raises:
            ConfigurationError: An argument is not valid, or ``newest_first`` is set for another state.
        """
        return listing.get_jobs(
            self._keys,
            JobFilter(_state(state)),
            range(offset, offset + limit),
            exclude_data=exclude_data,
            newest_first=newest_first,
        )

    @in_pages(found)
    def search(  # noqa: PLR0913  criteria and limits
        self,
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        data: Mapping[str, JsonLike] | None = None,
        limit: int = 100,
        exclude_data: bool = False,
        max_examined: int | None = MAX_EXAMINED,
    ) -> Op[FoundJobs]:
        """Find the jobs that match all criteria; each call to the server reads at most a page.

        Args:
            state: Only jobs in this state; None scans all keys of the server.
            name: Only jobs with exactly this name.
            data: Only jobs with these top-level keys and values in their data.
            limit: The max number of jobs to return.
            exclude_data: Omit data and result of the returned jobs.
            max_examined: The approximate max number of jobs to examine, by default what takes about a second;
                None for all. If the state has no index, other keys count a little too. To read all of a large
                queue in pages, use ``scan_jobs``.

        Returns:
            The jobs; ``is_partial`` is true if the search stopped at ``max_examined``, so there may be more.

        Raises:
            ConfigurationError: The state is unknown, or a limit is negative; nothing was sent.
        """
        return listing.search(
            self._keys, JobFilter(_state(state), name, data), limit, max_examined, exclude_data=exclude_data
        )

    def scan_jobs(
        self,
        cursor: str = "0",
        *,
        state: JobStateLike | None = None,
        name: str | None = None,
        exclude_data: bool = False,
    ) -> Op[JobPage]:
        """Examine about a thousand keys and return the matching jobs.

        Start with cursor ``"0"`` and continue with the cursor of each page until it is ``"0"`` again. A page
        may be empty. A job that exists during the whole scan is returned at least once.

        Raises:
            ConfigurationError: The state is unknown, or ``cursor`` is not valid; nothing was sent.
        """
        filter_ = JobFilter(_state(state), name)
        return self._scan(
            cursor, lambda keys, at: listing.scan_jobs(keys, filter_, at, exclude_data=exclude_data)
        )

    def _scan(self, cursor: str, scan: Callable[[QueueKeys, str], Op[JobPage]]) -> Op[JobPage]:
        """Scan the members one after the other; the cursor counts the finished ones: ``17/2``."""
        members = yield from self._member_keys()
        at, _, finished = cursor.partition("/")
        number = int(finished) if finished.isdigit() and int(finished) < len(members) else 0
        page = yield from scan(members[number], at)
        if page.cursor == "0" and number + 1 < len(members):
            return JobPage(page.jobs, f"0/{number + 1}")
        return page if not number or page.cursor == "0" else JobPage(page.jobs, f"{page.cursor}/{number}")

    @on_all(first_known)
    def states(self, job_ids: Sequence[str]) -> Op[list[JobState | None]]:
        """Read the states of many jobs, in this order, 500 per round trip; None for a missing job."""
        return listing.states(self._keys, job_ids)

    @on_all(counted)
    def counts(self, *, indexed_only: bool = False, max_examined: int | None = MAX_EXAMINED) -> Op[JobCounts]:
        """Count the jobs in each state. A job that a worker has fetched but not started counts as active.

        Args:
            indexed_only: Omit the jobs that wait for other jobs or for their ordering key. glide-mq has no
                index for those, and to count them, all keys of the server are scanned.
            max_examined: The approximate max number of jobs to examine for those, by default what takes about
                a second; None for all.

        Returns:
            The counts; ``at_least`` has the states whose count stopped at ``max_examined``, ``elements`` how
            many elements of arrays wait and run. Elements are not jobs: the counts are without them.
        """
        return self._now(
            lambda now_ms: listing.counts(
                self._keys, now_ms, indexed_only=indexed_only, max_examined=max_examined
            )
        )

    @with_job
    def get_job(self, job_id: str, *, lenient: bool = False) -> Op[Job]:
        """Read one job as it is now.

        Args:
            job_id: Its id.
            lenient: Do not raise for data or a result that is not valid JSON: return the job without both, as
                ``broken``.

        Raises:
            JobNotFound: No job has this id.
            DecodeError: Its data or result is not valid JSON, and ``lenient`` is false.
        """
        return job.get_job(self._keys, job_id, lenient=lenient)

    @with_job
    def wait_of(self, job_id: str) -> Op[Wait | None]:
        """Explain why a job is not running, and until when, as ``Flow.waits``; None if it runs or has ended.

        Also None for a job that waits for its dependencies.

        Raises:
            JobNotFound: No job has this id.
        """
        return (yield from waits.wait_of(self._keys, job_id, self._clock.now_ms()))


def _state(state: JobStateLike | None) -> JobState | None:
    """The state; a text equals its ``StrEnum`` member, and the filter refuses unknown states."""
    return cast("JobState | None", state)
