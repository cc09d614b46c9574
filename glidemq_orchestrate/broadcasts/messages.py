"""Publishes messages to all subscriptions, and handles the messages of a subscription.

Each subscription is a consumer group of the queue's stream. Subjects are segments between dots; in the
pattern of a subscription ``*`` matches one segment, and a final ``>`` one or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.attempts import dead_letters
from glidemq_orchestrate.attempts.dead_letters import write_noted
from glidemq_orchestrate.attempts.upkeep import clean_up, expire, forget_workers
from glidemq_orchestrate.attempts.workers import FORGET_AFTER_MS
from glidemq_orchestrate.errors import ConfigurationError, InvalidJob, ProtocolError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.values import SUBJECT
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.adding import NewJob, add_job
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, command, function, parts
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

MAX_MESSAGES: Final = 100
_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of a subscription: the queue, the consumer group and the consumer."""

    queue: QueueKeys
    group: str
    consumer: str


class Begun(NamedTuple):
    """A begun message: its entry, its job, its number of failures, and the fields of the job.

    ``unreadable``: why its job cannot be read, if so.
    """

    entry_id: str
    job_id: str
    failures: int
    fields: dict[str, str]
    unreadable: str = ""


class Result(NamedTuple):
    """The outcome of a message.

    ``done``: with a result.
    ``fail``: with a reason, the max attempts and the backoff in ms.
    ``pass``: it is not for this subscription; ``first`` is 1 for the retry of another subscription.
    """

    entry_id: str
    job_id: str
    kind: str
    text: str = ""
    first: int = 0
    second: int = 0


class SubscriptionState(NamedTuple):
    """A message in one subscription: its state, why it failed, and the number of failed attempts."""

    subscription: str
    state: str
    reason: str
    failures: int


def trim(queue: QueueKeys, count: int, now_ms: int) -> Call[int]:
    """Remove a slice of the messages beyond the newest ``count``; returns how many remain. Idempotent."""
    return function("gmo_trim_messages", [queue.key("stream")], (now_ms, count), replies.integer)


def subscribe(queue: QueueKeys, group: str, start: str) -> Call[None]:
    """Create a subscription; error BUSYGROUP if it exists."""
    return command("XGROUP", "CREATE", queue.key("stream"), group, start, "MKSTREAM", decode=replies.anything)


def unsubscribe_call(queue: QueueKeys, group: str) -> Call[int]:
    """Remove a subscription with its unhandled messages; 0 if there is none. An error without a stream."""
    return command("XGROUP", "DESTROY", queue.key("stream"), group, decode=replies.integer)


def settle(queue: QueueKeys, after: str, removed: str, now_ms: int) -> Call[str]:
    """End the fully handled messages in a page of the stream; returns the next position, '' at the end.

    Also deletes all data of a ``removed`` subscription there.
    """
    start = f"({after}" if after else "-"
    return function(
        "gmo_settle_messages", [queue.key("stream")], (now_ms, start, MAX_MESSAGES, removed), replies.text
    )


def read(member: Member, *, count: int, block_ms: int, start: str) -> Call[Any]:
    """Entries of a subscription: new entries (``>``), or held entries of this consumer after ``start``."""
    words = ("XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count, "BLOCK", block_ms)
    return command(
        *words,
        "STREAMS",
        member.queue.key("stream"),
        start,
        decode=replies.stream_entries,
        blocks_for=block_ms / 1000,
    )


def begin(member: Member, entries: Sequence[tuple[str, str, bool]], now_ms: int) -> Call[list[Begun]]:
    """Begin messages that were read: entry id, job id, whether it is a retry. Idempotent."""
    words = chain.from_iterable((entry, job, int(is_retry)) for entry, job, is_retry in entries)
    return _of(member, "gmo_begin_messages", now_ms, words, _begun)


def take_over_call(  # noqa: PLR0913  the limits of the call
    member: Member, *, lock_ms: int, max_stalled: int, wanted: int, suspects: bool, now_ms: int
) -> Call[list[Begun]]:
    """Begin up to ``wanted`` messages of silent workers; an error without a group.

    ``suspects``: whether one of them may be a suspect, which may have ended its worker.
    """
    words = (lock_ms, max_stalled, wanted, int(suspects))
    return _of(member, "gmo_take_over_messages", now_ms, words, _begun)


def end(member: Member, results: Sequence[Result], now_ms: int) -> Call[list[str]]:
    """Report outcomes; returns a verdict for each. A repeat is refused as stale."""
    return _of(
        member, "gmo_end_messages", now_ms, chain.from_iterable(results), replies.texts_of(len(results))
    )


def renew_call(member: Member, held: Sequence[tuple[str, str]], now_ms: int) -> Call[list[int]]:
    """Renew leases (entry id, job id): 1 renewed, 0 the message was revoked, -1 lost. Idempotent."""
    return _of(member, "gmo_renew_messages", now_ms, chain.from_iterable(held), replies.integers)


def states(queue: QueueKeys, job_id: str, now_ms: int) -> Call[list[SubscriptionState]]:
    """The state of a message in each subscription."""

    def decode(reply: Any) -> list[SubscriptionState]:
        rows = replies.rows(_COLUMNS)(reply)
        return [SubscriptionState(name, state, reason, int(made)) for name, state, reason, made in rows]

    return function("gmo_message_states", [queue.job(job_id)], (now_ms, job_id), decode)


def retry(  # noqa: PLR0913, PLR0917  the arguments of one server call
    queue: QueueKeys, job_id: str, group: str, name: str, data: str, copy_id: str, now_ms: int
) -> Call[str]:
    """Retry a message, or a copy, in a subscription; returns its id, '' if it has not failed. Idempotent."""
    args = (now_ms, job_id, group, name, data, copy_id)
    return function("gmo_retry_message", [queue.job(job_id)], args, replies.text)


def progress(queue: QueueKeys, job_id: str, text: str) -> Call[int]:
    """Store the progress of a message, shared by all subscriptions; 0 if the message was removed."""
    return job_hash.touch(queue, job_id, "progress", text)


def _of(member: Member, name: str, now_ms: int, words: Any, decode: Any) -> Call[Any]:
    args: list[Word] = [now_ms, member.group, member.consumer, *words]
    return function(name, [member.queue.key("stream")], args, decode)


def _begun(reply: Any) -> list[Begun]:
    found = []
    for entry_id, job_id, third, *rest in reply:
        if rest:
            found.append(Begun(entry_id, job_id, int(third), replies.fields(rest[0])))
        else:
            found.append(Begun(entry_id, job_id, 0, {}, str(third)))
    return found


SLICES: Final = 200


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer group of a queue, and the subjects it subscribes to."""

    queue: QueueKeys
    group: str
    start: str
    patterns: tuple[str, ...]

    def member(self, consumer: str) -> Member:
        """A worker of the subscription."""
        return Member(self.queue, self.group, consumer)


def publish(  # noqa: PLR0913, PLR0917  a message
    queue: QueueKeys, subject: str, data: JsonLike, options: JobOptions, now_ms: int, max_messages: int | None
) -> Op[JobId]:
    """Add a message for all subscriptions; remove the oldest beyond ``max_messages``."""
    for option in ("priority", "lifo"):
        if getattr(options, option):
            raise InvalidJob(
                f"{option} is not supported for broadcasts: subscriptions never receive such messages"
            )
    job_id = yield from add_job(queue, NewJob(subject, data, options=options), now_ms)
    for _ in range(SLICES if max_messages is not None else 0):
        if not (yield from ask(trim(queue, max_messages or 0, now_ms))):
            break
    return job_id


def open_subscription(subscription: Subscription) -> Op[None]:
    """Create the subscription if it is missing."""
    try:
        yield from ask(subscribe(subscription.queue, subscription.group, subscription.start))
    except ProtocolError as exc:
        if "BUSYGROUP" not in str(exc):
            raise


def unsubscribe(queue: QueueKeys, group: str, clock: Clock) -> Op[bool]:
    """Remove a subscription; messages that only it had not handled end. False if it does not exist."""
    try:
        was_there = yield from ask(unsubscribe_call(queue, group))
    except ProtocolError as exc:
        if "requires the key to exist" in str(exc):
            return False
        raise
    position = yield from ask(settle(queue, "", group, clock.now_ms()))
    while position:
        position = yield from ask(settle(queue, position, group, clock.now_ms()))
    return bool(was_there)


def take(  # noqa: PLR0913  the limits of the call
    subscription: Subscription,
    consumer: str,
    *,
    room: int,
    block_ms: int,
    again: bool,
    held: set[str],
    clock: Clock,
) -> Op[list[Attempt]]:
    """Begin up to ``room`` messages; acknowledge messages for other subscriptions.

    With ``again``, begin the messages that this worker has read but does not run: a reply was lost.
    """
    member = subscription.member(consumer)
    try:
        streams = yield from ask(
            read(
                member,
                count=len(held) + room if again else room,
                block_ms=block_ms,
                start="0" if again else ">",
            )
        )
    except ProtocolError as exc:
        if "NOGROUP" not in str(exc):
            raise
        # The database was flushed: messages published since then must not be missed.
        yield from open_subscription(replace(subscription, start="0"))
        return []
    wanted: list[tuple[str, str, bool]] = []
    passed: list[Result] = []
    for entry_id, fields in (entry for entries in streams.values() for entry in entries):
        job_id, retry_of = fields.get("jobId", ""), fields.get("retryGroup")
        if entry_id in held:
            continue
        is_ours = retry_of in (None, subscription.group)
        if not job_id or not is_ours or not matches(fields.get("name", ""), subscription.patterns):
            passed.append(Result(entry_id, job_id, "pass", "", int(retry_of is not None)))
        else:
            wanted.append((entry_id, job_id, retry_of is not None))
    for some in parts(passed, MAX_MESSAGES):
        yield from ask(end(member, some, clock.now_ms()))
    begun: list[Begun] = []
    for part in parts(wanted[:room], MAX_MESSAGES):
        begun += yield from ask(begin(member, part, clock.now_ms()))
    return [_attempt(subscription, one) for one in begun]


def take_over(  # noqa: PLR0913  how
    subscription: Subscription,
    consumer: str,
    *,
    room: int,
    lock_ms: int,
    max_stalled: int,
    clock: Clock,
    suspects: bool = True,
) -> Op[list[Attempt]]:
    """Begin up to ``room`` messages of silent workers, at most one of them a suspect."""
    call = take_over_call(
        subscription.member(consumer),
        lock_ms=lock_ms,
        max_stalled=max_stalled,
        wanted=room,
        suspects=suspects,
        now_ms=clock.now_ms(),
    )
    try:
        begun = yield from ask(call)
    except ProtocolError as exc:
        if "NOGROUP" not in str(exc):
            raise
        return []  # the next read creates it
    return [_attempt(subscription, one) for one in begun]


def _attempt(subscription: Subscription, begun: Begun) -> Attempt:
    """A message as an attempt; an unreadable one too, so that it ends as failed."""
    fields = begun.fields | {"id": begun.job_id}
    attempt = Attempt.from_wire(subscription.queue.queue, begun.entry_id, begun.entry_id, fields)
    return replace(
        attempt,
        attempts_made=begun.failures,
        unreadable=begun.unreadable or attempt.unreadable,
        suspect=number(begun.fields.get(f"gmo:suspect:{subscription.group}")),
    )


def report(subscription: Subscription, consumer: str, result: Result, clock: Clock) -> Op[str]:
    """Report an outcome; returns the verdict."""
    (verdict,) = yield from ask(end(subscription.member(consumer), [result], clock.now_ms()))
    return verdict


def upkeep(subscription: Subscription, lock_ms: int, clock: Clock) -> Op[int]:
    """Release due messages and retries, forget dead workers, write dead letters, and clean up.

    Returns when something is due next, or -1.
    """
    queue, group = subscription.queue, subscription.group
    (due_ms,) = yield from expire([queue], clock)
    yield from ask(forget_workers(queue, group, max(FORGET_AFTER_MS, 2 * lock_ms), clock.now_ms()))
    yield from clean_up([queue], clock)
    if (yield from ask(dead_letters.count(queue))):
        yield from write_noted([queue], clock)
    return due_ms


def renew(subscription: Subscription, consumer: str, held: Sequence[Attempt], clock: Clock) -> Op[list[int]]:
    """Renew the leases of the held messages: 1 renewed, 0 renewed but to be stopped, -1 lost."""
    if not held:
        return []
    pairs = [(attempt.entry_id, attempt.job_id) for attempt in held]
    return (yield from ask(renew_call(subscription.member(consumer), pairs, clock.now_ms())))


def check_pattern(pattern: str) -> str:
    """Return the pattern if it is valid.

    Raises:
        ConfigurationError: It is empty, or ``>`` is not its last segment.
    """
    segments = SUBJECT.check(pattern).split(".")
    if ">" in segments[:-1]:
        raise ConfigurationError(f"subject pattern {pattern!r} is not valid: > must be the last segment")
    return pattern


def matches(subject: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches; without patterns every subject does."""
    return not patterns or any(_fits(subject.split("."), pattern.split(".")) for pattern in patterns)


def _fits(segments: list[str], pattern: list[str]) -> bool:
    if pattern[-1] == ">":
        pattern = pattern[:-1]
        if len(segments) <= len(pattern):
            return False
    elif len(segments) != len(pattern):
        return False
    return all(wanted in ("*", found) for wanted, found in zip(pattern, segments, strict=False))
