"""Adds jobs to a queue of ChasquiMQ, now or later, and cancels delayed ones."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.chasquimq.delayed import DelayedMember
from glidemq_orchestrate.chasquimq.envelope import ChasquiBackoff, Envelope, Retry, new_job_id
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys, check_job_id, check_job_name
from glidemq_orchestrate.chasquimq.msgpack import Packable, to_word
from glidemq_orchestrate.chasquimq.profile import Profile
from glidemq_orchestrate.chasquimq.scripts import ADD, ADD_DELAYED, ADD_MANY, CANCEL, script
from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.foundation.arguments import check_fields
from glidemq_orchestrate.foundation.durations import Duration, milliseconds
from glidemq_orchestrate.foundation.values import lasting, whole
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, parts

MARKER_SECONDS: Final = 100
"""As long as Redis remembers the id of an added job."""
GRACE_SECONDS: Final = 3_600
_NO_OPTIONS: Final = (None, None, None)
MAX_ATTEMPTS: Final = 2**32 - 1
TRIP_JOBS: Final = 1_000
CALL_JOBS: Final = 250
"""Of one call: the server does nothing else meanwhile."""
TRIP_BYTES: Final = 8_000_000


@dataclass(frozen=True, slots=True)
class ChasquiJob:
    """A job to add.

    Attributes:
        name: Decides which code runs it; at most 256 bytes, may be empty.
        data: None, numbers, texts, bytes, lists, and maps whose keys are texts; as an envelope at most 1 MiB.
        job_id: An id of your own, not blank. By default a new one.
        delay: How long it waits before workers may run it.
        attempts: The max number of runs; by default what the worker uses.
        backoff: The pauses between runs; by default what the worker uses.

    Raises:
        InvalidJob: A value is not valid.
    """

    name: str
    data: Packable = None
    job_id: str | None = None
    delay: Duration = 0
    attempts: int | None = None
    backoff: ChasquiBackoff | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be stored."""
        check_job_name(self.name)
        has_delay = type(self.delay) is not int or self.delay != 0
        if not has_delay and (self.job_id, self.attempts, self.backoff) == _NO_OPTIONS:
            return  # the common case
        if self.job_id is not None:
            check_job_id(self.job_id)
        lasting("delay", self.delay)
        if self.attempts is not None:
            whole("attempts", self.attempts, 1, MAX_ATTEMPTS)
        check_fields(self, InvalidJob, without=("data",))


class Adding(NamedTuple):
    """A packed job, and the call that adds it if it is delayed."""

    job_id: str
    name: str
    envelope: str
    delayed: Call[Any] | None


@dataclass(frozen=True, slots=True)
class Producer:
    """How jobs are added to one queue.

    Attributes:
        keys: The keys of the queue.
        id: Scope of the ids: only the same producer may not add an id twice.
        max_waiting: The stream is trimmed to about this length; None: it is not.
        max_delay_ms: Longer delays are refused.
    """

    keys: ChasquiKeys
    id: str
    max_waiting: int | None
    max_delay_ms: int

    def pack(self, jobs: Iterable[ChasquiJob], now_ms: int) -> list[Adding]:
        """The jobs as they are added.

        Raises:
            InvalidJob: A delay is too long.
            EncodeError, PayloadTooLarge: The data cannot be packed, or is too long.
        """
        return [self._pack(job, now_ms) for job in jobs]

    def _pack(self, job: ChasquiJob, now_ms: int) -> Adding:
        job_id = new_job_id(now_ms) if job.job_id is None else job.job_id
        retry = None
        if job.attempts is not None or job.backoff is not None:
            retry = Retry(job.attempts, None if job.backoff is None else job.backoff.stored)
        envelope, delayed = Envelope.of(job_id, job.data, now_ms, retry).packed, None
        if delay_ms := milliseconds(job.delay):
            delayed = self._delayed(job, job_id, envelope, now_ms, delay_ms)
        return Adding(job_id, job.name, to_word(envelope), delayed)

    def calls(self, made: Sequence[Adding], profile: Profile) -> list[Call[Any]]:
        """The calls that add packed jobs: one for many without a delay."""
        now = [one for one in made if one.delayed is None]
        adding = [self._now(now[0], profile)] if len(now) == 1 else []
        if len(now) > 1:
            adding = [self._many(part, profile) for part in parts(now, CALL_JOBS)]
        return [*adding, *(one.delayed for one in made if one.delayed is not None)]

    def _now(self, job: Adding, profile: Profile) -> Call[Any]:
        stream, entry = self.keys.key("stream"), entry_words(job.name, job.envelope, self.max_waiting)
        if profile is Profile.FULL:
            words = ("XADD", stream, "IDMP", self.id, job.job_id, *entry)
            return command(*words, decode=replies.text, repeatable=True)
        marker = self.keys.added(self.id, job.job_id)
        return script(ADD, [marker, stream], [MARKER_SECONDS, *entry], replies.text, repeatable=True)

    def _many(self, jobs: Sequence[Adding], profile: Profile) -> Call[Any]:
        # Redis remembers 100 ids of a producer: without a mark, a repeated call would add jobs again.
        keys = [self.keys.key("stream"), self.keys.call(secrets.token_hex(8))]
        if profile is not Profile.FULL:
            keys += [self.keys.added(self.id, one.job_id) for one in jobs]
        words: list[Word] = [
            self.id, MARKER_SECONDS, "" if self.max_waiting is None else self.max_waiting
        ]  # fmt: skip
        for one in jobs:
            words += (one.job_id, one.envelope, one.name)
        return script(ADD_MANY, keys, words, replies.integer, repeatable=True)

    def _delayed(
        self, job: ChasquiJob, job_id: str, envelope: bytes, now_ms: int, delay_ms: int
    ) -> Call[Any]:
        if delay_ms > self.max_delay_ms:
            raise InvalidJob(
                f"the delay of job {job_id} is {delay_ms / 1000:g} s, longer than max_delay "
                f"({self.max_delay_ms / 1000:g} s). Fix: a shorter delay, or a longer max_delay of the client"
            )
        run_at, member = now_ms + delay_ms, to_word(DelayedMember(job.name, envelope).packed)
        delayed = self.keys.key("delayed")
        if job.job_id is None:  # not repeatable: the job may have been moved to the stream in the meantime
            return command("ZADD", delayed, run_at, member, decode=replies.integer)
        keys = [self.keys.delayed_marker(job_id), delayed, self.keys.delayed_member(job_id)]
        seconds = max(1, delay_ms // 1000) + GRACE_SECONDS
        return script(ADD_DELAYED, keys, [seconds, run_at, member], replies.integer, repeatable=True)


def entry_words(name: str, envelope: str, max_length: int | None) -> list[Word]:
    """The words of XADD after the key and what makes it idempotent."""
    limit: list[Word] = [] if max_length is None else ["MAXLEN", "~", max_length]
    return [*limit, "*", "d", envelope, *(["n", name] if name else [])]


def cancel(keys: ChasquiKeys, job_id: str) -> Call[bool]:
    """Cancel a delayed job that was added with an id; whether it will not run."""
    names = [keys.key("delayed"), keys.delayed_member(job_id), keys.delayed_marker(job_id)]
    return script(CANCEL, names, (), lambda reply: replies.integer(reply) == 1)


def trips(made: Iterable[Adding]) -> Iterator[list[Adding]]:
    """The jobs in trips of a bounded size."""
    part: list[Adding] = []
    size = 0
    for one in made:
        if part and (len(part) == TRIP_JOBS or size + len(one.envelope) > TRIP_BYTES):
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one.envelope)
    if part:
        yield part
