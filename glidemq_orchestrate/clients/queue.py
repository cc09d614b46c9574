"""Queue and AsyncQueue: the jobs of one queue, and the queue as a whole."""

from __future__ import annotations

from glidemq_orchestrate.attempts.handler_code import HandlerCode
from glidemq_orchestrate.attempts.workers import WorkerInfo
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.operations.adding import AddingOperations
from glidemq_orchestrate.clients.operations.changes import ChangeOperations
from glidemq_orchestrate.clients.operations.dead_letters import DeadLetterOperations
from glidemq_orchestrate.clients.operations.dependencies import DependencyOperations
from glidemq_orchestrate.clients.operations.failures import FailureOperations
from glidemq_orchestrate.clients.operations.finding import FindingOperations
from glidemq_orchestrate.clients.operations.limits import LimitOperations
from glidemq_orchestrate.clients.operations.output import OutputOperations
from glidemq_orchestrate.clients.operations.queue import Compression, WholeQueueOperations
from glidemq_orchestrate.clients.operations.statistics import StatisticsOperations
from glidemq_orchestrate.clients.operations.tags import TagOperations
from glidemq_orchestrate.clients.operations.tracking import TrackingOperations
from glidemq_orchestrate.clients.operations.usage import UsageOperations
from glidemq_orchestrate.clients.twins import (
    awaited,
    awaited_through,
    blocking,
    blocking_through,
    streamed,
    streamed_async,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.jobs.changes import Signal, SuspendInfo
from glidemq_orchestrate.jobs.history import HistoryEntry, JobHistory
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.output import OutputChunk
from glidemq_orchestrate.jobs.tags import TagCount
from glidemq_orchestrate.jobs.usage import FlowBudget, Usage, UsageSummary
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.queues.dependencies import CancelledJobs, ChangedDependencies
from glidemq_orchestrate.queues.failure_groups import FailureGroup, FailureGroups, FailureSample
from glidemq_orchestrate.queues.limits import GroupInfo
from glidemq_orchestrate.queues.listing import FoundJobs, JobCounts, JobPage, TaggedJobs
from glidemq_orchestrate.queues.metrics import MetricPoint
from glidemq_orchestrate.queues.open_arrays import ElementCounts
from glidemq_orchestrate.queues.recent import RecentStatistics
from glidemq_orchestrate.queues.statistics import (
    DurationBucket,
    Durations,
    HandlerStatistics,
    QueueStatistics,
)
from glidemq_orchestrate.queues.tracking import Tracked, TrackedChange
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.shards import check_count
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

__all__ = [
    "AsyncQueue",
    "CancelledJobs",
    "ChangedDependencies",
    "DeadLetter",
    "DurationBucket",
    "Durations",
    "ElementCounts",
    "FailureGroup",
    "FailureGroups",
    "FailureSample",
    "FlowBudget",
    "FoundJobs",
    "GroupInfo",
    "HandlerCode",
    "HandlerStatistics",
    "HistoryEntry",
    "JobCounts",
    "JobHistory",
    "JobLogs",
    "JobPage",
    "MetricPoint",
    "NewJob",
    "OutputChunk",
    "Queue",
    "QueueStatistics",
    "RecentStatistics",
    "Signal",
    "SuspendInfo",
    "TagCount",
    "TaggedJobs",
    "Tracked",
    "TrackedChange",
    "Usage",
    "UsageSummary",
    "WorkerInfo",
]


class QueueOperations(
    AddingOperations,
    FindingOperations,
    ChangeOperations,
    DependencyOperations,
    OutputOperations,
    TagOperations,
    TrackingOperations,
    FailureOperations,
    DeadLetterOperations,
    LimitOperations,
    StatisticsOperations,
    UsageOperations,
    WholeQueueOperations,
):
    """The operations on one queue, written once for both clients."""


class Queue(SyncFacade):
    """One queue on one server.

    Args:
        name: 1 to 256 characters, none of ``{ } :``.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        compression: ``gzip`` compresses the data of added jobs; every reader decompresses it.
        shards: How many shards the queue has, 1 to 128: a cluster spreads these over its primaries. A new
            queue gets them with the first call. None: as many as the queue has.
        clock: For tests.

    Raises:
        ConfigurationError: The name, the URL, the prefix, the compression or the number of shards is not
            valid. No connection was opened: the first call does that. Each call until one succeeds raises
            ``ShardsMismatch`` if the queue never had this number of shards.
    """

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        name: str,
        url: Address = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        shards: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(name))
        self._operations = QueueOperations(self._keys, self._clock, compression, self._known_shards)
        if shards is not None:
            self._known_shards().state(self._keys, check_count(shards))

    add = blocking(QueueOperations.add)
    add_many = blocking(QueueOperations.add_many)
    add_and_wait = blocking_through(QueueOperations.add_and_wait, QueueOperations.awaited_outage)
    get_job = blocking(QueueOperations.get_job)
    wait_of = blocking(QueueOperations.wait_of)

    retry = blocking(QueueOperations.retry)
    revoke = blocking(QueueOperations.revoke)
    cancel = blocking(QueueOperations.cancel)
    depends_on = blocking(QueueOperations.depends_on)
    depends_off = blocking(QueueOperations.depends_off)
    take_back = blocking(QueueOperations.take_back)
    remove = blocking(QueueOperations.remove)
    change_priority = blocking(QueueOperations.change_priority)
    change_delay = blocking(QueueOperations.change_delay)
    promote = blocking(QueueOperations.promote)
    tag = blocking(QueueOperations.tag)
    untag = blocking(QueueOperations.untag)
    track = blocking(QueueOperations.track)
    untrack = blocking(QueueOperations.untrack)
    add_log = blocking(QueueOperations.add_log)
    history = blocking(QueueOperations.history)
    logs = blocking(QueueOperations.logs)
    set_progress = blocking(QueueOperations.set_progress)
    update_data = blocking(QueueOperations.update_data)
    report_tokens = blocking(QueueOperations.report_tokens)
    children_values = blocking(QueueOperations.children_values)
    parents = blocking(QueueOperations.parents)
    suspend_info = blocking(QueueOperations.suspend_info)
    signal = blocking(QueueOperations.signal)
    add_output = blocking(QueueOperations.add_output)
    read_output = blocking(QueueOperations.read_output)
    messages = blocking(QueueOperations.messages)
    accepted_attempts = blocking(QueueOperations.accepted_attempts)

    get_jobs = blocking(QueueOperations.get_jobs)
    search = blocking(QueueOperations.search)
    scan_jobs = blocking(QueueOperations.scan_jobs)
    states = blocking(QueueOperations.states)
    counts = blocking(QueueOperations.counts)
    tags = blocking(QueueOperations.tags)
    tagged = blocking(QueueOperations.tagged)
    tracked = blocking(QueueOperations.tracked)
    watch_tracked = streamed(QueueOperations.watch_tracked, survives=QueueOperations.tracked_outage)

    now = blocking(QueueOperations.now)
    pause = blocking(QueueOperations.pause)
    resume = blocking(QueueOperations.resume)
    is_paused = blocking(QueueOperations.is_paused)
    clean = blocking(QueueOperations.clean)
    drain = blocking(QueueOperations.drain)
    obliterate = blocking(QueueOperations.obliterate)
    shards = blocking(QueueOperations.shards)
    add_shards = blocking(QueueOperations.add_shards)
    retry_failed = blocking(QueueOperations.retry_failed)
    failures = blocking(QueueOperations.failures)
    retry_failures = blocking(QueueOperations.retry_failures)
    remove_failures = blocking(QueueOperations.remove_failures)
    set_global_concurrency = blocking(QueueOperations.set_global_concurrency)
    global_concurrency = blocking(QueueOperations.global_concurrency)
    set_global_rate_limit = blocking(QueueOperations.set_global_rate_limit)
    global_rate_limit = blocking(QueueOperations.global_rate_limit)
    rate_limit_group = blocking(QueueOperations.rate_limit_group)
    groups = blocking(QueueOperations.groups)
    metrics = blocking(QueueOperations.metrics)
    recent_statistics = blocking(QueueOperations.recent_statistics)
    statistics = blocking(QueueOperations.statistics)
    lost_workers = blocking(QueueOperations.lost_workers)
    workers = blocking(QueueOperations.workers)
    set_dead_letter_queue = blocking(QueueOperations.set_dead_letter_queue)
    dead_letter_queue = blocking(QueueOperations.dead_letter_queue)
    dead_letters = blocking(QueueOperations.dead_letters)
    get_dead_letter = blocking(QueueOperations.get_dead_letter)
    remove_dead_letter = blocking(QueueOperations.remove_dead_letter)
    replay_dead_letter = blocking(QueueOperations.replay_dead_letter)

    report_usage = blocking(QueueOperations.report_usage)
    usage = blocking(QueueOperations.usage)
    usage_summary = blocking(QueueOperations.usage_summary)
    flow_budget = blocking(QueueOperations.flow_budget)


class AsyncQueue(AsyncFacade):
    """One queue on one server, with awaitable calls, for one event loop.

    Args:
        name: 1 to 256 characters, none of ``{ } :``.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        compression: ``gzip`` compresses the data of added jobs; every reader decompresses it.
        shards: How many shards the queue has, 1 to 128: a cluster spreads these over its primaries. A new
            queue gets them with the first call. None: as many as the queue has.
        clock: For tests.

    Raises:
        ConfigurationError: The name, the URL, the prefix, the compression or the number of shards is not
            valid. No connection was opened: the first call does that. Each call until one succeeds raises
            ``ShardsMismatch`` if the queue never had this number of shards.
    """

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        name: str,
        url: Address = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        shards: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(name))
        self._operations = QueueOperations(self._keys, self._clock, compression, self._known_shards)
        if shards is not None:
            self._known_shards().state(self._keys, check_count(shards))

    add = awaited(QueueOperations.add)
    add_many = awaited(QueueOperations.add_many)
    add_and_wait = awaited_through(QueueOperations.add_and_wait, QueueOperations.awaited_outage)
    get_job = awaited(QueueOperations.get_job)
    wait_of = awaited(QueueOperations.wait_of)

    retry = awaited(QueueOperations.retry)
    revoke = awaited(QueueOperations.revoke)
    cancel = awaited(QueueOperations.cancel)
    depends_on = awaited(QueueOperations.depends_on)
    depends_off = awaited(QueueOperations.depends_off)
    take_back = awaited(QueueOperations.take_back)
    remove = awaited(QueueOperations.remove)
    change_priority = awaited(QueueOperations.change_priority)
    change_delay = awaited(QueueOperations.change_delay)
    promote = awaited(QueueOperations.promote)
    tag = awaited(QueueOperations.tag)
    untag = awaited(QueueOperations.untag)
    track = awaited(QueueOperations.track)
    untrack = awaited(QueueOperations.untrack)
    add_log = awaited(QueueOperations.add_log)
    history = awaited(QueueOperations.history)
    logs = awaited(QueueOperations.logs)
    set_progress = awaited(QueueOperations.set_progress)
    update_data = awaited(QueueOperations.update_data)
    report_tokens = awaited(QueueOperations.report_tokens)
    children_values = awaited(QueueOperations.children_values)
    parents = awaited(QueueOperations.parents)
    suspend_info = awaited(QueueOperations.suspend_info)
    signal = awaited(QueueOperations.signal)
    add_output = awaited(QueueOperations.add_output)
    read_output = awaited(QueueOperations.read_output)
    messages = awaited(QueueOperations.messages)
    accepted_attempts = awaited(QueueOperations.accepted_attempts)

    get_jobs = awaited(QueueOperations.get_jobs)
    search = awaited(QueueOperations.search)
    scan_jobs = awaited(QueueOperations.scan_jobs)
    states = awaited(QueueOperations.states)
    counts = awaited(QueueOperations.counts)
    tags = awaited(QueueOperations.tags)
    tagged = awaited(QueueOperations.tagged)
    tracked = awaited(QueueOperations.tracked)
    watch_tracked = streamed_async(QueueOperations.watch_tracked, survives=QueueOperations.tracked_outage)

    now = awaited(QueueOperations.now)
    pause = awaited(QueueOperations.pause)
    resume = awaited(QueueOperations.resume)
    is_paused = awaited(QueueOperations.is_paused)
    clean = awaited(QueueOperations.clean)
    drain = awaited(QueueOperations.drain)
    obliterate = awaited(QueueOperations.obliterate)
    shards = awaited(QueueOperations.shards)
    add_shards = awaited(QueueOperations.add_shards)
    retry_failed = awaited(QueueOperations.retry_failed)
    failures = awaited(QueueOperations.failures)
    retry_failures = awaited(QueueOperations.retry_failures)
    remove_failures = awaited(QueueOperations.remove_failures)
    set_global_concurrency = awaited(QueueOperations.set_global_concurrency)
    global_concurrency = awaited(QueueOperations.global_concurrency)
    set_global_rate_limit = awaited(QueueOperations.set_global_rate_limit)
    global_rate_limit = awaited(QueueOperations.global_rate_limit)
    rate_limit_group = awaited(QueueOperations.rate_limit_group)
    groups = awaited(QueueOperations.groups)
    metrics = awaited(QueueOperations.metrics)
    recent_statistics = awaited(QueueOperations.recent_statistics)
    statistics = awaited(QueueOperations.statistics)
    lost_workers = awaited(QueueOperations.lost_workers)
    workers = awaited(QueueOperations.workers)
    set_dead_letter_queue = awaited(QueueOperations.set_dead_letter_queue)
    dead_letter_queue = awaited(QueueOperations.dead_letter_queue)
    dead_letters = awaited(QueueOperations.dead_letters)
    get_dead_letter = awaited(QueueOperations.get_dead_letter)
    remove_dead_letter = awaited(QueueOperations.remove_dead_letter)
    replay_dead_letter = awaited(QueueOperations.replay_dead_letter)

    report_usage = awaited(QueueOperations.report_usage)
    usage = awaited(QueueOperations.usage)
    usage_summary = awaited(QueueOperations.usage_summary)
    flow_budget = awaited(QueueOperations.flow_budget)
