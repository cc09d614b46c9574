"""Calls of our own functions that remove, retry, revoke and change jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import QueueKeys, queues_with_usage

MAX: Final = 100
Removal = tuple[list[str], list[tuple[str, str]]]


def remove_jobs(queue: QueueKeys, jobs: Iterable[tuple[str, str]], event: str, now_ms: int) -> Call[Removal]:
    """Delete jobs, given with the ids of their stream entries (empty: not known).

    Returns a word for each job, and pairs of a removed job and one of another queue that waits for it.
    """
    removed = list(jobs)

    def decode(reply: Any) -> Removal:
        words, elsewhere = reply
        pairs = [(member, parent) for member, parent in replies.rows(2)(elsewhere)]
        return replies.texts_of(len(removed))(words), pairs

    args: list[Word] = [now_ms, event, *chain.from_iterable(removed)]
    return function("gmo_remove_jobs", [queue.key("id")], args, decode)


def retry_jobs(queue: QueueKeys, job_ids: Sequence[str], now_ms: int) -> Call[list[str]]:
    """Run failed jobs again; returns a word for each."""
    return function("gmo_retry_jobs", [queue.key("id")], (now_ms, *job_ids), replies.texts_of(len(job_ids)))


def revoke_job(queue: QueueKeys, job_id: str, now_ms: int) -> Call[tuple[str, str]]:
    """Fail a job that is not running, flag one that is; returns the word and a flow to be advanced."""

    def decode(reply: Any) -> tuple[str, str]:
        word, flow_id = replies.texts(reply)
        return word, flow_id

    return function("gmo_revoke_job", [queue.job(job_id)], (now_ms, job_id), decode)


def update_job(queue: QueueKeys, job_id: str, field: str, value: str | int, now_ms: int) -> Call[int]:
    """Change data, progress or reported tokens of an existing job. Repeatable."""
    return function("gmo_update_job", [queue.job(job_id)], (now_ms, job_id, field, value), replies.integer)


def report_usage(
    queue: QueueKeys, proof: Sequence[Word], usage: str, fields: Mapping[str, str], now_ms: int
) -> Call[int]:
    """Store the usage of a job; 0 when a Node client is writing it now. Repeatable.

    ``proof``: that of an attempt, or ``from_outside``.
    """
    args: list[Word] = [now_ms, *proof, usage]
    args += chain.from_iterable(fields.items())
    return function("gmo_report_usage", [queue.job(str(proof[0]))], args, replies.integer)


def from_outside(job_id: str) -> tuple[Word, ...]:
    """In place of the proof of an attempt: whoever asks runs no job."""
    return (job_id, "", "", "", "")


def job_exists(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether the job exists: what is left of a removed one has no state."""
    return command("HEXISTS", queue.job(job_id), "state", decode=bool)


def add_log(queue: QueueKeys, job_id: str, line: str) -> Call[str]:
    """Append a log line to a job. Not repeatable."""
    keys = [queue.job(job_id), queue.log(job_id)]
    return function("gmo_append", keys, (0, *from_outside(job_id), "log", line), replies.text)


def log_lines(queue: QueueKeys, job_id: str, first: int, last: int) -> Call[list[str]]:
    """Log lines by index."""
    return command("LRANGE", queue.log(job_id), first, last, decode=list)


def log_length(queue: QueueKeys, job_id: str) -> Call[int]:
    """How many log lines a job has."""
    return command("LLEN", queue.log(job_id), decode=replies.integer)


def members(key: str) -> Call[list[str]]:
    """The members of a set, in a fixed order."""
    return command("SMEMBERS", key, decode=sorted)


def fields_of(key: str, *fields: str) -> Call[list[str | None]]:
    """Some fields of a hash."""
    return command("HMGET", key, *fields, decode=list)


def whole_hash(key: str) -> Call[dict[str, str]]:
    """A hash whose values are texts."""
    return command("HGETALL", key, decode=replies.pairs)


def add_output(queue: QueueKeys, job_id: str, fields: Mapping[str, str]) -> Call[str]:
    """Append to the output stream of a job; returns the entry's id. Not repeatable."""
    words = chain.from_iterable(fields.items())
    keys = [queue.job(job_id), queue.output(job_id)]
    return function("gmo_append", keys, (0, *from_outside(job_id), "output", *words), replies.text)


def read_output(
    queue: QueueKeys, job_id: str, after: str, count: int, block_ms: int | None
) -> Call[list[tuple[str, dict[str, str]]]]:
    """Entries of the output stream after an id; waits for one at most ``block_ms``."""
    key = queue.output(job_id)
    block: tuple[str | int, ...] = () if block_ms is None else ("BLOCK", block_ms)

    def decode(reply: Any) -> list[tuple[str, dict[str, str]]]:
        return replies.stream_entries(reply).get(key, [])

    words = ("XREAD", "COUNT", count, *block, "STREAMS", key, after)
    return command(*words, decode=decode, blocks_for=None if block_ms is None else block_ms / 1000)


def remember_usage(queue: QueueKeys) -> Call[None]:
    """Add the queue to those with usage. Repeatable."""
    return command("SADD", queues_with_usage(queue.prefix), queue.queue, decode=replies.anything)


def forget_usage(queue: QueueKeys) -> Call[None]:
    """Remove the queue from those with usage. Repeatable."""
    return command("SREM", queues_with_usage(queue.prefix), queue.queue, decode=replies.anything)
