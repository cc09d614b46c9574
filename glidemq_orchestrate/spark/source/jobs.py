"""The table of jobs: in parts by the index of each state, or by a scan of the keys for the other states.

The hash of a job determines its state, in whichever index it was found. A job whose state does not change
during the read is in exactly one part; a job whose state changes may be in several parts, or in none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.errors import CodecError, GlideMQError, ProtocolError
from glidemq_orchestrate.jobs import job_hash, pages
from glidemq_orchestrate.jobs.attempt import worker_of
from glidemq_orchestrate.jobs.job import START_FIELDS, started
from glidemq_orchestrate.jobs.job_hash import FIELD_FLOW, FIELD_NODE, JobField
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues.listing import queue_names
from glidemq_orchestrate.shards import members_of
from glidemq_orchestrate.spark.source.options import RetryingClient
from glidemq_orchestrate.spark.source.part import (
    ALL_TIMES,
    Position,
    Span,
    count_between,
    cut_sorted,
    cut_stream,
    grouped,
    page,
)
from glidemq_orchestrate.spark.source.scan import ENDED_JOBS, Scan
from glidemq_orchestrate.wire.call import Op, ask, ask_all, ask_each, parts
from glidemq_orchestrate.wire.codec import decode, encode, readable
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys, read_generation
from glidemq_orchestrate.wire.stored import number

QUEUES_PER_TRIP: Final = 100
FIELDS: Final[tuple[JobField, ...]] = (
    "state", "name", "timestamp", "processedOn", "finishedOn", "failedReason", "attemptsMade", "maxAttempts",
    "stalledCount", "progress", "priority", "groupKey", "orderingKey", "delay", "expireAt", "gmo:token",
    "gmo:flow", "gmo:node", "schedulerName", "gmo:schedule", "parentQueue", "parentId",
    "revoked",
)  # fmt: skip
PAYLOAD: Final[tuple[JobField, ...]] = ("data", "returnvalue")
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

Row: TypeAlias = Sequence[Any]
StoredJob: TypeAlias = tuple[str, str, Mapping[str, str]]
"""Queue, job id and stored fields of a job; no fields if the stored value is not a job."""
Ids: TypeAlias = list[tuple[str, str]]
"""Queues and ids of jobs."""
FIRST: Final = 16
MAX: Final = 500
PAGE_CHARACTERS: Final = 16_000_000


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


Part: TypeAlias = tuple[JobSpan, ...]


def plan(client: RetryingClient, scan: Scan) -> list[Part]:
    """The parts in which the jobs are read, with small parts combined."""
    queues = queues_of(client, scan.queues)
    found = client.ask(lambda: _spans(client.prefix, queues, scan))
    return list(grouped(found, [span.size for span in found], scan.rows))


def rows(client: RetryingClient, part: Part, scan: Scan) -> Iterator[Sequence[Row]]:
    """The rows of a part, in batches with payloads of about 16 MB."""
    seen: set[int] = set()
    for span in part:
        pace = Pace()
        for found in client.pages(partial(_ids, client.prefix, span)):
            if span.span is None:  # a scan may return a key twice
                found = [one for one in found if hash(one) not in seen]  # noqa: PLW2901
                seen.update(map(hash, found))
            yield from _read(client, span, found, pace, with_payload=scan.payload)


class Pace:
    """The number of jobs per batch: few at first, then as many as have about ``PAGE_CHARACTERS``."""

    def __init__(self) -> None:
        self.count = FIRST

    def note(self, read: int, characters: int) -> None:
        """Record how many characters a batch of jobs had."""
        fits = read * PAGE_CHARACTERS // max(characters, 1)
        self.count = max(1, min(MAX, self.count * 4, fits))


def queues_of(client: RetryingClient, selected: Sequence[str] | None) -> Sequence[str]:
    """The queues to read: the selected queues with their shards, or all."""
    if selected is not None:
        return client.ask(lambda: members_of([QueueKeys(client.prefix, name) for name in selected]))
    return client.ask(lambda: queue_names(client.prefix))


def _read(
    client: RetryingClient, span: JobSpan, ids: Ids, pace: Pace, *, with_payload: bool
) -> Iterator[list[Row]]:
    first = 0
    while first < len(ids):
        some = ids[first : first + pace.count]
        first += len(some)
        jobs = client.ask(lambda: _read_stored(client.prefix, span, some, with_payload=with_payload))  # noqa: B023
        size = sum(len(fields.get(name, "")) for _, _, fields in jobs for name in PAYLOAD)
        pace.note(len(some), size)
        if jobs:
            yield [_row(queue, job_id, fields, with_payload=with_payload) for queue, job_id, fields in jobs]


def _row(queue: str, job_id: str, fields: Mapping[str, str], *, with_payload: bool) -> Row:
    get = fields.get
    state = JobState.read(get("state"))
    broken = state is JobState.UNKNOWN
    data = result = None
    if with_payload:
        try:
            data, result = json_text(get("data")), json_text(get("returnvalue"))
        except CodecError:
            broken = True
    flow, generation = read_generation(get(FIELD_FLOW) or "")
    return (
        text(queue), text(job_id), text(get("name", "")), state.value, data, result,
        text(get("failedReason")), count(get("attemptsMade")), max(count(get("maxAttempts")), 1),
        count(get("stalledCount")), progress_text(get("progress")), count(get("priority")),
        text(get("groupKey") or get("orderingKey")), number(get("delay")), ms(get("timestamp")),
        ms(started(*map(get, START_FIELDS))), ms(get("finishedOn")), ms(get("expireAt")),
        worker_of(get("gmo:token", "")),
        text(flow), generation if flow else None, text(get(FIELD_NODE)),
        text(get("gmo:schedule") or get("schedulerName")), text(get("parentQueue")), text(get("parentId")),
        get("revoked") == "1", broken,
    )  # fmt: skip


def text(stored: str | None) -> str | None:
    """A stored text in a form that Arrow accepts; None if it is empty."""
    return readable(stored) if stored else None


def ms(stored: str | None) -> int | None:
    """A stored time in milliseconds; None if it is not a time."""
    return number(stored) or None


def count(stored: str | None) -> int:
    """A stored count, within 32 bits."""
    return max(min(number(stored), 2**31 - 1), -(2**31))


def json_text(stored: str | None) -> str | None:
    """Stored JSON, unpacked; None if it is absent.

    Raises:
        DecodeError: The text is not JSON.
    """
    if not stored:
        return None
    value = decode(stored, where="data")
    if not stored.startswith("gz:"):
        return stored
    return encode(value, where="data")


def progress_text(stored: str | None) -> str | None:
    """Stored progress as JSON: a text that is not JSON becomes a JSON string."""
    if not stored:
        return None
    try:
        return json_text(stored)
    except CodecError:
        return encode(readable(stored), where="progress")


def _spans(prefix: str, queues: Sequence[str], scan: Scan) -> Op[list[JobSpan]]:
    """The parts in which the jobs of queues can be read, about ``scan.rows`` jobs each."""
    found: list[JobSpan] = []
    from_lists: set[str] = set()
    for some in parts([QueueKeys(prefix, queue) for queue in queues], QUEUES_PER_TRIP):
        if JobState.ACTIVE in scan.job_states:
            listed = yield from ask_all([pages.list_active(queue) for queue in some])
            from_lists |= {queue.queue for queue, count in zip(some, listed, strict=True) if count}
        for name, states in _PLACES.items():
            if states & scan.job_states:
                found += yield from _of_place(some, name, scan, from_lists)
    unindexed = scan.job_states & UNINDEXED
    if unindexed or from_lists:
        scanned = tuple(queues) if unindexed else tuple(sorted(from_lists))
        found.append(JobSpan("", unindexed, None, scanned, frozenset(from_lists)))
    return found


def _of_place(
    queues: Sequence[QueueKeys], name: KeyName, scan: Scan, from_lists: Collection[str]
) -> Op[list[JobSpan]]:
    found: list[JobSpan] = []
    times = scan.times if _PLACES[name] <= ENDED_JOBS else ALL_TIMES
    if times.is_all:
        lengths = yield from ask_all([pages.length(queue, name) for queue in queues])
    else:
        counting = [count_between(queue.key(name), *times.bounds) for queue in queues]
        lengths = yield from ask_all(counting)
    for queue, length in zip(queues, lengths, strict=True):
        states = _PLACES[name] & scan.job_states
        if queue.queue in from_lists:
            states -= {JobState.ACTIVE}
        if not length or not states:
            continue
        if name in ("lifo", "priority"):
            spans = [Span("list", queue.key(name), size=length)]
        elif name == "stream":
            spans = yield from cut_stream(queue.key(name), ALL_TIMES, length, scan.rows)
        else:
            spans = yield from cut_sorted(queue.key(name), times, length, scan.rows)
        found += [JobSpan(queue.queue, states, span) for span in spans]
    return found


def _ids(prefix: str, part: JobSpan, at: Position | str | None) -> Op[tuple[Ids, Position | str | None]]:
    """The next page of queues and ids of jobs that may be of the part, and where to continue."""
    if part.span is None:
        return (yield from _scan(prefix, part, str(at or "0")))
    found, following = yield from page(part.span, at if isinstance(at, Position) else None)
    # A retry of a broadcast message is listed as `<job>||<subscription>`.
    unique = dict.fromkeys(member.partition("||")[0] for member in found)
    if part.span.kind == "stream" and JobState.WAITING not in part.states:  # most of them wait
        unique = dict.fromkeys((yield from _of_states(prefix, part, list(unique))))
    return [(part.queue, job_id) for job_id in unique], following


def _read_stored(prefix: str, part: JobSpan, ids: Ids, *, with_payload: bool) -> Op[list[StoredJob]]:
    """The jobs with these ids that belong to the part; others, and those that have moved, are omitted."""
    names = FIELDS + PAYLOAD if with_payload else FIELDS
    asking = [job_hash.get_some(QueueKeys(prefix, queue), job_id, names, list) for queue, job_id in ids]
    found: list[StoredJob] = []
    for (queue, job_id), reply in zip(ids, (yield from ask_each(asking)), strict=True):
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
    replies = yield from ask_each(pages.heads(queue, job_ids, ("state",)))
    return [
        job_id
        for job_id, reply in zip(job_ids, replies, strict=True)
        if (fields := _fields(("state",), reply)) and _is_of(part, part.queue, fields["state"])
    ]


def _scan(prefix: str, part: JobSpan, cursor: str) -> Op[tuple[Ids, str | None]]:
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
