"""The jobs of queues in parts: by the index of each state, or by a scan of the keys for the other states.

The hash of a job determines its state, in whichever index it was found. A job whose state does not change
during the read is in exactly one part; a job whose state changes may be in several parts, or in none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from glidemq_orchestrate.errors import GlideMQError, ProtocolError
from glidemq_orchestrate.jobs import job_hash, pages
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.spark.source.partitions.part import (
    ALL_TIMES,
    At,
    Span,
    Times,
    count_between,
    cut_sorted,
    cut_stream,
    page,
)
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys

QUEUES_PER_TRIP: Final = 100
FIELDS: Final[tuple[JobField, ...]] = (
    "state", "name", "timestamp", "processedOn", "finishedOn", "failedReason", "attemptsMade", "maxAttempts",
    "stalledCount", "progress", "priority", "groupKey", "orderingKey", "delay", "expireAt", "gmo:token",
    "gmo:flow", "gmo:node", "schedulerName", "parentQueue", "parentId", "revoked",
)  # fmt: skip
PAYLOAD: Final[tuple[JobField, ...]] = ("data", "returnvalue")
ENDED: Final = frozenset({JobState.COMPLETED, JobState.FAILED})
STATES: Final = frozenset(JobState) - {JobState.SKIPPED}
UNINDEXED: Final = frozenset({JobState.WAITING_CHILDREN, JobState.GROUP_WAITING, JobState.UNKNOWN})
_PLACES: Final[Mapping[KeyName, frozenset[JobState]]] = {
    "completed": frozenset({JobState.COMPLETED}),
    "failed": frozenset({JobState.FAILED}),
    "suspended": frozenset({JobState.SUSPENDED}),
    "scheduled": frozenset({JobState.DELAYED, JobState.PRIORITIZED}),
    "stream": frozenset({JobState.WAITING, JobState.ACTIVE}),
    "lifo": frozenset({JobState.WAITING}),
    "priority": frozenset({JobState.WAITING}),
}
"""Where jobs of these states are found."""

Row: TypeAlias = tuple[str, str, Mapping[str, str]]
"""Queue, job id and stored fields of a job; no fields if the stored value is not a job."""


@dataclass(frozen=True, slots=True)
class WantedJobs:
    """The selected jobs. ``finished``: only jobs that ended in this time, unless it is unlimited."""

    states: frozenset[JobState] = STATES
    finished: Times = ALL_TIMES

    @property
    def those(self) -> frozenset[JobState]:
        """The states that jobs of this kind can have."""
        return self.states if self.finished.is_all else self.states & ENDED


@dataclass(frozen=True, slots=True)
class JobSpan:
    """The jobs of a queue in one index, in these states; without a span, the jobs that only a scan finds.

    Attributes:
        from_lists: For a scan: the queues whose active jobs it finds, as some of them came from a list.
    """

    queue: str
    states: frozenset[JobState]
    span: Span | None = None
    queues: tuple[str, ...] = ()
    from_lists: frozenset[str] = field(default_factory=frozenset)

    @property
    def size(self) -> int:
        """The approximate number of jobs."""
        return self.span.size if self.span else 0


def plan(prefix: str, queues: Sequence[str], wanted: WantedJobs, size: int) -> Op[list[JobSpan]]:
    """The parts in which the jobs of queues can be read, about ``size`` jobs each."""
    found: list[JobSpan] = []
    from_lists: set[str] = set()
    for first in range(0, len(queues), QUEUES_PER_TRIP):
        some = [QueueKeys(prefix, queue) for queue in queues[first : first + QUEUES_PER_TRIP]]
        if JobState.ACTIVE in wanted.those:
            listed = yield from ask_all([pages.list_active(queue) for queue in some])
            from_lists |= {queue.queue for queue, count in zip(some, listed, strict=True) if count}
        for name, states in _PLACES.items():
            if states & wanted.those:
                found += yield from _of_place(some, name, wanted, size, from_lists)
    unindexed = wanted.those & UNINDEXED
    if unindexed or from_lists:
        scanned = tuple(queues) if unindexed else tuple(sorted(from_lists))
        found.append(JobSpan("", unindexed, None, scanned, frozenset(from_lists)))
    return found


def _of_place(
    queues: Sequence[QueueKeys], name: KeyName, wanted: WantedJobs, size: int, from_lists: Collection[str]
) -> Op[list[JobSpan]]:
    found: list[JobSpan] = []
    times = wanted.finished if _PLACES[name] <= ENDED else ALL_TIMES
    if times.is_all:
        lengths = yield from ask_all([pages.length(queue, name) for queue in queues])
    else:
        counting = [count_between(queue.key(name), *times.bounds) for queue in queues]
        lengths = yield from ask_all(counting)
    for queue, length in zip(queues, lengths, strict=True):
        states = _PLACES[name] & wanted.those
        if queue.queue in from_lists:
            states -= {JobState.ACTIVE}
        if not length or not states:
            continue
        if name in ("lifo", "priority"):
            spans = [Span("list", queue.key(name), size=length)]
        elif name == "stream":
            spans = yield from cut_stream(queue.key(name), ALL_TIMES, length, size)
        else:
            spans = yield from cut_sorted(queue.key(name), times, length, size)
        found += [JobSpan(queue.queue, states, span) for span in spans]
    return found


Ids: TypeAlias = list[tuple[str, str]]
Place: TypeAlias = At | str


def ids(prefix: str, part: JobSpan, at: Place | None) -> Op[tuple[Ids, Place | None]]:
    """The next page of queues and ids of jobs that may be of the part, and where to continue."""
    if part.span is None:
        return (yield from _scanned(prefix, part, str(at or "0")))
    found, following = yield from page(part.span, at if isinstance(at, At) else None)
    # A retry of a broadcast message is listed as `<job>||<subscription>`.
    unique = dict.fromkeys(member.partition("||")[0] for member in found)
    if part.span.kind == "stream" and JobState.WAITING not in part.states:  # most of them wait
        unique = dict.fromkeys((yield from _of_states(prefix, part, list(unique))))
    return [(part.queue, job_id) for job_id in unique], following


def read(prefix: str, part: JobSpan, wanted: Ids, *, with_payload: bool) -> Op[list[Row]]:
    """The jobs with these ids that belong to the part; others, and those that have moved, are omitted."""
    names = FIELDS + PAYLOAD if with_payload else FIELDS
    asking = [job_hash.get_some(QueueKeys(prefix, queue), job_id, names, list) for queue, job_id in wanted]
    found: list[Row] = []
    for (queue, job_id), reply in zip(wanted, (yield from ask_each(asking)), strict=True):
        fields = _fields(names, reply)
        if fields is None and JobState.UNKNOWN in part.states:
            found.append((queue, job_id, {}))
        elif fields and _is_of(part, queue, fields["state"]):
            found.append((queue, job_id, fields))
    return found


def _fields(names: Sequence[str], reply: list[str | None] | GlideMQError) -> dict[str, str] | None:
    """The fields of a job; empty if there is none, None if the stored value is not a job.

    Raises:
        GlideMQError: The call has failed for another reason.
    """
    if isinstance(reply, ProtocolError):
        return None
    if isinstance(reply, GlideMQError):
        raise reply
    if reply[0] is None:
        return {}
    return {name: value for name, value in zip(names, reply, strict=True) if value is not None}


def _is_of(part: JobSpan, queue: str, state: str) -> bool:
    now = JobState.read(state)
    return now in part.states or (now is JobState.ACTIVE and queue in part.from_lists)


def _of_states(prefix: str, part: JobSpan, job_ids: Sequence[str]) -> Op[list[str]]:
    queue = QueueKeys(prefix, part.queue)
    asking: list[Call[list[str | None]]] = pages.heads(queue, job_ids, ("state",))
    replies = yield from ask_each(asking)
    return [
        job_id
        for job_id, reply in zip(job_ids, replies, strict=True)
        if (fields := _fields(("state",), reply)) and _is_of(part, part.queue, fields["state"])
    ]


def _scanned(prefix: str, part: JobSpan, cursor: str) -> Op[tuple[Ids, Place | None]]:
    """The jobs in states without an index, from about a thousand keys."""
    one = part.queues[0] if len(part.queues) == 1 else None
    start = f"{prefix}:{{"
    middle = f"{pages.escaped(one)}}}" if one is not None else "*}"
    pattern = f"{pages.escaped(start)}{middle}:job:*"
    following, keys = yield from ask(pages.scan_keys(pattern, cursor, 1000))
    queues, found = frozenset(part.queues), Ids()
    for key in keys:
        queue, mark, job_id = key.removeprefix(start).partition("}:job:")
        if mark and queue in queues and ":" not in job_id:
            found.append((queue, job_id))
    asking = [
        job_hash.get_some(QueueKeys(prefix, queue), job_id, ("state",), list) for queue, job_id in found
    ]
    kept = Ids()
    for (queue, job_id), reply in zip(found, (yield from ask_each(asking)), strict=True):
        fields = _fields(("state",), reply)
        is_broken = fields is None and JobState.UNKNOWN in part.states
        if is_broken or (fields and _is_of(part, queue, fields["state"])):
            kept.append((queue, job_id))
    return kept, following if following != "0" else None
