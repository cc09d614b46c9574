"""Watches a flow: reports the changes since the last report to the reader.

Events only hint at which nodes to read; a change is the difference between the last report and the current
jobs. So a trimmed stream, a missing event or an absent reader costs only a read of all nodes, and no change
is reported twice. Changes faster than the reader are reported as one. Jobs contain the number of their run,
so a rerun node that has ended as before is reported too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import ConfigurationError, WaitTimeout
from glidemq_orchestrate.events import entry_order
from glidemq_orchestrate.flows.backend import FlowBackend, backend_of
from glidemq_orchestrate.flows.generation import FlowRef, flow_status
from glidemq_orchestrate.flows.home import expire_due, is_due
from glidemq_orchestrate.flows.node_table import one_node
from glidemq_orchestrate.flows.status import FlowStatus, NodeStatus, raise_if_superseded
from glidemq_orchestrate.flows.watched import UNSEEN, FlowChange, NodeChange, Reported, time_of
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, command, parts
from glidemq_orchestrate.wire.confirmation import unconfirmed
from glidemq_orchestrate.wire.keys import QueueKeys

COUNT: Final = 500

Entries = list[tuple[str, dict[str, str]]]
REREAD_MS: Final = 5_000
REST_MS: Final = 5_000
DEADLINES_MS: Final = 1_000
READS_SHARE: Final = 20  # reads without an event take at most this fraction of the time: 1 in 20
POLL_MS: Final = 500


def read_streams(positions: Mapping[QueueKeys, str], wait_ms: int) -> Call[dict[QueueKeys, Entries]]:
    """Events after a position in each queue; waits up to ``wait_ms`` for the first."""
    queues = {queue.key("events"): queue for queue in positions}

    def decode(reply: Any) -> dict[QueueKeys, Entries]:
        return {queues[key]: entries for key, entries in replies.stream_entries(reply).items()}

    head: tuple[Word, ...] = ("XREAD", "COUNT", COUNT, "BLOCK", max(wait_ms, 1), "STREAMS")
    return command(*head, *queues, *positions.values(), decode=decode, blocks_for=wait_ms / 1000)


FoundNodes = dict[str, tuple[float, NodeStatus]]
Change = NodeChange | FlowChange


@dataclass(slots=True)
class Watch:
    """One reader of one flow.

    Attributes:
        seen: The reports so far.
        deadline: When the reader gives up, in monotonic ms; None for never.
        nodes: Every node with its rank, as last read.
        by_job: The names of the nodes, by job id.
        streams: The position in the events of each queue of the flow.
        due_ms: Monotonic ms; when to read all nodes again, even without an event.
        rest_ms: The max wait of one step for an event.
        enforced_ms: Monotonic ms; when the deadlines were last enforced.
        may_only_read: Whether this reader lacks the right to end expired jobs.
        is_over: Whether the end was reported.
    """

    ref: FlowRef
    clock: Clock
    seen: Reported
    deadline: int | None
    nodes: FoundNodes = field(default_factory=dict)
    by_job: dict[str, str] = field(default_factory=dict)
    streams: dict[QueueKeys, str] = field(default_factory=dict)
    due_ms: int = 0
    rest_ms: int = REST_MS
    enforced_ms: int = -DEADLINES_MS
    may_only_read: bool = False
    is_over: bool = False

    @property
    def backend(self) -> FlowBackend:
        """The backend of the flow. If it is carried, the watcher advances it and may read only one stream."""
        return backend_of(self.ref)


@dataclass(slots=True)
class Quiet:
    """How long there has been nothing to report."""

    clock: Clock
    rest: timedelta
    since_ms: int = field(init=False)

    def __post_init__(self) -> None:
        """Start now."""
        self.begin()

    def begin(self) -> None:
        """Start again: something was reported."""
        self.since_ms = self.clock.monotonic_ms()

    def is_over(self) -> bool:
        """Whether to report that there is nothing."""
        return self.clock.monotonic_ms() >= self.since_ms + milliseconds(self.rest)


def begin_watch(
    ref: FlowRef, after: str | None, timeout_ms: int | None, clock: Clock, *, rest_ms: int = REST_MS
) -> Watch:
    """Create a reader, without any call.

    Raises:
        ConfigurationError: ``after`` is not a position of this flow.
    """
    seen = Reported(ref.flow_id) if after is None else Reported.at(ref.flow_id, after)
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    return Watch(ref, clock, seen, deadline, rest_ms=max(rest_ms, 1))


def next_changes(watch: Watch) -> Op[list[Change]]:
    """The next changes; waits a few seconds at most for the first, and may then return none.

    Raises:
        WaitTimeout: The deadline has passed.
    """
    if watch.clock.monotonic_ms() < watch.due_ms:
        names = yield from _wait(watch)
        if names:
            return (yield from _changes(watch, (yield from _read(watch, names))))
        if names is not None:
            yield from _enforce_deadlines(watch)
            return []
    return (yield from _read_all(watch))


def _enforce_deadlines(watch: Watch) -> Op[None]:
    """Enforce the deadlines of a flow even if no worker or supervisor serves its home queue.

    Readers without the right to write skip this.
    """
    now_ms = watch.clock.monotonic_ms()
    if now_ms < watch.enforced_ms + DEADLINES_MS or watch.may_only_read:
        return
    watch.enforced_ms = now_ms
    if not (yield from ask(is_due(watch.ref.home, watch.clock.now_ms()))):
        return
    try:
        yield from unconfirmed(ask(expire_due(watch.ref.home, watch.clock.now_ms())))
    except ConfigurationError as exc:
        if exc.code != "NOPERM":
            raise
        watch.may_only_read = True
    else:
        watch.due_ms = now_ms


def _read_all(watch: Watch) -> Op[list[Change]]:
    """The changes found by reading the record and all nodes."""
    began = watch.clock.monotonic_ms()
    # The record first: if the flow has ended, so have the nodes that are read afterwards.
    ended = yield from _status(watch)
    found = yield from watch.backend.ranked(watch.ref)
    if (yield from _hold_streams(watch, found)):  # again, for changes before the positions were set
        ended = yield from _status(watch)
        found = yield from watch.backend.ranked(watch.ref)
    changes = yield from _changes(watch, found)
    now_ms = watch.clock.monotonic_ms()
    watch.due_ms = now_ms + max(REREAD_MS, (now_ms - began) * READS_SHARE)
    if watch.backend.is_carried:
        watch.due_ms = now_ms + POLL_MS
    return [*changes, *(yield from _end(watch, ended))] if ended.state.is_terminal else changes


def _status(watch: Watch) -> Op[FlowStatus]:
    if watch.backend.is_carried:  # its watchers advance it too
        yield from unconfirmed(watch.backend.advance(watch.ref, watch.clock))
    else:
        yield from _enforce_deadlines(watch)
    status = yield from watch.backend.status(watch.ref)
    raise_if_superseded(status)
    return status


def _hold_streams(watch: Watch, found: FoundNodes) -> Op[bool]:
    """Set the stream position of every queue without one; returns whether there were any."""
    queues = {watch.ref.home.queue}
    if not watch.backend.is_carried:  # otherwise its queues may be in other slots
        queues |= {node.queue for _, node in found.values()}
    places = {QueueKeys(watch.ref.home.prefix, queue) for queue in queues} - watch.streams.keys()
    for place in places:
        watch.streams[place] = yield from events.tail(place)
    return bool(places)


def _wait(watch: Watch) -> Op[list[str] | None]:
    """Wait for events; returns the nodes to read, or None for all."""
    now_ms = watch.clock.monotonic_ms()
    until = watch.due_ms if watch.deadline is None else min(watch.due_ms, watch.deadline)
    until = min(until, now_ms + watch.rest_ms)
    if until <= now_ms:
        raise WaitTimeout(
            f"flow {watch.ref.public_id} has not ended in time; continue after the last position"
        )
    # One trip: the server replies to the later calls once the blocking read has ended.
    todo: list[Call[Any]] = [read_streams(watch.streams, until - now_ms)]
    todo += map(events.first_event, watch.streams)
    if not watch.backend.is_carried:
        todo.append(flow_status(watch.ref.home, watch.ref.flow_id))
    read, *replies = yield from ask_all(todo)
    is_lost = _move(watch, read, replies[: len(watch.streams)])
    if watch.backend.is_carried:
        return None
    now: FlowStatus = replies[-1]
    if is_lost or now.state.is_terminal or now.total != len(watch.nodes):
        return None
    jobs = {fields.get("jobId", "") for entries in read.values() for _, fields in entries}
    return [watch.by_job[job] for job in jobs if job in watch.by_job]


def _move(watch: Watch, read: Mapping[QueueKeys, Entries], oldest: Sequence[str | None]) -> bool:
    """Advance in the streams; returns whether events were trimmed before they were read."""
    is_lost = False
    for place, first in zip(list(watch.streams), oldest, strict=True):
        if entries := read.get(place):
            is_lost = is_lost or entry_order(first or "0-0") > entry_order(watch.streams[place])
            watch.streams[place] = entries[-1][0]
    return is_lost


def _read(watch: Watch, names: Iterable[str]) -> Op[FoundNodes]:
    """Read known nodes again."""
    known = [watch.nodes[name] for name in names]
    gone = watch.backend.missing
    found: FoundNodes = {}
    for part in parts(known):
        asking = [one_node(watch.ref.home.prefix, node, gone) for _, node in part]
        nodes = yield from watch.backend.resolved(watch.ref, (yield from ask_all(asking)))
        found.update((node.name, (rank, node)) for (rank, _), node in zip(part, nodes, strict=True))
    return found


def _changes(watch: Watch, found: FoundNodes) -> Op[list[Change]]:
    """The differences, dependencies before dependents."""
    before = yield from _catch_up(watch, found)
    changes: list[Change] = []
    for rank, node in sorted((watch.nodes[name] for name in before), key=lambda one: (one[0], one[1].name)):
        if watch.seen.has(rank, node) and not _has_progressed(before[node.name], node):
            continue
        position = watch.seen.record(rank, node)
        at = time_of(node, _now(watch))
        changes.append(
            NodeChange(node.name, node.state, at, node.attempts, node.reason, node.progress, position)
        )
    return changes


def _catch_up(watch: Watch, news: FoundNodes) -> Op[dict[str, NodeStatus | None]]:
    """Apply the nodes that were read, and re-read dependencies that were read too early.

    A node may be read before it completes, and its dependent, in a later trip, after it has started. Once a
    node has started, its dependencies must have ended. So each of them is read again, once for every such
    dependent. If the node reruns, its dependencies may have rerun too. Returns the previous nodes.
    """
    before: dict[str, NodeStatus | None] = {}
    reread: set[tuple[str, str]] = set()
    while news:
        for name, (_, node) in news.items():
            before.setdefault(name, watch.nodes[name][1] if name in watch.nodes else None)
            watch.by_job[node.job_id] = name
        watch.nodes.update(news)
        early = {
            (node.name, name)
            for rank, node in news.values()
            if node.state != UNSEEN
            for is_again in [node.reruns > watch.seen.run(rank, node.name)]
            for name in node.after
            if name in watch.nodes and _may_be_early(watch, name, is_again=is_again)
        } - reread
        reread |= early
        news = yield from _read(watch, {name for _, name in early})
    return before


def _may_be_early(watch: Watch, name: str, *, is_again: bool) -> bool:
    """Whether a dependency of a node that has started may have been read before it ended.

    ``is_again``: the node reruns.
    """
    rank, node = watch.nodes[name]
    return not node.state.is_terminal or (is_again and watch.seen.has(rank, node))


def _has_progressed(before: NodeStatus | None, node: NodeStatus) -> bool:
    """Whether a node in the same state and turn as before has new progress."""
    return before is not None and node.state != UNSEEN and before.progress != node.progress


def _end(watch: Watch, ended: FlowStatus) -> Op[list[Change]]:
    """The change for the end of the flow, unless it was reported before.

    If the flow has restarted since its record was read, this is not the end: some nodes were read before the
    restart, some after it.
    """
    if watch.seen.has_end(ended.state, ended.finished_at):
        watch.is_over = True
        return []
    now = yield from watch.backend.status(watch.ref)
    raise_if_superseded(now)
    if (now.state, now.finished_at) != (ended.state, ended.finished_at):
        watch.due_ms = watch.clock.monotonic_ms()
        return []
    watch.is_over = True
    at = ended.finished_at or _now(watch)
    position = watch.seen.record_end(ended.state, ended.finished_at)
    return [FlowChange(watch.ref.public_id, ended.state, at, ended.reason, position)]


def _now(watch: Watch) -> datetime:
    return datetime.fromtimestamp(watch.clock.now_ms() / 1000, UTC)
