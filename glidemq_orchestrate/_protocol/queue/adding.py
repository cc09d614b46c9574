"""Add many jobs in few calls: which jobs share a call, and their ids from the reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._protocol.queue import jobs as job_calls
from glidemq_orchestrate._protocol.queue.jobs import EncodedJob
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs.bounds import milli, milliseconds
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.call import Call, Word, function
from glidemq_orchestrate.wire.keys import QueueKeys

CHUNK_JOBS: Final = 100
CHUNK_CHARACTERS: Final = 1_000_000
NOT_ADDED: Final = ("skipped", "duplicate")


@dataclass(slots=True)
class _Run:
    """Consecutive jobs that differ only in their data."""

    name: str
    options: JobOptions
    data: list[str]


def add_calls(
    queue: QueueKeys, jobs: Iterable[EncodedJob], now_ms: int
) -> Iterator[tuple[Call[list[str | None]], int]]:
    """The calls that add the jobs in order, with the number of characters of each; each returns the ids.

    An id is None for a job that existed before. A call of plain jobs has at most 100 of them and about
    1 MB: the server needs less than 5 ms for it.
    """
    runs: list[_Run] = []
    count = size = 0
    for job in jobs:
        is_plain = _is_plain(job.options)
        if runs and (not is_plain or count == CHUNK_JOBS or size + len(job.data) > CHUNK_CHARACTERS):
            yield _add_runs(queue, runs, now_ms), size
            runs, count, size = [], 0, 0
        if not is_plain:
            yield _add_one(queue, job, now_ms), len(job.data)
            continue
        last = runs[-1] if runs else None
        if last and last.options is job.options and last.name == job.name and job.options.job_id is None:
            last.data.append(job.data)
        else:
            runs.append(_Run(job.name, job.options, [job.data]))
        count, size = count + 1, size + len(job.data)
    if runs:
        yield _add_runs(queue, runs, now_ms), size


def _is_plain(options: JobOptions) -> bool:
    """Whether ``gmo_add_jobs`` can add the job."""
    return options.deduplication is None and options.ordering is None and options.parent is None


def _add_one(queue: QueueKeys, job: EncodedJob, now_ms: int) -> Call[list[str | None]]:
    if job.options.deduplication:
        call = job_calls.dedup(queue, job.options.deduplication, job, now_ms)
    else:
        call = job_calls.add_job(queue, job.name, job.data, job.options, now_ms)

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
            raise ProtocolError("the reply of gmo_add_jobs has another number of runs than the call")
        return [
            job_id for first, length in zip(reply, lengths, strict=True) for job_id in _ids(first, length)
        ]

    return function("gmo_add_jobs", [queue.key("id")], words, decode)


def _head(run: _Run) -> tuple[Word, ...]:
    """The arguments before the data of a run."""
    options = run.options
    return (
        run.name,
        options.to_wire(),
        options.attempts,
        milliseconds(options.delay),
        options.priority,
        milliseconds(options.ttl) if options.ttl else 0,
        int(options.lifo),
        milli(options.cost) if options.cost else 0,
        options.job_id or "",
        len(run.data),
    )


def _ids(first: str, length: int) -> Iterable[str | None]:
    """The ids of a run from its word in the reply."""
    if length == 1:
        return (None if first == "duplicate" else first,)
    start = int(first)
    return map(str, range(start, start + length))
