"""Publishes to all subscriptions, and handles the messages of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from glidemq_orchestrate.attempts import dead_letters as letters
from glidemq_orchestrate.attempts.dead_letters import write_noted
from glidemq_orchestrate.attempts.upkeep import clean_up, expire, forget_workers
from glidemq_orchestrate.attempts.workers import SILENT_MS
from glidemq_orchestrate.broadcasts import calls
from glidemq_orchestrate.broadcasts.calls import Begun, Member, Result
from glidemq_orchestrate.broadcasts.subjects import matches
from glidemq_orchestrate.errors import InvalidJob, ProtocolError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import adding as queue_ops
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

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
    job_id = yield from queue_ops.add_job(queue, queue_ops.NewJob(subject, data, options=options), now_ms)
    for _ in range(SLICES if max_messages is not None else 0):
        if not (yield from ask(calls.trim(queue, max_messages or 0, now_ms))):
            break
    return job_id


def open_subscription(subscription: Subscription) -> Op[None]:
    """Create the subscription if it is missing."""
    try:
        yield from ask(calls.subscribe(subscription.queue, subscription.group, subscription.start))
    except ProtocolError as exc:
        if "BUSYGROUP" not in str(exc):
            raise


def unsubscribe(queue: QueueKeys, group: str, clock: Clock) -> Op[bool]:
    """Remove a subscription; messages that only it had not handled end. False if there is none."""
    try:
        was_there = yield from ask(calls.unsubscribe(queue, group))
    except ProtocolError as exc:
        if "requires the key to exist" in str(exc):
            return False
        raise
    position = yield from ask(calls.settle(queue, "", group, clock.now_ms()))
    while position:
        position = yield from ask(calls.settle(queue, position, group, clock.now_ms()))
    return bool(was_there)


def take(  # noqa: PLR0913  what to take
    subscription: Subscription,
    consumer: str,
    *,
    room: int,
    block_ms: int,
    again: bool,
    held: set[str],
    clock: Clock,
) -> Op[list[Attempt]]:
    """Begin up to ``room`` messages; acknowledge those that are not for this subscription.

    With ``again``: those that this worker has read but does not run, since the reply was lost.
    """
    member = subscription.member(consumer)
    try:
        streams = yield from ask(
            calls.read(
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
    for first in range(0, len(passed), calls.MAX):
        yield from ask(calls.end(member, passed[first : first + calls.MAX], clock.now_ms()))
    begun: list[Begun] = []
    for first in range(0, len(wanted[:room]), calls.MAX):
        some = wanted[:room][first : first + calls.MAX]
        begun += yield from ask(calls.begin(member, some, clock.now_ms()))
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
    call = calls.take_over(
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
    (verdict,) = yield from ask(calls.end(subscription.member(consumer), [result], clock.now_ms()))
    return verdict


def upkeep(subscription: Subscription, lock_ms: int, clock: Clock) -> Op[int]:
    """Release due messages and retries, forget dead workers, write dead letters, and clean up.

    Returns when something is due next, or -1.
    """
    queue, group = subscription.queue, subscription.group
    (due_ms,) = yield from expire([queue], clock)
    yield from ask(forget_workers(queue, group, max(SILENT_MS, 2 * lock_ms), clock.now_ms()))
    yield from clean_up([queue], clock)
    if (yield from ask(letters.count(queue))):
        yield from write_noted([queue], clock)
    return due_ms


def renew(subscription: Subscription, consumer: str, held: Sequence[Attempt], clock: Clock) -> Op[list[int]]:
    """Renew the leases of the held messages: 1 renewed, 0 renewed but to be stopped, -1 lost."""
    if not held:
        return []
    pairs = [(attempt.entry_id, attempt.job_id) for attempt in held]
    return (yield from ask(calls.renew(subscription.member(consumer), pairs, clock.now_ms())))
