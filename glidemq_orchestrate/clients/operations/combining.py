"""What the members of a queue with shards return becomes one result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, zip_longest
from typing import Any, Final, TypeVar

from glidemq_orchestrate.attempts.workers import LostWorker, WorkerInfo
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.output import AcceptedAttempt
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.jobs.tags import TagCount
from glidemq_orchestrate.queues.listing import FoundJobs, JobCounts, TaggedJobs
from glidemq_orchestrate.queues.open_arrays import ElementCounts

T = TypeVar("T")
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def total(every: Sequence[Any]) -> Any:
    """The sum of numbers, or all items of lists."""
    return sum(every) if every and isinstance(every[0], int) else list(chain.from_iterable(every))


def every_one(every: Sequence[bool]) -> bool:
    """Whether it holds for all."""
    return all(every)


def nothing(every: Sequence[None]) -> None:
    """For operations that return nothing."""


def by_key(key: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    """Combine lists into one, sorted by a key."""
    return lambda every: sorted(chain.from_iterable(every), key=key)


def in_rotation(every: Iterable[Sequence[T]], arguments: object = None) -> list[T]:  # noqa: ARG001  for pages
    """The first items of all lists, then the second ones, and so on."""
    missing: Any = object()
    rows = zip_longest(*every, fillvalue=missing)
    return [item for row in rows for item in row if item is not missing]


def counted(every: Sequence[JobCounts]) -> JobCounts:
    total = Counter[JobState]()
    for counts in every:
        total.update(counts)
    found = JobCounts(total)
    found.at_least = frozenset().union(*(counts.at_least for counts in every))
    elements = [counts.elements for counts in every]
    found.elements = ElementCounts(
        sum(one.waiting for one in elements),
        sum(one.ready for one in elements),
        sum(one.running for one in elements),
        any(one.is_partial for one in elements),
        sum(one.arrays for one in elements),
    )
    return found


def first_known(every: Sequence[list[JobState | None]]) -> list[JobState | None]:
    return [
        next((state for state in states if state is not None), None) for states in zip(*every, strict=True)
    ]


def found(every: Sequence[FoundJobs], arguments: object = None) -> FoundJobs:  # noqa: ARG001  for pages
    """The found jobs of all."""
    found = FoundJobs(in_rotation(every))
    found.is_partial = any(jobs.is_partial for jobs in every)
    return found


def in_order(every: Sequence[list[Job]], arguments: Mapping[str, Any]) -> list[Job]:
    """Ended jobs by time; others as the members take turns."""
    jobs = in_rotation(every)
    if all(job.finished_at is not None for job in jobs):
        jobs.sort(key=lambda job: job.finished_at or _NEVER, reverse=arguments["newest_first"])
    return jobs


def merged(every: Sequence[Mapping[str, AcceptedAttempt]]) -> Mapping[str, AcceptedAttempt]:
    return {job_id: attempt for found in every for job_id, attempt in found.items()}


def added_up(every: Sequence[list[TagCount]], arguments: object) -> list[TagCount]:  # noqa: ARG001
    counts = Counter[str]()
    for one in chain.from_iterable(every):
        counts[one.tag] += one.count
    return [TagCount(tag, count) for tag, count in counts.most_common()]


def with_total(every: Sequence[TaggedJobs], arguments: object) -> TaggedJobs:  # noqa: ARG001
    found = TaggedJobs(in_rotation(every))
    found.total = sum(jobs.total for jobs in every)
    return found


def every_worker(every: Sequence[list[WorkerInfo]]) -> list[WorkerInfo]:
    """Each worker once: it registers in each member."""
    known = {one.id: one for one in chain.from_iterable(every)}
    return sorted(known.values(), key=lambda one: one.started_at)


def every_lost(every: Sequence[list[LostWorker]]) -> list[LostWorker]:
    jobs = Counter[str]()
    for one in chain.from_iterable(every):
        jobs[one.id] += one.jobs
    return [LostWorker(worker, count) for worker, count in jobs.items()]
