"""Publishing to all subscriptions, and reading the entries of one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from glidemq_orchestrate._ops.queue import adding as queue_ops
from glidemq_orchestrate._ops.worker.workers import SILENT_MS
from glidemq_orchestrate._protocol.call import Op, ask, ask_all
from glidemq_orchestrate._protocol.queue import broadcast as calls
from glidemq_orchestrate._protocol.queue import due
from glidemq_orchestrate._protocol.worker import workers
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.codec import JsonLike
from glidemq_orchestrate.errors import InvalidJob, ProtocolError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.jobs.subjects import matches
from glidemq_orchestrate.keys import QueueKeys


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer group of a queue, and the subjects it subscribes to."""

    queue: QueueKeys
    group: str
    start: str
    patterns: tuple[str, ...]


def publish(  # noqa: PLR0913, PLR0917  a message
    queue: QueueKeys, subject: str, data: JsonLike, options: JobOptions, now_ms: int, most: int | None
) -> Op[JobId]:
    """Add a message for all subscriptions."""
    for option in ("priority", "lifo"):
        if getattr(options, option):
            raise InvalidJob(f"{option} is not for broadcasts: subscriptions never see such messages")
    job_id = yield from queue_ops.add_job(queue, queue_ops.NewJob(subject, data, options), now_ms)
    if most is not None:
        yield from ask(calls.trim(queue, most))
    return job_id


def open_subscription(subscription: Subscription) -> Op[None]:
    """Create it if it is missing."""
    try:
        yield from ask(calls.subscribe(subscription.queue, subscription.group, subscription.start))
    except ProtocolError as exc:
        if "BUSYGROUP" not in str(exc):
            raise


def take(  # noqa: PLR0913  what to take
    subscription: Subscription,
    consumer: str,
    *,
    count: int,
    block_ms: int,
    again: bool,
    held: set[str],
    clock: Clock,
) -> Op[list[Attempt]]:
    """Start runs of up to ``count`` messages; acknowledge those that are not for this subscription."""
    queue, group = subscription.queue, subscription.group
    start = "0" if again else ">"
    try:
        streams = yield from ask(
            calls.read(queue, group, consumer, count=count, block_ms=block_ms, start=start)
        )
    except ProtocolError as exc:
        if "NOGROUP" not in str(exc):
            raise
        # The database was emptied: messages published since then must not be missed.
        yield from open_subscription(replace(subscription, start="0"))
        return []
    begun: list[Attempt] = []
    for entry_id, fields in (entry for entries in streams.values() for entry in entries):
        if entry_id in held:
            continue
        is_ours = fields.get("retryGroup", group) == group
        if "jobId" not in fields or not is_ours or not matches(fields.get("name", ""), subscription.patterns):
            yield from ask(calls.acknowledge(queue, group, entry_id))
            continue
        attempt = yield from _begin(subscription, entry_id, fields["jobId"], clock)
        begun += [attempt] if attempt else []
    return begun


def _begin(subscription: Subscription, entry_id: str, job_id: str, clock: Clock) -> Op[Attempt | None]:
    """Start one run; a message that cannot be read is started too, to end as failed."""
    queue, group = subscription.queue, subscription.group
    try:
        found = yield from ask(calls.activate(queue, job_id, entry_id, group, clock.now_ms()))
        if isinstance(found, str):  # removed, revoked or expired: for all subscriptions
            yield from ask(calls.acknowledge(queue, group, entry_id))
            return None
        failures = yield from ask(calls.attempts(queue, job_id, group))
    except ProtocolError as exc:
        lost = Attempt.from_wire(queue.queue, entry_id, entry_id, {"id": job_id})
        return replace(lost, unreadable=str(exc))
    attempt = Attempt.from_wire(queue.queue, entry_id, entry_id, found)
    return replace(attempt, job_id=job_id, attempts_made=failures)


def upkeep(
    subscription: Subscription, consumer: str, lock_ms: int, max_stalled: int, clock: Clock
) -> Op[int]:
    """Release due messages and retries, take over those of dead consumers. Returns how many were taken."""
    queue, group = subscription.queue, subscription.group
    yield from ask(due.promote(queue, clock.now_ms()))
    yield from ask(workers.forget_workers(queue, group, max(SILENT_MS, 2 * lock_ms), clock.now_ms()))
    with suppress(ProtocolError):  # no group: the next read creates it
        return (
            yield from ask(
                calls.reclaim(
                    subscription.queue, subscription.group, consumer, lock_ms, max_stalled, clock.now_ms()
                )
            )
        )
    return 0


def beat(subscription: Subscription, held: list[str], clock: Clock) -> Op[None]:
    """Renew the leases of the held messages."""
    yield from ask_all([calls.beat(subscription.queue, job_id, clock.now_ms()) for job_id in held])
