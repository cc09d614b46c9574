"""What Queue and AsyncQueue do: for the usage of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from glidemq_orchestrate.clients.operations.queue_base import QueueOperationsBase
from glidemq_orchestrate.jobs import usage as ops
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.wire.call import Op


class UsageOperations(QueueOperationsBase):
    """Calls for the usage of jobs."""

    def report_usage(self, job_id: str, usage: Usage) -> Op[None]:
        """Report what a job used; replaces an earlier report of the job, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: There is none with this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """
        return ops.report(self._keys, job_id, usage, self._clock)

    def usage(self, job_id: str) -> Op[Usage | None]:
        """The usage that a job reported; None if it reported none."""
        return ops.usage_of(self._keys, job_id)

    def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> Op[UsageSummary]:
        """Sum up what jobs used, by the minute; 30 days are kept.

        Args:
            start: With a time zone; an hour before the end when left out.
            end: With a time zone; now when left out.
            queues: Names; all queues under this prefix that have usage when left out.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """
        return (yield from ops.summary(self._keys.prefix, queues, start, end, self._clock.now_ms()))

    def flow_budget(self, root_id: str) -> Op[FlowBudget | None]:
        """The budget of a flow made by glide-mq's producer, by its root job's id; None if it has none."""
        return ops.budget(self._keys, root_id)
