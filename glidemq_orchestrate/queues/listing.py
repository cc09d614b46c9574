"""The jobs of a queue: by state, by name, by data, and how many.

glide-mq has an index for most states, but not for jobs that wait for other jobs: a scan of the keys finds
those, a page at a time. The hash of a job is authoritative, not the place where its id was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from glidemq_orchestrate.broadcasts import subscriptions
from glidemq_orchestrate.errors import (
    CodecError,
    ConfigurationError,
    GlideMQError,
    ProtocolError,
)
from glidemq_orchestrate.foundation.suggestions import did_you_mean
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs import pages as reads
from glidemq_orchestrate.jobs.job import Job, job_fields
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.jobs.tags import tagged_ids
from glidemq_orchestrate.queues.open_arrays import ElementCounts, count_elements, open_arrays, slice_ids
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.codec import JsonLike, decode
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys, is_queue_name

MAX_EXAMINED: Final = 100_000
"""How many jobs a search or count reads at most by default."""
PAGE: Final = 500
READ: Final = 100
EMPTY_PAGE: Final = 50  # a page counts as at least this many jobs
SHIFT: Final = 2**42
MAX_CLASSES: Final = 5000
_MAY_BE_BROKEN: Final = (None, JobState.UNKNOWN, JobState.COMPLETED, JobState.FAILED)
SORTED: Final[Mapping[JobState | None, KeyName]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.SUSPENDED: "suspended",
    JobState.DELAYED: "scheduled",
    JobState.PRIORITIZED: "scheduled",
}

T = TypeVar("T")
PagePosition = Any
PageRead = Op[tuple[list[str], PagePosition | None]]


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, and the cursor of the next page; ``"0"`` at the end."""

    jobs: list[Job]
    cursor: str


class FoundJobs(list[Job]):
    """The jobs found. ``is_partial``: the search stopped at its limit, so there may be more."""

    is_partial = False


class TaggedJobs(list[Job]):
    """Some jobs with a tag. ``total``: how many have it."""

    total = 0


class JobCounts(dict[JobState, int]):
    """Numbers of jobs by state.

    Attributes:
        at_least: The states whose count stopped at the limit.
        elements: How many elements of arrays wait and run; they are not jobs, and not in the numbers.
    """

    at_least: frozenset[JobState] = frozenset()
    elements: ElementCounts = ElementCounts()

    def with_elements(self) -> dict[JobState, int]:
        """The numbers of jobs and elements: those that wait are ``waiting``, those that run ``active``."""
        more = {JobState.WAITING: self.elements.waiting, JobState.ACTIVE: self.elements.running}
        return {state: count + more.get(state, 0) for state, count in self.items()}


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to find: all criteria must match. ``data``: top-level keys with their values."""

    state: JobState | None = None
    name: str | None = None
    data: Mapping[str, JsonLike] | None = None

    def __post_init__(self) -> None:
        """Refuse a state that no job has."""
        if self.state is not None and self.state not in tuple(JobState):
            near = did_you_mean(self.state, JobState) or f". Fix: use {', '.join(JobState)}"
            raise ConfigurationError(f"there is no state {described(self.state)}{near}")
        if self.state is JobState.SKIPPED:
            raise ConfigurationError("skipped is a state of nodes in flows; their jobs are completed")

    def has(self, head: Sequence[str | None] | ProtocolError) -> bool:
        """Whether a job with these fields (state, name, data) matches; an unreadable job does too."""
        if isinstance(head, ProtocolError):
            return self.name is None and self.data is None and self.state in _MAY_BE_BROKEN
        if head[0] is None or (
            self.state is not None and head[0] != self.state and not self._is_unreadable(head[0])
        ):
            return False
        if self.name is not None and head[1] != self.name:
            return False
        return self.data is None or _has_data(head[2], self.data)

    def _is_unreadable(self, state: str) -> bool:
        return self.state is JobState.UNKNOWN and JobState.read(state) is JobState.UNKNOWN


def get_jobs(
    queue: QueueKeys,
    filter_: JobFilter,
    span: range,
    *,
    exclude_data: bool = False,
    newest_first: bool = False,
) -> Op[list[Job]]:
    """The matching jobs, restricted to a range of positions."""
    if newest_first and filter_.state not in SORTED:
        raise ConfigurationError(
            "newest_first needs the state completed, failed, delayed, prioritized or suspended"
        )
    if span.start < 0 or span.stop < span.start:
        raise ConfigurationError("offset and limit must not be negative")
    found = yield from find(queue, filter_, span, newest_first=newest_first)
    return (yield from read_jobs(queue, found, exclude_data=exclude_data))


def search(
    queue: QueueKeys, filter_: JobFilter, limit: int, max_examined: int | None, *, exclude_data: bool = False
) -> Op[FoundJobs]:
    """The first matching jobs among about ``max_examined`` examined ones; None examines all."""
    check_bounds(limit, max_examined)
    ids, is_partial = yield from find_bounded(queue, filter_, range(limit), max_examined)
    found = FoundJobs((yield from read_jobs(queue, ids, exclude_data=exclude_data)))
    found.is_partial = is_partial
    return found


def tagged(
    queue: QueueKeys, tag: str, span: range, now_ms: int, *, exclude_data: bool = False
) -> Op[TaggedJobs]:
    """Some of the jobs with a tag, those that have had it longest first."""
    total, ids = yield from tagged_ids(queue, tag, span.start, len(span), now_ms)
    found = TaggedJobs((yield from read_jobs(queue, ids, exclude_data=exclude_data)))
    found.total = total
    return found


def scan_jobs(
    queue: QueueKeys, filter_: JobFilter, cursor: str, *, exclude_data: bool = False
) -> Op[JobPage]:
    """Scan about a thousand keys."""
    if not cursor.isdigit():
        raise ConfigurationError("the cursor must be the cursor of a page, or '0'")
    following, ids = yield from ask(reads.scan_page(queue, cursor, "job", 2 * PAGE))
    kept = yield from keep(queue, [job_id for job_id in ids if ":" not in job_id], filter_)
    return JobPage((yield from read_jobs(queue, kept, exclude_data=exclude_data)), following)


def counts(
    queue: QueueKeys, now_ms: int, *, indexed_only: bool = False, max_examined: int | None = MAX_EXAMINED
) -> Op[JobCounts]:
    """How many jobs are in each state; examines about ``max_examined`` jobs for those that wait for others.

    In a broadcast queue, the messages not delivered to the slowest subscription count as waiting.
    """
    check_bounds(0, max_examined)
    names: Sequence[KeyName] = ("stream", "lifo", "priority", "scheduled", "completed", "failed", "suspended")
    calls: list[Call[Any]] = [reads.length(queue, name) for name in names]
    *sizes, arrays = yield from ask_all([*calls, open_arrays(queue)])
    stream, lifo, priority, scheduled, completed, failed, suspended = sizes
    groups = yield from subscriptions.groups(queue)
    held = yield from subscriptions.held(queue, groups)
    ready = max(stream - held, 0)
    if subscriptions.of(groups):  # entries stay after a subscription has handled them
        ready = yield from subscriptions.waiting(queue, groups, max_examined)
    listed = yield from ask(reads.list_active(queue))
    prioritized = yield from _prioritized(queue)
    found = JobCounts()
    found.elements = yield from count_elements(queue, arrays, now_ms)
    found |= {
        JobState.WAITING: ready + lifo + priority,
        JobState.ACTIVE: held + listed,
        JobState.DELAYED: max(scheduled - prioritized, 0),
        JobState.PRIORITIZED: prioritized,
        JobState.SUSPENDED: suspended,
        JobState.COMPLETED: completed,
        JobState.FAILED: failed,
    }
    if not indexed_only:
        partial = []
        for state in (JobState.WAITING_CHILDREN, JobState.GROUP_WAITING):
            ids, is_partial = yield from find_bounded(queue, JobFilter(state), range(2**53), max_examined)
            found[state] = len(ids)
            partial += [state] if is_partial else []
        found.at_least = frozenset(partial)
    return found


def states(queue: QueueKeys, job_ids: Sequence[str]) -> Op[list[JobState | None]]:
    """The state of each of these jobs; None for a missing job, ``UNKNOWN`` for an unreadable one."""
    found: list[JobState | None] = []
    for some in _slices(job_ids, PAGE):
        for head in (yield from each(reads.heads(queue, some, ("state",)))):
            if isinstance(head, ProtocolError):
                found.append(JobState.UNKNOWN)
            else:
                found.append(None if head[0] is None else JobState.read(head[0]))
    return found


def active_count(queue: QueueKeys) -> Op[int]:
    """How many jobs workers hold, and how many elements of arrays they run."""
    groups = yield from subscriptions.groups(queue)
    held = yield from subscriptions.held(queue, groups)
    arrays = yield from ask(open_arrays(queue))
    elements = yield from count_elements(queue, arrays, 0)
    return held + elements.running + (yield from ask(reads.list_active(queue)))


def pages(queue: QueueKeys, state: JobState | None) -> Callable[[PagePosition | None], PageRead]:
    """The function that reads the next page of candidates for a state; start with None."""
    if state in SORTED:
        return lambda at: sorted_step(queue, SORTED[state], at or 0, newest_first=False)
    steps = {
        JobState.WAITING: _waiting_step,
        JobState.ACTIVE: _active_step,
        JobState.GROUP_WAITING: _group_step,
    }
    step = steps.get(state, _scan_step) if state else _scan_step
    return lambda at: step(queue, at)


def find(queue: QueueKeys, filter_: JobFilter, span: range, *, newest_first: bool = False) -> Op[list[str]]:
    """The ids of the matching jobs, restricted to a range of positions."""
    ids, _ = yield from find_bounded(queue, filter_, span, None, newest_first=newest_first)
    return ids


def find_bounded(
    queue: QueueKeys, filter_: JobFilter, span: range, max_examined: int | None, *, newest_first: bool = False
) -> Op[tuple[list[str], bool]]:
    """The result of ``find``, and whether it stopped at its limit."""
    step = pages(queue, filter_.state)
    if newest_first and filter_.state:
        name = SORTED[filter_.state]

        def step(at: PagePosition | None) -> PageRead:
            return sorted_step(queue, name, at or 0, newest_first=True)

    seen: set[str] = set()
    found: list[str] = []
    at: PagePosition | None = None
    looked = 0
    while len(found) < span.stop:
        if max_examined is not None and looked >= max_examined:
            return found[span.start : span.stop], True
        ids, at = yield from step(at)
        looked += max(len(ids), EMPTY_PAGE)
        fresh = [job_id for job_id in dict.fromkeys(ids) if job_id not in seen]
        seen.update(fresh)
        found += yield from keep(queue, fresh, filter_)
        if at is None:
            break
    return found[span.start : span.stop], False


def keep(queue: QueueKeys, ids: Sequence[str], filter_: JobFilter) -> Op[list[str]]:
    """The matching jobs among these."""
    fields: Sequence[JobField] = ("state", "name") if filter_.data is None else ("state", "name", "data")
    heads = yield from each(reads.heads(queue, ids, fields))
    return [job_id for job_id, head in zip(ids, heads, strict=True) if filter_.has(head)]


def read_jobs(queue: QueueKeys, ids: Sequence[str], *, exclude_data: bool) -> Op[list[Job]]:
    """The jobs with these ids; omits jobs that have been removed."""
    jobs: list[Job] = []
    for some in _slices(ids, READ):
        rows = yield from each([job_fields(queue, job_id, with_payload=not exclude_data) for job_id in some])
        for job_id, fields in zip(some, rows, strict=True):
            if isinstance(fields, ProtocolError):  # its key is not a hash
                jobs.append(Job.from_wire(queue.queue, {"id": job_id}, lenient=True))
            elif "state" in fields:
                jobs.append(Job.from_wire(queue.queue, {"id": job_id, **fields}, lenient=True))
    return jobs


def each(calls: Iterable[Call[T]]) -> Op[list[T | ProtocolError]]:
    """The replies, with an error in place of each unreadable one."""
    found: list[T | ProtocolError] = []
    for reply in (yield from ask_each(calls)):
        if isinstance(reply, GlideMQError) and not isinstance(reply, ProtocolError):
            raise reply
        found.append(reply)
    return found


def sorted_step(
    queue: QueueKeys, name: KeyName, at: int, *, newest_first: bool
) -> Op[tuple[list[str], int | None]]:
    """A page of a sorted set from a rank on, and the rank of the next page."""
    ids = yield from ask(reads.sorted_ids(queue.key(name), at, PAGE, newest_first=newest_first))
    # A retry of a broadcast message is listed as `<job>||<subscription>`.
    return [member.partition("||")[0] for member in ids], at + len(ids) if len(ids) == PAGE else None


def _waiting_step(queue: QueueKeys, at: PagePosition | None) -> PageRead:
    """In the order in which workers take jobs: priority list, LIFO list, stream."""
    place: KeyName = at[0] if at else "priority"
    if place != "stream":
        first: int = at[1] if at else 0
        ids = yield from ask(reads.list_ids(queue, place, first, PAGE))
        if len(ids) == PAGE:
            return ids, (place, first + PAGE)
        return ids, ("lifo", 0) if place == "priority" else ("stream", "-")
    entries = yield from ask(reads.stream_page(queue, str(at[1]) if at else "-", PAGE))
    following = ("stream", f"({entries[-1][0]}") if len(entries) == PAGE else None
    return [job_id for _, job_id in entries if job_id], following


def _active_step(queue: QueueKeys, at: PagePosition | None) -> PageRead:
    """The stream entries that workers hold, by group; slices of arrays; all jobs, if any came from a list."""
    place, where = at or ("stream", ("-", [group.name for group in (yield from subscriptions.groups(queue))]))
    if place == "scan":
        return (yield from _scan_step(queue, at))
    start, names = where
    if names:
        entries = yield from ask(reads.pending_page(queue, start, PAGE, names[0]))
        ids = yield from subscriptions.held_jobs(queue, entries)
        is_full = len(entries) == PAGE
        return ids, ("stream", (f"({entries[-1]}", names) if is_full else ("-", names[1:]))
    listed = yield from ask(reads.list_active(queue))
    slices = yield from slice_ids(queue)
    return slices, ("scan", "0") if listed else None


def _scan_step(queue: QueueKeys, at: PagePosition | None) -> PageRead:
    cursor = at[1] if at else "0"
    following, ids = yield from ask(reads.scan_page(queue, cursor, "job", 2 * PAGE))
    return [job_id for job_id in ids if ":" not in job_id], ("scan", following) if following != "0" else None


def _group_step(queue: QueueKeys, at: PagePosition | None) -> PageRead:
    """The parked jobs of each ordering key."""
    cursor, groups = at or ("0", None)
    if not groups:
        cursor, keys = yield from ask(reads.ordering_keys_page(queue, cursor, READ))
        groups = [(key, 0) for key in keys]
    members = yield from ask_all(
        [reads.sorted_ids(queue.parked(key), first, PAGE, newest_first=False) for key, first in groups]
    )
    rest = [
        (key, first + PAGE) for (key, first), ids in zip(groups, members, strict=True) if len(ids) == PAGE
    ]
    ids = [job_id for some in members for job_id in some]
    return ids, (cursor, rest) if rest or cursor != "0" else None


def _prioritized(queue: QueueKeys) -> Op[int]:
    """The number of jobs that wait by priority: their scores contain no time, only the priority.

    A page of scores counts all priorities in it except the last, which may continue on the next page.
    """
    total, score = 0, SHIFT
    for _ in range(MAX_CLASSES):
        found = yield from ask(reads.scheduled_scores(queue, score, PAGE))
        scores = [int(some) for some in found if math.isfinite(some)]
        if len(found) < PAGE:
            return total + sum(some % SHIFT == 0 for some in scores)
        if not scores:
            break
        last = scores[-1] // SHIFT * SHIFT
        total += sum(some % SHIFT == 0 for some in scores if some < last)
        total += yield from ask(reads.with_score(queue, last))
        score = last + SHIFT
    return total


def check_bounds(limit: int, max_examined: int | None) -> None:
    """Refuse limits that are not whole numbers of at least 0."""
    for name, value in (("limit", limit), ("max_examined", max_examined)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ConfigurationError(f"{name} must be a whole number of at least 0, got {described(value)}")


def _has_data(text: str | None, filter_: Mapping[str, JsonLike]) -> bool:
    try:
        value = decode(text, where="data")
    except CodecError:
        return False
    return isinstance(value, dict) and all(
        key in value and value[key] == part for key, part in filter_.items()
    )


def _slices(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def queue_names(prefix: str) -> Op[list[str]]:
    """The queues below a prefix that ever had a job or a worker."""
    start, names, cursor = f"{prefix}:{{", set[str](), "0"
    while True:
        pattern = reads.escaped(start) + "*"
        cursor, keys = yield from ask(reads.scan_keys(pattern, cursor, 2 * PAGE))
        for key in keys:
            name, mark, _ = key.removeprefix(start).partition("}:")
            if mark and is_queue_name(name):  # others cannot be our queues
                names.add(name)
        if cursor == "0":
            return sorted(names)
