"""The operations of Queue and AsyncQueue on the usage of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import with_job
from glidemq_orchestrate.jobs import changes
from glidemq_orchestrate.jobs import usage as usages
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys


class UsageOperations(QueueOperationsBase):
    """Operations on the usage of jobs."""

    @with_job
    def report_usage(self, job_id: str, usage: Usage) -> Op[None]:
        """Report the usage of a job; replaces an earlier report, in the sums too. Repeatable.

        Raises:
            InvalidJob: The usage is empty; nothing was sent.
            JobNotFound: No job has this id.
            ServerBusy: A Node client has held the lock of this report for five seconds.
        """
        return usages.report(self._keys, job_id, usage, self._clock)

    @with_job
    def usage(self, job_id: str) -> Op[Usage | None]:
        """Read the reported usage of a job; None without a report."""
        return usages.usage_of(self._keys, job_id)

    def usage_summary(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> Op[UsageSummary]:
        """Sum up the usage of jobs, by minute, within the last 30 days.

        Args:
            start: With a time zone; by default an hour before ``end``.
            end: With a time zone; by default now.
            queues: Names of queues; by default all queues under this prefix that have usage.

        Raises:
            ConfigurationError: A time has no zone, the start is after the end, or more than 100,000 buckets
                would have to be read.
        """
        names = None if queues is None else (yield from self._with_shards(queues))
        return (yield from usages.summary(self._keys.prefix, names, start, end, self._clock.now_ms()))

    def _with_shards(self, queues: Sequence[str]) -> Op[list[str]]:
        """The queues, and the shards of those that have some."""
        if self.known is None:
            return list(queues)
        every = [QueueKeys(self._keys.prefix, name) for name in queues]
        spread = yield from self.known.of(every, self._clock)
        return [
            member.queue
            for keys in every
            for member in (spread[keys.queue].members() if keys.queue in spread else [keys])
        ]

    @with_job
    def flow_budget(self, root_id: str) -> Op[FlowBudget | None]:
        """Read the budget of a flow of glide-mq's producer by the id of its root job; None without one."""
        return usages.budget(self._keys, root_id)

    @with_job
    def report_tokens(self, job_id: str, tokens: int) -> Op[None]:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: No job has this id.
        """
        yield from changes.report_tokens(self._keys, job_id, tokens, self._clock.now_ms())
