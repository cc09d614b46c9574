"""Tracked jobs and flows: a short list of those whose every change is reported, also that they are removed.

The list is a sorted set of each queue: job ids and ``flow:<id>``, by the time when tracking began. A watch
compares what it reads with what it read before. The events of the queue only wake it: none is missed if one
is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any, Final, Literal

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import FlowNotFound, InvalidJob
from glidemq_orchestrate.flows.generation import FlowRef, is_expired
from glidemq_orchestrate.flows.index import find_ref, flow_statuses
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import history
from glidemq_orchestrate.jobs.job import Job, job_exists
from glidemq_orchestrate.jobs.job_hash import missing
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import listing
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import as_time

MAX_TRACKED: Final = 1000
REREAD_MS: Final = 1000
Kind = Literal["job", "flow"]
FLOW: Final = "flow:"  # no job id contains a colon


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tracked job or flow as it is now.

    Attributes:
        kind: ``job`` or ``flow``.
        id: The id of the job or flow.
        since: When its tracking began.
        job: The job, without data and result; None if it was removed.
        flow: The status of the current generation; None if the flow, or its jobs, were removed.
    """

    kind: Kind
    id: str
    since: datetime
    job: Job | None = None
    flow: FlowStatus | None = None

    @property
    def state(self) -> JobState | FlowState | None:
        """The state; None if it was removed."""
        if self.job is not None:
            return self.job.state
        return None if self.flow is None else self.flow.state

    @property
    def is_removed(self) -> bool:
        """Whether it no longer exists."""
        return self.state is None


@dataclass(frozen=True, slots=True)
class TrackedChange:
    """A change of a tracked job or flow.

    Attributes:
        now: What it is now.
        before: What it was when it was read before; None for the first read.
        at: When the change was read, in server time.
    """

    now: Tracked
    before: Tracked | None
    at: datetime


def track_job(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Track a job."""
    if not (yield from ask(job_exists(queue, job_id))):
        raise missing(queue, job_id)
    if (yield from _track(queue, job_id, now_ms)):
        yield from history.begin(queue, job_id, now_ms)


def track_flow(ref: FlowRef, now_ms: int) -> Op[None]:
    """Track a flow, in its home queue."""
    yield from _track(ref.home, FLOW + ref.public_id, now_ms)


def untrack_job(queue: QueueKeys, job_id: str) -> Op[None]:
    """Stop tracking a job."""
    yield from ask(_remove(queue, job_id))


def untrack_flow(ref: FlowRef) -> Op[None]:
    """Stop tracking a flow."""
    yield from ask(_remove(ref.home, FLOW + ref.public_id))


def _track(queue: QueueKeys, member: str, now_ms: int) -> Op[bool]:
    """Returns whether it was not tracked before."""
    known = yield from ask(_members(queue))
    if member not in known and len(known) >= MAX_TRACKED:
        raise InvalidJob(
            f"queue {queue.queue} tracks {len(known):,} jobs and flows, which is the limit. "
            "Fix: untrack some of them"
        )
    words = ("ZADD", queue.key("qx:tracked"), "NX", now_ms, member)
    yield from ask(command(*words, decode=replies.anything, repeatable=True))
    return member not in known


def _remove(queue: QueueKeys, member: str) -> Call[None]:
    return command("ZREM", queue.key("qx:tracked"), member, decode=replies.anything, repeatable=True)


def _members(queue: QueueKeys) -> Call[dict[str, int]]:
    """The members, and since when they are tracked."""

    def decode(reply: Any) -> dict[str, int]:
        return {name: int(float(at)) for name, at in zip(reply[::2], reply[1::2], strict=True)}

    return command("ZRANGE", queue.key("qx:tracked"), 0, -1, "WITHSCORES", decode=decode)


def tracked(queue: QueueKeys) -> Op[list[Tracked]]:
    """The tracked jobs and flows, longest first."""
    members = yield from ask(_members(queue))
    ids = [one for one in members if not one.startswith(FLOW)]
    jobs = yield from listing.read_jobs(queue, ids, exclude_data=True)
    job_by_id: Mapping[str, Job] = {job.id: job for job in jobs}
    found: list[Tracked] = []
    for member, since in members.items():
        if member.startswith(FLOW):
            flow_id = member.removeprefix(FLOW)
            status = yield from _status(queue.prefix, flow_id)
            found.append(Tracked("flow", flow_id, as_time(since), flow=status))
        else:
            found.append(Tracked("job", member, as_time(since), job=job_by_id.get(member)))
    return found


def _status(prefix: str, flow_id: str) -> Op[FlowStatus | None]:
    """The status of the current generation of a flow; None if it or its jobs were removed."""
    try:
        ref = yield from find_ref(prefix, flow_id)
    except FlowNotFound:
        return None
    if (yield from ask(is_expired(ref.home, ref.flow_id))):
        return None
    return (yield from flow_statuses([ref]))[0]


@dataclass(slots=True)
class TrackedStream:
    """The changes of all tracked jobs and flows of a queue, without an end.

    ``members``: finds the queue itself and its shards.
    """

    queue: QueueKeys
    clock: Clock
    members: Callable[[], Op[Sequence[QueueKeys]]]
    position: str = ""
    known: dict[tuple[Kind, str], Tracked] = field(default_factory=dict)

    def step(self) -> Op[Sequence[TrackedChange]] | None:
        """Read the next changes; none after a second without any."""
        return self._read()

    def end(self) -> Op[None] | None:
        """Nothing is to be released."""
        return None

    def _read(self) -> Op[Sequence[TrackedChange]]:
        if not self.position:  # before the first read, so that no event is missed
            self.position = yield from events.tail(self.queue)
        else:
            yield from self._wait()
        every = yield from side_by_side([tracked(keys) for keys in (yield from self.members())])
        found = {(one.kind, one.id): one for one in chain.from_iterable(every)}
        at = as_time(self.clock.now_ms())
        changes = [
            TrackedChange(now, self.known.get(key), at)
            for key, now in found.items()
            if key not in self.known or _comparable(now) != _comparable(self.known[key])
        ]
        self.known = found
        return changes

    def _wait(self) -> Op[None]:
        """Wait for an event of a tracked job or flow, or for a second: some changes have no event here."""
        until = self.clock.monotonic_ms() + REREAD_MS
        while (left := until - self.clock.monotonic_ms()) > 0:
            for event in (yield from events.read(self.queue, self.position, left)):
                self.position = event.id
                if ("job", event.job_id) in self.known or ("flow", event.flow_id) in self.known:
                    return


def _comparable(one: Tracked) -> Tracked:
    """What counts as a change: not that a worker has renewed its lease."""
    return one if one.job is None else replace(one, job=replace(one.job, lease_until=None))
