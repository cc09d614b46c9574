"""The subscriptions of a broadcast queue: the consumer groups of its stream, except the workers' group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate import registry
from glidemq_orchestrate.broadcasts.messages import SubscriptionState, states
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import pages
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.registry import ConsumerGroup
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """The progress of a subscription: messages not yet delivered, and messages that its workers hold."""

    name: str
    waiting: int
    active: int


@dataclass(frozen=True, slots=True)
class MessageState:
    """A message in one subscription.

    Attributes:
        state: ``waiting``, ``active``, ``delayed`` (until its next attempt), ``completed`` or ``failed``.
            ``completed`` if the subscription is newer than the message, unless it began with the history.
        failed_reason: The reason in state ``failed``; otherwise empty.
        attempts_failed: The number of failed attempts; only until it ends.
    """

    state: JobState
    failed_reason: str
    attempts_failed: int


def groups(queue: QueueKeys) -> Op[list[ConsumerGroup]]:
    """All consumer groups of the stream; empty without a stream."""
    try:
        return (yield from ask(registry.group_details(queue)))
    except ProtocolError:
        return []  # no message was ever added or read


def of(found: Sequence[ConsumerGroup]) -> list[ConsumerGroup]:
    """The groups that are subscriptions."""
    return [group for group in found if group.name != GROUP]


def subscriptions(queue: QueueKeys, max_examined: int | None) -> Op[list[SubscriptionInfo]]:
    """All subscriptions, by name; counts the waiting messages up to about ``max_examined``."""
    found = []
    for group in of((yield from groups(queue))):
        waiting = yield from undelivered(queue, group, max_examined)
        found.append(SubscriptionInfo(group.name, waiting, group.pending))
    return sorted(found, key=lambda one: one.name)


def undelivered(queue: QueueKeys, group: ConsumerGroup, max_examined: int | None) -> Op[int]:
    """How many entries were not delivered to the group: the number of the server, or else counted."""
    if group.lag is not None:
        return group.lag
    count, start = 0, f"({group.last}"
    while max_examined is None or count < max_examined:
        entries = yield from ask(pages.stream_page(queue, start, PAGE))
        count += len(entries)
        if len(entries) < PAGE:
            break
        start = f"({entries[-1][0]}"
    return count


def waiting(queue: QueueKeys, found: Sequence[ConsumerGroup], max_examined: int | None) -> Op[int]:
    """How many messages were not delivered to the slowest subscription."""
    max_waiting = 0
    for group in of(found):
        max_waiting = max(max_waiting, (yield from undelivered(queue, group, max_examined)))
    return max_waiting


def held(queue: QueueKeys, found: Sequence[ConsumerGroup]) -> Op[int]:
    """How many entries workers hold; an entry held in several subscriptions counts once."""
    busy = [group for group in found if group.pending]
    if len(busy) <= 1:
        return sum(group.pending for group in busy)
    entries = set[str]()
    for group in busy:
        start = "-"
        while True:
            page = yield from ask(pages.pending_page(queue, start, PAGE, group.name))
            entries.update(page)
            if len(page) < PAGE:
                break
            start = f"({page[-1]}"
    return len(entries)


def message_states(queue: QueueKeys, job_id: str, clock: Clock) -> Op[dict[str, MessageState]]:
    """The state of a message in each subscription."""
    rows: list[SubscriptionState] = yield from ask(states(queue, job_id, clock.now_ms()))
    return {
        row.subscription: MessageState(JobState.read(row.state), row.reason, row.failures) for row in rows
    }


def held_jobs(queue: QueueKeys, entries: Sequence[str]) -> Op[list[str]]:
    """The job ids of these entries."""
    rows = yield from ask_all([pages.stream_entry(queue, entry) for entry in entries])
    return [job_id for row in rows for _, job_id in row if job_id]
