"""Calls that write dead letters; see ``lua/glidemq_orchestrate/parts/dead_letters.lua``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._protocol.queue.jobs import EncodedJob, job_words
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE: Final = 20
_CUSTOM_ID: Final = 16


@dataclass(frozen=True, slots=True)
class Note:
    """A job that has failed for good: when, as the server notes it, and its data if it may be removed.

    ``job_id`` is the field of the note: for a message ``<its id>||<the subscription in which it failed>``.
    """

    job_id: str
    failed_at: str
    name: str = ""
    data: str | None = None
    reason: str = ""
    attempts: int = 0

    @property
    def message_id(self) -> str:
        """The id of the job, without the subscription."""
        return self.job_id.partition("||")[0]

    @property
    def subscription(self) -> str | None:
        """The subscription in which a message failed; None for other jobs."""
        _, bars, name = self.job_id.partition("||")
        return name if bars and self.data is not None else None


def count(queue: QueueKeys) -> Call[int]:
    """How many jobs have failed and have no letter yet."""
    return command("HLEN", _key(queue), decode=replies.integer)


def noted(queue: QueueKeys) -> Call[list[str]]:
    """The ids of some noted jobs."""
    return command("HRANDFIELD", _key(queue), PAGE, decode=list)


def note(queue: QueueKeys, job_id: str) -> Call[Note | None]:
    """The note of a job; None without one."""

    def decode(reply: Any) -> Note | None:
        if not reply:
            return None
        failed_at, _, copy = str(reply).partition("\n")
        if not copy:
            return Note(job_id, failed_at)
        try:
            name, data, reason, attempts = json.loads(copy)
            return Note(job_id, failed_at, str(name), str(data), str(reason), int(attempts))
        except (ValueError, TypeError) as exc:
            raise ProtocolError(f"the note of failed job {job_id} cannot be read: {exc}") from exc

    return command("HGET", _key(queue), job_id, decode=decode)


def write(target: QueueKeys, letter_id: str, name: str, data: str, now_ms: int) -> Call[str]:
    """Add a letter, without options as Node does; ``duplicate`` if it exists. Repeatable."""
    keys = target.keys("id", "stream", "scheduled", "events")
    words = list(job_words(EncodedJob(name, data, DEFAULT_OPTIONS), now_ms))
    words[_CUSTOM_ID] = letter_id
    return function("glidemq_addJob", keys, words, replies.text)


def written(queue: QueueKeys, note: Note) -> Call[int]:
    """Remove the note, unless the job has failed again since."""
    return function("gmo_letter_written", [_key(queue)], (0, note.job_id, note.failed_at), replies.integer)


def forget_all(queue: QueueKeys) -> Call[int]:
    """Remove all notes: the queue has no dead letter queue any more."""
    return command("UNLINK", _key(queue), decode=replies.integer)


def _key(queue: QueueKeys) -> str:
    return queue.key("gmo:letters")
