"""Open nodes that nothing would ever end: brought back to their queues, or ended with a clear reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from glidemq_orchestrate._protocol.flows import stalled as calls
from glidemq_orchestrate._protocol.flows.nodes import Row
from glidemq_orchestrate._protocol.flows.stalled import Suspect
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

STREAM_PAGES: Final = 200
EVENT_PAGES: Final = 11


def bring_back(home: QueueKeys, flow_id: str, suspects: Sequence[Suspect], clock: Clock) -> Op[None]:
    """Bring back or end the nodes that ``gmo_check_open`` could not place."""
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
    """Notify a node with many dependencies of how they ended, unless one of them has not."""
    cursor = "0"
    while True:
        cursor, refs = yield from ask(calls.dependencies(suspect, cursor))
        for first in range(0, len(refs), calls.PAGE):
            page = refs[first : first + calls.PAGE]
            if not (yield from ask(calls.notify_again(home, flow_id, suspect, page, clock.now_ms()))):
                return
        if cursor == "0":
            break
    yield from ask(calls.notify_again(home, flow_id, suspect, (), clock.now_ms()))


def _search(queue: QueueKeys, suspects: Collection[Suspect], clock: Clock) -> Op[None]:
    """Read the stream to its end, once; put back each job that is not in it, or only in a dead entry.

    A job that moves meanwhile gets an entry at the end, where it is seen, or has another trace.
    """
    wanted = {suspect.job_id for suspect in suspects}
    found: dict[str, list[str]] = defaultdict(list)
    position = ""
    for _ in range(STREAM_PAGES):
        page = yield from ask(calls.stream_page(queue, position))
        for entry_id, job_id in page:
            if job_id in wanted:
                found[job_id].append(entry_id)
        if len(page) < calls.STREAM_PAGE:
            break
        position = page[-1][0]
    else:
        return  # the next lap searches again, in a shorter stream
    dead = yield from _dead_entries(queue, [entry_id for ids in found.values() for entry_id in ids])
    for suspect in suspects:
        entries = found.get(suspect.job_id, [])
        if all(entry_id in dead for entry_id in entries):
            yield from ask(calls.put_back(suspect, entries[0] if entries else "", clock.now_ms()))


def _dead_entries(queue: QueueKeys, entry_ids: Sequence[str]) -> Op[set[str]]:
    """The entries that were delivered and that no worker holds."""
    if not entry_ids:
        return set()
    try:
        newest = yield from ask(calls.delivered(queue))
        held = yield from ask_all([calls.is_held(queue, entry_id) for entry_id in entry_ids])
    except ProtocolError:
        return set()  # no group: a new one will start at the beginning
    return {
        entry_id
        for entry_id, is_held in zip(entry_ids, held, strict=True)
        if not is_held and calls.entry_order(entry_id) <= newest
    }


def _end_removed(home: QueueKeys, flow_id: str, removed: Sequence[Suspect], clock: Clock) -> Op[None]:
    """End nodes whose jobs were removed: as completed if an event or a dependent shows it, else as failed."""
    table = yield from _table(home, flow_id)
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
            calls.settle_missing(
                home, flow_id, lost, outcome=end, dependents=dependents[node], now_ms=clock.now_ms()
            )
        )


def _table(home: QueueKeys, flow_id: str) -> Op[dict[str, Row]]:
    """The flow's table of nodes by name, read in pages."""
    table: dict[str, Row] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(calls.node_table(home, flow_id, cursor))
        table.update(page)
        if cursor == "0":
            return table


def _completions(queue: QueueKeys) -> Op[dict[str, str]]:
    """The results in the stored events, by job; not of jobs that were removed first."""
    results: dict[str, str | None] = {}
    position = ""
    for _ in range(EVENT_PAGES):
        page = yield from ask(calls.recent_events(queue, position))
        for _, fields in page:  # from new to old: the oldest event decides
            if fields.get("event") in ("completed", "removed"):
                results[fields.get("jobId", "")] = fields.get("returnvalue")
        if len(page) < calls.PAGE:
            break
        position = page[-1][0]
    return {job_id: result for job_id, result in results.items() if result is not None}
