"""The rows of the table of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from glidemq_orchestrate.errors import CodecError
from glidemq_orchestrate.jobs.attempt import worker_of
from glidemq_orchestrate.jobs.job import START_FIELDS, started
from glidemq_orchestrate.jobs.job_hash import FIELD_FLOW, FIELD_NODE
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues.listing import queue_names
from glidemq_orchestrate.spark.source.options import Link
from glidemq_orchestrate.spark.source.partitions import jobs as ops
from glidemq_orchestrate.spark.source.partitions.jobs import Ids, JobSpan
from glidemq_orchestrate.spark.source.partitions.part import packed
from glidemq_orchestrate.spark.source.scan import Scan
from glidemq_orchestrate.wire.codec import decode, encode, readable
from glidemq_orchestrate.wire.keys import read_generation
from glidemq_orchestrate.wire.stored import number

FIRST: Final = 16
MAX: Final = 500
PAGE_CHARACTERS: Final = 16_000_000
Part: TypeAlias = tuple[JobSpan, ...]
Row: TypeAlias = Sequence[Any]


def plan(link: Link, wanted: Scan) -> list[Part]:
    """The parts in which the jobs are read, with small parts combined."""
    queues = queues_of(link, wanted)
    found = link.ask(lambda: ops.plan(link.prefix, queues, wanted.jobs, wanted.rows))
    return list(packed(found, [span.size for span in found], wanted.rows))


def rows(link: Link, part: Part, wanted: Scan) -> Iterator[Sequence[Row]]:
    """The rows of a part, in batches with payloads of about 16 MB."""
    seen: set[int] = set()
    for span in part:
        pace = Pace()
        for found in link.pages(partial(ops.ids, link.prefix, span)):
            if span.span is None:  # a scan may return a key twice
                found = [one for one in found if hash(one) not in seen]  # noqa: PLW2901
                seen.update(map(hash, found))
            yield from _read(link, span, found, pace, with_payload=wanted.payload)


class Pace:
    """The number of jobs per batch: few at first, then as many as have about ``PAGE_CHARACTERS``."""

    def __init__(self) -> None:
        self.count = FIRST

    def note(self, read: int, characters: int) -> None:
        """Record how many characters a batch of jobs had."""
        fits = read * PAGE_CHARACTERS // max(characters, 1)
        self.count = max(1, min(MAX, self.count * 4, fits))


def queues_of(link: Link, wanted: Scan) -> Sequence[str]:
    """The queues to read: the selected queues, or all."""
    if wanted.queues is not None:
        return wanted.queues
    return link.ask(lambda: queue_names(link.prefix))


def _read(link: Link, span: JobSpan, wanted: Ids, pace: Pace, *, with_payload: bool) -> Iterator[list[Row]]:
    first = 0
    while first < len(wanted):
        some = wanted[first : first + pace.count]
        first += len(some)
        jobs = link.ask(lambda: ops.read(link.prefix, span, some, with_payload=with_payload))  # noqa: B023
        size = sum(len(fields.get(name, "")) for _, _, fields in jobs for name in ops.PAYLOAD)
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
        text(flow), generation if flow else None, text(get(FIELD_NODE)), text(get("schedulerName")),
        text(get("parentQueue")), text(get("parentId")), get("revoked") == "1", broken,
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
