"""Calls about a job that a worker runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from glidemq_orchestrate._protocol import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, function
from glidemq_orchestrate.wire.codec import sendable
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

MAX_MESSAGES: Final = 100
MESSAGES_KEPT_MS: Final = 7 * 24 * 3_600_000


def progress(attempt: Attempt, queue: QueueKeys, value: str, now_ms: int) -> Call[int]:
    """Store the progress of a job and emit an event."""
    return function(
        "gmo_progress", [queue.job(attempt.job_id)], (now_ms, *proof(attempt), value), replies.integer
    )


def add_log(attempt: Attempt, queue: QueueKeys, line: str) -> Call[str]:
    """Append a line to the log of the job. Not repeatable."""
    keys = [queue.job(attempt.job_id), queue.log(attempt.job_id)]
    return function("gmo_append", keys, (0, *proof(attempt), "log", sendable(line)), replies.text)


def add_output(attempt: Attempt, queue: QueueKeys, fields: Mapping[str, str]) -> Call[str]:
    """Append to the output of the job; returns the entry's id. Not repeatable."""
    keys = [queue.job(attempt.job_id), queue.output(attempt.job_id)]
    words = chain.from_iterable(fields.items())
    return function("gmo_append", keys, (0, *proof(attempt), "output", *words), replies.text)


def write_messages(
    attempt: Attempt, queue: QueueKeys, first: int, texts: Sequence[str], now_ms: int
) -> Call[int]:
    """Append at most ``MAX_MESSAGES`` messages, numbered from ``first`` on; returns how many are there.

    They are kept for ``MESSAGES_KEPT_MS`` after the last. Repeatable.
    """
    keys = [queue.job(attempt.job_id), queue.messages(attempt.job_id)]
    words = (now_ms, *proof(attempt), MESSAGES_KEPT_MS, first, *texts)
    return function("gmo_write_messages", keys, words, replies.integer, repeatable=True)


def note_published(attempt: Attempt, queue: QueueKeys, lines: Sequence[str], now_ms: int) -> Call[int]:
    """Note what an attempt has written; see ``gmo_note_published.lua``. Returns how much it has noted."""
    words = (now_ms, *proof(attempt), *lines)
    return function(
        "gmo_note_published", [queue.job(attempt.job_id)], words, replies.integer, repeatable=True
    )


def has_queue_timeout(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether a node fails when no worker starts it in time."""
    return job_hash.get(queue, job_id, "gmo:queue_timeout", bool)


def note_unhandled(queue: QueueKeys, job_id: str, why: str) -> Call[int]:
    """Store on a node why workers cannot run it, for the reason of its queue timeout. Repeatable."""
    return job_hash.touch(queue, job_id, "gmo:unhandled", why)


def proof(attempt: Attempt) -> Sequence[Word]:
    """The arguments by which the server checks the lease; see ``lease.lua``."""
    return (attempt.job_id, attempt.entry_id, GROUP, attempt.token, attempt.processed_on)
