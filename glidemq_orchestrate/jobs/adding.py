"""Adds jobs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Final, Unpack

from glidemq_orchestrate.errors import (
    InvalidJob,
    JobNotFound,
    JobSkipped,
    ProtocolError,
)
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.foundation.values import JOB_NAME
from glidemq_orchestrate.jobs.job import JobId, job_exists
from glidemq_orchestrate.jobs.option_values import Deduplication, JobRef
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions, OptionKeywords, with_keywords
from glidemq_orchestrate.jobs.tags import tag_new_jobs
from glidemq_orchestrate.shards import read_shards
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, command, function, parts
from glidemq_orchestrate.wire.codec import JsonLike, encode, pack
from glidemq_orchestrate.wire.keys import QueueKeys

CHUNK_JOBS: Final = 100
CHUNK_CHARACTERS: Final = 1_000_000
NOT_ADDED: Final = ("skipped", "duplicate")
BATCH_CALLS: Final = 500
BATCH_CHARACTERS: Final = 8_000_000


def _milli(value: float) -> int:
    """Thousandths, the unit of tokens and costs on the wire; halves are rounded up, as in glide-mq."""
    return math.floor(value * 1000 + 0.5)


@dataclass(slots=True)
class _Run:
    """Consecutive jobs that differ only in their data."""

    name: str
    options: JobOptions
    data: list[str]


def add_calls(
    queue: QueueKeys, jobs: Iterable[tuple[NewJob, str]], now_ms: int
) -> Iterator[tuple[Call[list[str | None]], int]]:
    """The calls that add jobs with their encoded data, in order, each with its number of characters.

    Their replies are the ids; an id is None if the job already existed. A call adds at most 100 plain jobs of
    about 1 MB in total, for which the server needs less than 5 ms.
    """
    runs: list[_Run] = []
    run: _Run | None = None
    count = size = 0
    for job, data in jobs:
        name, options, characters = job.name, job.options, len(data)
        is_plain = (run is not None and options is run.options) or _is_plain(options)
        if runs and (not is_plain or count == CHUNK_JOBS or size + characters > CHUNK_CHARACTERS):
            yield _add_runs(queue, runs, now_ms), size
            runs, run, count, size = [], None, 0, 0
        if not is_plain:
            yield _add_one(queue, EncodedJob(name, data, options), now_ms), characters
            continue
        if run is None or options is not run.options or name != run.name or options.job_id is not None:
            run = _Run(name, options, [])
            runs.append(run)
        run.data.append(data)
        count, size = count + 1, size + characters
    if runs:
        yield _add_runs(queue, runs, now_ms), size


def _is_plain(options: JobOptions) -> bool:
    """Whether ``gmo_add_jobs`` can add the job."""
    return options.deduplication is None and options.ordering is None and options.parent is None


def _add_one(queue: QueueKeys, job: EncodedJob, now_ms: int) -> Call[list[str | None]]:
    if job.options.deduplication:
        call = dedup(queue, job.options.deduplication, job, now_ms)
    else:
        call = add_job_call(queue, job.name, job.data, job.options, now_ms)

    def decode(reply: Any) -> list[str | None]:
        job_id = call.decode(reply)
        return [None if job_id in NOT_ADDED else job_id]

    return Call(call.words, decode)


def _add_runs(queue: QueueKeys, runs: list[_Run], now_ms: int) -> Call[list[str | None]]:
    words: list[Word] = [now_ms]
    for run in runs:
        words += _head(run)
        words += run.data
    lengths = [len(run.data) for run in runs]

    def decode(reply: Any) -> list[str | None]:
        if not isinstance(reply, list) or len(reply) != len(lengths):
            raise ProtocolError("the reply of gmo_add_jobs does not have as many runs as the call")
        return [
            job_id for first, length in zip(reply, lengths, strict=True) for job_id in _ids(first, length)
        ]

    return function("gmo_add_jobs", [queue.key("id")], words, decode)


def _head(run: _Run) -> tuple[Word, ...]:
    """The arguments of a run before its data."""
    options = run.options
    return (
        run.name,
        options.to_wire(),
        options.attempts,
        milliseconds(options.delay),
        options.priority,
        milliseconds(options.ttl) if options.ttl else 0,
        int(options.lifo),
        _milli(options.cost) if options.cost else 0,
        options.job_id or "",
        len(run.data),
    )


def _ids(first: str, length: int) -> Iterable[str | None]:
    """The ids of a run, from its word in the reply."""
    if length == 1:
        return (None if first == "duplicate" else first,)
    start = int(first)
    return map(str, range(start, start + length))


@dataclass(frozen=True, slots=True, init=False)
class NewJob:
    """A job to add.

    Attributes:
        name: The handler that runs it.
        data: JSON, at most 1 MiB encoded.
        options: How it is run. Each option may also be given as a keyword, and then replaces that of
            ``options``: ``NewJob("clean", attempts=3)``.
    """

    name: str
    data: JsonLike = None
    options: JobOptions = DEFAULT_OPTIONS

    def __init__(
        self,
        name: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> None:
        _set_name(self, name)
        _set_data(self, data)
        _set_options(self, with_keywords(options, keywords) if keywords else options)


# For a frozen class, half the time of ``object.__setattr__``; many jobs are made at once.
_set_name, _set_data, _set_options = (vars(NewJob)[name].__set__ for name in ("name", "data", "options"))


def traced(new: NewJob, traceparent: str) -> NewJob:
    """The job with the caller's trace context, unless the job has one."""
    if not traceparent or new.options.traceparent:
        return new
    return replace(new, options=replace(new.options, traceparent=traceparent))


def add_job(queue: QueueKeys, new: NewJob, now_ms: int, *, packed: bool = False) -> Op[JobId]:
    """Check, encode and add one job."""
    [(_, data)] = encoded_jobs([new], packed=packed)
    moved = yield from _find_parents(queue, [new.options])
    job = EncodedJob(new.name, data, _with_parent(new, moved).options)
    options, mark = job.options, job.options.deduplication
    if options.tags and _is_plain(options):  # by our own function, with which every server lists its tags
        [job_id] = yield from ask(_add_runs(queue, [_Run(job.name, options, [job.data])], now_ms))
        word = job_id or "duplicate"
    elif mark is None:
        word = yield from ask(add_job_call(queue, job.name, job.data, options, now_ms))
    else:
        word = yield from ask(dedup(queue, mark, job, now_ms))
    if mark and word == "skipped":
        existing = yield from ask(deduplicated_job(queue, mark.id))
        raise JobSkipped(queue.queue, mark.id, existing)
    if word == "duplicate":
        raise InvalidJob(
            f"job id {options.job_id!r} already exists in queue {queue.queue}; nothing was added"
        )
    if not _is_plain(options):
        yield from tag_new_jobs(queue, [(word, options.tags)], now_ms)
    return JobId(word)


def add_many(
    queue: QueueKeys, jobs: Iterable[NewJob], now_ms: int, *, packed: bool = False
) -> Op[list[JobId | None]]:
    """Check and encode all jobs, then add them in order. Returns the ids, with None for jobs that existed."""
    return (yield from add_encoded(queue, encoded_jobs(jobs, packed=packed), now_ms))


def add_encoded(
    queue: QueueKeys, encoded: Sequence[tuple[NewJob, str]], now_ms: int
) -> Op[list[JobId | None]]:
    """Add encoded jobs in order; see ``add_many``."""
    options = {id(job.options): job.options for job, _ in encoded}.values()
    if moved := (yield from _find_parents(queue, options)):
        encoded = [(_with_parent(job, moved), text) for job, text in encoded]
        options = {id(job.options): job.options for job, _ in encoded}.values()
    ids: list[JobId | None] = []
    for calls in _batches(add_calls(queue, encoded, now_ms)):
        for found in (yield from ask_all(calls)):
            ids += found
    if not all(map(_is_plain, options)):
        tagged = [
            (job_id, job.options.tags)
            for job_id, (job, _) in zip(ids, encoded, strict=True)
            if job_id and not _is_plain(job.options)
        ]
        yield from tag_new_jobs(queue, tagged, now_ms)
    return ids


def encoded_jobs(jobs: Iterable[NewJob], *, packed: bool) -> list[tuple[NewJob, str]]:
    """Check the names of jobs and encode their data."""
    found: list[tuple[NewJob, str]] = []
    checked, where = object(), ""
    for job in jobs:
        if job.name is not checked:  # most have the same
            checked = JOB_NAME.check(job.name)
            where = f"data of job {checked}"
        text = encode(job.data, where=where)
        found.append((job, pack(text) if packed else text))
    return found


def _find_parents(queue: QueueKeys, options: Collection[JobOptions]) -> Op[dict[JobRef, JobRef]]:
    """Find the parents of new jobs; returns those that are in a shard of the queue that they name.

    Children of missing jobs are refused: a later job with that id would become their parent.

    Raises:
        JobNotFound: A parent is missing; nothing was added.
    """
    new = {JobRef(queue.queue, one.job_id) for one in options if one.job_id}
    parents = list({one.parent for one in options if one.parent} - new)
    moved: dict[JobRef, JobRef] = {}
    for page in parts(parents, BATCH_CALLS):
        found = yield from ask_all([job_exists(QueueKeys(queue.prefix, one.queue), one.id) for one in page])
        for parent in (one for one, exists in zip(page, found, strict=True) if not exists):
            there = yield from member_with(queue.prefix, parent)
            if there is None:
                raise JobNotFound(
                    f"no job {parent.id} in queue {parent.queue}, the parent of a new job: nothing was added"
                )
            moved[parent] = there
    return moved


def _with_parent(job: NewJob, moved: Mapping[JobRef, JobRef]) -> NewJob:
    parent = job.options.parent
    if parent is None or parent not in moved:
        return job
    return replace(job, options=replace(job.options, parent=moved[parent]))


def member_with(prefix: str, job: JobRef) -> Op[JobRef | None]:
    """A job in its queue, or in the shard of it that has the job; None if none has."""
    members = (yield from ask(read_shards(QueueKeys(prefix, job.queue)))).members()
    hits = yield from ask_all([job_exists(member, job.id) for member in members])
    return next((JobRef(member.queue, job.id) for member in compress(members, hits)), None)


def _batches(
    calls: Iterator[tuple[Call[list[Any]], int]],
) -> Iterator[list[Call[list[Any]]]]:
    """Calls in batches of bounded number and size."""
    batch: list[Call[list[Any]]] = []
    size = 0
    for call, characters in calls:
        if batch and (len(batch) == BATCH_CALLS or size + characters > BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(call)
        size += characters
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class EncodedJob:
    """A job in its encoded form."""

    name: str
    data: str
    options: JobOptions


def add_job_call(queue: QueueKeys, name: str, data: str, options: JobOptions, now_ms: int) -> Call[str]:
    """Create one job; idempotent only with a custom job id. Returns the id or ``duplicate``."""
    keys = [*queue.keys("id", "stream", "scheduled", "events"), *_parent_keys(queue, options)]
    return function("glidemq_addJob", keys, job_words(EncodedJob(name, data, options), now_ms), _added)


def dedup(queue: QueueKeys, deduplication: Deduplication, job: EncodedJob, now_ms: int) -> Call[str]:
    """Create one job unless a job has its deduplication id. Returns the id, ``duplicate`` or ``skipped``."""
    keys = [*queue.keys("dedup", "id", "stream", "scheduled", "events"), *_parent_keys(queue, job.options)]
    ttl = milliseconds(deduplication.ttl) if deduplication.ttl else 0
    words = (deduplication.id, ttl, deduplication.mode, *job_words(job, now_ms))
    return function("glidemq_dedup", keys, words, _added)


def deduplicated_job(queue: QueueKeys, deduplication_id: str) -> Call[str | None]:
    """The id of the job with a deduplication id."""

    def decode(reply: Any) -> str | None:
        return reply.rpartition(":")[0] or None if reply else None

    return command("HGET", queue.key("dedup"), deduplication_id, decode=decode)


def _added(reply: Any) -> str:
    """The id or word in the reply; raises an error for a refusal."""
    if str(reply).startswith("ERR:"):
        raise ProtocolError(f"job was refused: {reply}")
    return replies.text(reply)


def _parent_keys(queue: QueueKeys, options: JobOptions) -> list[str]:
    # Also for a parent in another queue, as the child may end before it is registered with the parent.
    parent = options.parent
    return [QueueKeys(queue.prefix, parent.queue).deps(parent.id)] if parent else []


def job_words(job: EncodedJob, now_ms: int) -> tuple[Word, ...]:
    """Arguments 1 to 19 of ``glidemq_addJob`` and of ``glidemq_dedup``."""
    options = job.options
    order, parent = options.ordering, options.parent
    limit, bucket = (order.rate_limit, order.token_bucket) if order else (None, None)
    return (
        job.name,
        job.data,
        options.to_wire(),
        now_ms,
        milliseconds(options.delay),
        options.priority,
        parent.id if parent else "",
        options.attempts,
        order.key if order else "",
        order.concurrency if order else 0,
        limit.max if limit else 0,
        milliseconds(limit.per) if limit else 0,
        _milli(bucket.capacity) if bucket else 0,
        _milli(bucket.refill_per_second) if bucket else 0,
        _milli(options.cost) if options.cost else 0,
        milliseconds(options.ttl) if options.ttl else 0,
        options.job_id or "",
        int(options.lifo),
        parent.queue if parent else "",
    )
