"""The operations of Queue and AsyncQueue on statistics."""

from __future__ import annotations

from datetime import date, timedelta
from typing import cast

from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.jobs.states import EndedState, JobState
from glidemq_orchestrate.queues import metrics, recent, statistics
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.queues.recent import RecentStatistics
from glidemq_orchestrate.queues.statistics import QueueStatistics
from glidemq_orchestrate.wire.call import Op


class StatisticsOperations(QueueOperationsBase):
    """Operations that read statistics."""

    def metrics(self, state: EndedState = JobState.COMPLETED) -> Op[list[MetricPoint]]:
        """Read how many jobs ended in a state per minute, and their run times: about a day, oldest first.

        Raises:
            ConfigurationError: The state is neither completed nor failed; nothing was sent.
        """
        return (yield from metrics.metrics((yield from self._member_keys()), cast("JobState", state)))

    def recent_statistics(self, period: Duration = timedelta(hours=1)) -> Op[RecentStatistics]:
        """Read how many jobs ended in the last hour, or another period, and how long they waited and ran.

        The durations are those of whole ten minutes and of the jobs that workers of this package ran, which
        report them every five seconds; the ends are those of whole minutes, by any worker.

        Args:
            period: From a minute to a day.

        Raises:
            ConfigurationError: ``period`` is out of range; nothing was sent.
        """
        period_ms = recent.checked(period)
        queues = yield from self._member_keys()
        return (yield from recent.recent(queues, period_ms, self._clock.now_ms()))

    def statistics(self, day: date | None = None) -> Op[QueueStatistics]:
        """Read how long the jobs of a day waited and ran, by handler, with histograms and percentiles.

        Counts the jobs that workers of this package ran; those of Node workers are in ``metrics`` only.
        Workers report every five seconds and when they stop; a killed one takes its last seconds with it.
        Kept for 30 days.

        Args:
            day: A day in UTC; None: today. A day on which nothing ran has counts of 0.

        Raises:
            ConfigurationError: The day is in the future, or its statistics are gone; nothing was sent.
        """
        queues = yield from self._member_keys()
        return (yield from statistics.statistics(queues, day, self._clock.now_ms()))
