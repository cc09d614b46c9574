"""Lost jobs of a flow within one slot.

Open nodes that would never end are requeued, or end with a clear reason. Before a retry, removed jobs are
found: some can be recreated, others need a new submission.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.events import entry_order
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import TABLE_PAGE, read_rows
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.job_hash import JobField, end_of_stub
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import (
    Call,
    Op,
    Word,
    ask,
    ask_all,
    command,
    function,
    members,
    members_page,
    parts,
)
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys, read_ref

PAGE: Final = 100


STREAM_PAGE: Final = 500
STREAM_PAGES: Final = 200
EVENT_PAGES: Final = 11


@dataclass(frozen=True, slots=True)
class Suspect:
    """An open node whose job may be lost: queue, job id, and its state on the server; '' if it is missing."""

    queue: QueueKeys
    job_id: str
    trace: str

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for dependencies, which may all have ended."""
        return self.trace.startswith("waiting-children|")


def check_open(
    home: QueueKeys, flow_id: str, position: int, silent_ms: int, now_ms: int
) -> Call[tuple[int, list[Suspect]]]:
    """Check and repair a page of a flow's open nodes; returns the next position (0 at the end) and suspects.

    Positions follow the order in which the nodes joined, so they stay valid in another server process.
    """

    def decode(reply: Any) -> tuple[int, list[Suspect]]:
        suspects = [_suspect(ref, trace) for ref, trace in replies.rows(2)(reply[1:])]
        return int(reply[0]), suspects

    args = (now_ms, flow_id, position, PAGE, silent_ms)
    return function("gmo_check_open", [home.flow(flow_id)], args, decode)


def _suspect(ref: str, trace: str) -> Suspect:
    """Build a suspect from the ref of its job."""
    base, _, job_id = ref.rpartition(":")
    prefix, _, queue = base.rpartition(":")
    return Suspect(QueueKeys(prefix, queue[1:-1]), job_id, trace)


def notify_again(
    home: QueueKeys, flow_id: str, suspect: Suspect, refs: Sequence[str], now_ms: int
) -> Call[int]:
    """Notify a blocked node of the ends of these dependencies; without refs, release or end it.

    Returns 0 if one of them has not ended, or the node no longer waits. Idempotent.
    """
    keys = [home.flow(flow_id), suspect.queue.job(suspect.job_id)]
    return function("gmo_notify_again", keys, (now_ms, flow_id, suspect.job_id, *refs), replies.integer)


def stream_page(queue: QueueKeys, after: str) -> Call[list[tuple[str, str]]]:
    """Entry id and job id of the entries after a position, ``""`` for the start; empty at the end."""
    start = f"({after}" if after else "-"

    def decode(reply: Any) -> list[tuple[str, str]]:
        return [(entry_id, replies.pairs(fields or []).get("jobId", "")) for entry_id, fields in reply]

    return command("XRANGE", queue.key("stream"), start, "+", "COUNT", STREAM_PAGE, decode=decode)


def has_holder(queue: QueueKeys, entry_id: str) -> Call[bool]:
    """Whether a worker holds the entry."""
    return command("XPENDING", queue.key("stream"), GROUP, entry_id, entry_id, 1, decode=bool)


def delivered(queue: QueueKeys) -> Call[tuple[int, int]]:
    """The last entry delivered to the workers' group."""

    def decode(reply: Any) -> tuple[int, int]:
        for group in reply:
            fields = replies.pairs(group)
            if fields["name"] == GROUP:
                return entry_order(str(fields["last-delivered-id"]))
        return (0, 0)

    return command("XINFO", "GROUPS", queue.key("stream"), decode=decode)


def put_back(suspect: Suspect, dead_entry: str, now_ms: int) -> Call[int]:
    """Requeue a lost job in the stream unless it has changed; returns 1 if it was requeued. Idempotent."""
    keys = [suspect.queue.job(suspect.job_id), suspect.queue.key("stream")]
    return function(
        "gmo_put_back", keys, (now_ms, suspect.job_id, suspect.trace, dead_entry), replies.integer
    )


def recent_events(queue: QueueKeys, before: str) -> Call[list[tuple[str, dict[str, str]]]]:
    """A page of events before a position, newest first; ``""`` for the end of the stream."""
    start = f"({before}" if before else "+"
    return command(
        "XREVRANGE",
        queue.key("events"),
        start,
        "-",
        "COUNT",
        PAGE,
        decode=lambda reply: [(entry_id, replies.pairs(fields or [])) for entry_id, fields in reply],
    )


def settle_missing(  # noqa: PLR0913  the arguments of one server call
    home: QueueKeys,
    flow_id: str,
    missing: Suspect,
    *,
    outcome: Mapping[str, Any],
    dependents: Iterable[str],
    now_ms: int,
) -> Call[int]:
    """End a node whose job was removed; returns 1 if this call ended it. Idempotent."""
    queue, job_id = missing.queue, missing.job_id
    keys = [home.flow(flow_id), queue.job(job_id), queue.parents(job_id)]
    args: list[Word] = [now_ms, flow_id, job_id, json.dumps(outcome), *dependents]
    return function("gmo_settle_missing", keys, args, replies.integer)


def bring_back(home: QueueKeys, flow_id: str, suspects: Sequence[Suspect], clock: Clock) -> Op[None]:
    """Requeue or end the nodes that ``gmo_check_open`` could not locate."""
    removed = [suspect for suspect in suspects if not suspect.trace]
    if removed:
        yield from _end_removed(home, flow_id, removed, clock)
    lost = [suspect for suspect in suspects if suspect.trace and not suspect.is_blocked]
    for queue in {suspect.queue for suspect in lost}:
        yield from _search(queue, [suspect for suspect in lost if suspect.queue == queue], clock)
    for suspect in suspects:
        if suspect.is_blocked:
            yield from _notify_again(home, flow_id, suspect, clock)


def _notify_again(home: QueueKeys, flow_id: str, suspect: Suspect, clock: Clock) -> Op[None]:
    """Notify a node with many dependencies of their ends, unless one of them has not ended."""
    key, cursor = suspect.queue.deps(suspect.job_id), "0"
    while True:
        cursor, refs = yield from ask(members_page(key, cursor, PAGE))
        for page in parts(refs, PAGE):
            if not (yield from ask(notify_again(home, flow_id, suspect, page, clock.now_ms()))):
                return
        if cursor == "0":
            break
    yield from ask(notify_again(home, flow_id, suspect, (), clock.now_ms()))


def _search(queue: QueueKeys, suspects: Collection[Suspect], clock: Clock) -> Op[None]:
    """Read the whole stream once; requeue each job that is not in it, or only in a dead entry.

    A job that moves during the search either gets an entry at the end, where it is found, or changes its
    state.
    """
    searched = {suspect.job_id for suspect in suspects}
    found: dict[str, list[str]] = defaultdict(list)
    position = ""
    for _ in range(STREAM_PAGES):
        page = yield from ask(stream_page(queue, position))
        for entry_id, job_id in page:
            if job_id in searched:
                found[job_id].append(entry_id)
        if len(page) < STREAM_PAGE:
            break
        position = page[-1][0]
    else:
        return  # the next lap searches again, in a shorter stream
    dead = yield from _dead_entries(queue, [entry_id for ids in found.values() for entry_id in ids])
    for suspect in suspects:
        entries = found.get(suspect.job_id, [])
        if all(entry_id in dead for entry_id in entries):
            yield from ask(put_back(suspect, entries[0] if entries else "", clock.now_ms()))


def _dead_entries(queue: QueueKeys, entry_ids: Sequence[str]) -> Op[set[str]]:
    """The delivered entries that no worker holds."""
    if not entry_ids:
        return set()
    try:
        newest = yield from ask(delivered(queue))
        held = yield from ask_all([has_holder(queue, entry_id) for entry_id in entry_ids])
    except ProtocolError:
        return set()  # no group: a new one starts at the beginning
    return {
        entry_id
        for entry_id, is_held in zip(entry_ids, held, strict=True)
        if not is_held and entry_order(entry_id) <= newest
    }


def _end_removed(home: QueueKeys, flow_id: str, removed: Sequence[Suspect], clock: Clock) -> Op[None]:
    """End nodes whose jobs were removed: as completed if an event or a dependent proves it, or failed."""
    table = yield from read_rows(FlowRef(home, flow_id))
    places = {(row[1], row[2]): name for name, row in table.items()}
    dependents: dict[str, list[str]] = defaultdict(list)
    for row in table.values():
        for name in row[4:]:
            dependents[name].append(f"{QueueKeys(home.prefix, row[1]).base}:{row[2]}")
    results: dict[QueueKeys, dict[str, str]] = {}
    for lost in removed:
        if lost.queue not in results:
            results[lost.queue] = yield from _completions(lost.queue)
        node = places.get((lost.queue.queue, lost.job_id), lost.job_id)
        result = results[lost.queue].get(lost.job_id)
        end = {
            "node": node,
            "job": table[node][3] if node in table else "",
            "completed": result is not None,
            "result": result or "null",
            "reason": f"job {lost.job_id} was removed from queue {lost.queue.queue} before its end was known",
        }
        yield from ask(
            settle_missing(
                home, flow_id, lost, outcome=end, dependents=dependents[node], now_ms=clock.now_ms()
            )
        )


def _completions(queue: QueueKeys) -> Op[dict[str, str]]:
    """The results in the stored events, by job; not those of jobs that were removed first."""
    results: dict[str, str | None] = {}
    position = ""
    for _ in range(EVENT_PAGES):
        page = yield from ask(recent_events(queue, position))
        for _, fields in page:  # newest first: the oldest event decides
            if fields.get("event") in ("completed", "removed"):
                results[fields.get("jobId", "")] = fields.get("returnvalue")
        if len(page) < PAGE:
            break
        position = page[-1][0]
    return {job_id: result for job_id, result in results.items() if result is not None}


_REMOVAL_FIELDS: Final[tuple[JobField, ...]] = ("state", "gmo:removed", "gmo:gone")


@dataclass(slots=True)
class Removed:
    """The removed jobs among those that a retry must run, and among their dependencies.

    Attributes:
        needed: Refs of completed nodes that must rerun, since their results were removed.
        lost: Ids of jobs removed with their data.
    """

    needed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def find_removed(home: QueueKeys, flow_id: str) -> Op[Removed]:
    """Find the removed jobs in an ended staged flow. Reads the nodes to rerun, with their edges."""
    found, seen, cursor = Removed(), set[str](), "0"
    while True:
        cursor, failed = yield from ask(members_page(f"{home.flow(flow_id)}:failed", cursor, TABLE_PAGE))
        again: Sequence[str] = failed
        while again:  # the dependencies of a removed node may have been removed too
            known = len(found.needed)
            for part in parts(again):
                places = [read_ref(home.prefix, one) for one in part]
                every = yield from ask_all([members(queue.deps(job_id)) for queue, job_id in places])
                refs = {one for some in (part, *every) for one in some} - seen
                seen |= refs
                yield from _sort(home, sorted(refs), found)
            again = found.needed[known:]
        if cursor == "0":
            return found


def _sort(home: QueueKeys, refs: Sequence[str], found: Removed) -> Op[None]:
    for part in parts(refs):
        places = [read_ref(home.prefix, one) for one in part]
        rows = yield from ask_all([job_hash.get_some(*place, _REMOVAL_FIELDS, list) for place in places])
        for ref, (_, job_id), (state, stub, is_lost) in zip(part, places, rows, strict=True):
            if is_lost or not (state or stub):
                found.lost.append(job_id)
            elif not state and end_of_stub(stub) == "completed":
                found.needed.append(ref)


def lost(ref: FlowRef) -> Op[list[str]]:
    """The jobs that a retry must run but that were removed with their data."""
    return (yield from find_removed(ref.home, ref.flow_id)).lost
