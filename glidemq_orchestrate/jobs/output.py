"""The log lines, output and messages that a job writes while it runs, and how clients read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError, InvalidJob, PayloadTooLarge, ProtocolError
from glidemq_orchestrate.events import check_position
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt, from_outside, proof
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, command, function, parts
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import exact, number

MAX_PARTS: Final = 900
MAX_MESSAGES: Final = 100
MAX_READ: Final = 10_000
PAGE: Final = 500
MESSAGES_KEPT_MS: Final = 7 * 24 * 3_600_000


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise InvalidJob(f"{what} must be a str, got {type(text).__name__}")
    if len(text.encode(errors="surrogatepass")) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"{what} is longer than {MAX_PAYLOAD_BYTES:,} bytes", where=what)


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """One entry of a job's output; ``id`` is the position after which reading continues."""

    id: str
    fields: Mapping[str, str]


def add_output(queue: QueueKeys, job_id: str, fields: Mapping[str, str]) -> Op[str]:
    """Append to the output of a job."""
    check_output(fields)
    return (yield from ask(append_output(queue, from_outside(job_id), fields)))


def check_output(fields: Mapping[str, str]) -> None:
    """Check that the fields are valid as one entry of an output.

    Raises:
        InvalidJob, PayloadTooLarge: They are not.
    """
    if not fields or not all(isinstance(part, str) for pair in fields.items() for part in pair):
        raise InvalidJob("output must be at least one text, each with a name")
    if len(fields) > MAX_PARTS:
        raise InvalidJob(f"one entry of an output has at most {MAX_PARTS} parts, got {len(fields)}")
    _check_text("output", "".join(part for pair in fields.items() for part in pair))


def read_output(
    queue: QueueKeys, job_id: str, after: str | None, limit: int, wait_ms: int
) -> Op[list[OutputChunk]]:
    """Read the output of a job after a position."""
    if limit < 1:
        raise ConfigurationError("limit must be at least 1")
    key = queue.output(job_id)
    block: tuple[Word, ...] = ("BLOCK", wait_ms) if wait_ms > 0 else ()

    def decode(reply: Any) -> list[OutputChunk]:
        return [OutputChunk(*entry) for entry in replies.stream_entries(reply).get(key, [])]

    words = ("XREAD", "COUNT", limit, *block, "STREAMS", key, after or "0-0")
    return (yield from ask(command(*words, decode=decode, blocks_for=wait_ms / 1000 if block else None)))


def append_log(queue: QueueKeys, owner: Sequence[Word], line: str, log_of: str = "") -> Call[str]:
    """Append a line to the log of a job. Not idempotent.

    ``owner``: from ``proof`` of an attempt, or ``from_outside``. ``log_of``: the array of a slice.
    """
    job_id = str(owner[0])
    keys = [queue.job(job_id), queue.log(log_of or job_id)]
    return function("gmo_append", keys, (0, *owner, "log", line), replies.text)


def append_output(
    queue: QueueKeys, owner: Sequence[Word], fields: Mapping[str, str], output_of: str = ""
) -> Call[str]:
    """Append to the output of a job, with the same ``owner``; returns the entry's id. Not idempotent."""
    job_id = str(owner[0])
    keys = [queue.job(job_id), queue.output(output_of or job_id)]
    words = chain.from_iterable(fields.items())
    return function("gmo_append", keys, (0, *owner, "output", *words), replies.text)


def write_messages(
    attempt: Attempt, queue: QueueKeys, first: int, texts: Sequence[str], now_ms: int
) -> Call[int]:
    """Append up to ``MAX_MESSAGES`` messages, numbered from ``first`` on; returns the new total.

    They expire ``MESSAGES_KEPT_MS`` after the last one. Idempotent.
    """
    keys = [queue.job(attempt.job_id), queue.messages(attempt.job_id)]
    words = (now_ms, *proof(attempt), MESSAGES_KEPT_MS, first, *texts)
    return function("gmo_write_messages", keys, words, replies.integer, repeatable=True)


def log_lines(queue: QueueKeys, job_id: str, first: int, last: int) -> Call[list[str]]:
    """Log lines by index."""
    return command("LRANGE", queue.log(job_id), first, last, decode=list)


def log_length(queue: QueueKeys, job_id: str) -> Call[int]:
    """The number of log lines of a job."""
    return command("LLEN", queue.log(job_id), decode=replies.integer)


MAX_ROUNDS: Final = 5
Send = Callable[[Sequence[Call[Any]]], Op[list[Any]]]


@dataclass(frozen=True, slots=True)
class LogRange:
    """Up to ``limit`` lines of a job from ``offset`` on; an offset of -20 means the last 20."""

    keys: QueueKeys
    job_id: str
    offset: int
    limit: int

    def calls(self, cut: int) -> list[Call[Any]]:
        """The calls that read the lines, given that ``cut`` lines were removed."""
        start = max(self.offset - cut, 0) if self.offset >= 0 else self.offset
        last = start + self.limit - 1
        first, last = (start, min(last, -1) if start < 0 else last) if self.limit else (1, 0)
        return [
            log_lines(self.keys, self.job_id, first, last),
            log_length(self.keys, self.job_id),
            job_hash.get(self.keys, self.job_id, "gmo:cut", number),
        ]

    def read(self, lines: list[str], length: int, cut: int) -> JobLogs:
        """The lines, from the replies to these calls."""
        first = max(self.offset, cut) if self.offset >= 0 else cut + max(length + self.offset, 0)
        return JobLogs(lines, cut + length, first)


def read_logs(ranges: Sequence[LogRange], send: Send = ask_all) -> Op[list[JobLogs]]:
    """Read each range in one round trip, or in two if lines were removed."""
    found: dict[int, JobLogs] = {}
    cuts, left = [0] * len(ranges), list(range(len(ranges)))
    for _ in range(MAX_ROUNDS):  # lines may be removed between the trips
        replies = yield from send([call for at in left for call in ranges[at].calls(cuts[at])])
        asked, left = left, []
        for at, lines, length, cut in zip(asked, replies[::3], replies[1::3], replies[2::3], strict=True):
            found[at] = ranges[at].read(lines, length, cut)
            if ranges[at].offset > 0 and cut != cuts[at]:
                cuts[at] = cut
                left.append(at)
        if not left:
            break
    return [found[at] for at in range(len(ranges))]


@dataclass(frozen=True, slots=True)
class JobMessage:
    """One message.

    Attributes:
        id: The position after which reading continues.
        attempt: The attempt that wrote it.
        number: Its number within the attempt, from 1.
        text: The text that was written.
    """

    id: str
    attempt: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class AcceptedAttempt:
    """The attempt with the accepted result, if it has written messages.

    Attributes:
        attempt: Its id, as in its messages.
        count: How many messages it has written. Fewer can be read after some have expired.
        job_id: The job to read them from; a different one if its result was carried over.
    """

    attempt: str
    count: int
    job_id: str


def page(queue: QueueKeys, job_id: str, after: str, count: int) -> Call[list[JobMessage]]:
    """Messages in the stream of a job after a position."""
    start = f"({after}" if after else "-"

    def decode(reply: Any) -> list[JobMessage]:
        return [_message(entry_id, fields) for entry_id, fields in reply]

    return command("XRANGE", queue.messages(job_id), start, "+", "COUNT", count, decode=decode)


def accepted_attempt(queue: QueueKeys, job_id: str) -> Call[AcceptedAttempt | None]:
    """The attempt with the accepted result; None if there is none."""

    def decode(reply: Any) -> AcceptedAttempt | None:
        if not reply:
            return None
        count, token, processed_on, writer = reply.split(" ", 3)
        return AcceptedAttempt(f"{token} {processed_on}", exact(count) or 0, writer)

    return job_hash.get(queue, job_id, "gmo:accepted", decode)


def _message(entry_id: str, fields: Any) -> JobMessage:
    found = replies.pairs(fields)
    number = exact(found.get("number"))
    if number is None or "text" not in found:
        raise ProtocolError("a message of a job lacks its number or text")
    return JobMessage(entry_id, found.get("attempt", ""), number, found["text"])


def messages(queue: QueueKeys, job_id: str, after: str | None, limit: int) -> Op[list[JobMessage]]:
    """The messages of all attempts of a job, after a position."""
    whole("limit", limit, 1, MAX_READ, error=ConfigurationError)
    position = check_position(after) if after is not None else ""
    return (yield from ask(page(queue, job_id, position, limit)))


def accepted(queue: QueueKeys, job_ids: Sequence[str]) -> Op[Mapping[str, AcceptedAttempt]]:
    """The attempts with accepted results, by job; reads many jobs in a pipeline."""
    found: dict[str, AcceptedAttempt] = {}
    for some in parts(job_ids, PAGE):
        rows = yield from ask_all([accepted_attempt(queue, job_id) for job_id in some])
        found |= {job_id: one for job_id, one in zip(some, rows, strict=True) if one is not None}
    return found


def add_log(queue: QueueKeys, job_id: str, line: str) -> Op[None]:
    """Append a log line to an existing job."""
    _check_text("log line", line)
    yield from ask(append_log(queue, from_outside(job_id), line))


def logs(queue: QueueKeys, job_id: str, first: int, limit: int) -> Op[JobLogs]:
    """Read log lines."""
    if limit < 0:
        raise ConfigurationError("limit must not be negative")
    (found,) = yield from read_logs([LogRange(queue, job_id, first, limit)])
    return found
