"""The flows of a server: finds and lists them, reads their history, and removes those no longer needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, GlideMQError
from glidemq_orchestrate.flows.backend import read_status, ref_of
from glidemq_orchestrate.flows.generation import (
    TOMBSTONE,
    FlowRef,
    Generation,
    every_generation,
    is_expired,
    no_flow,
    record_fields,
    status_of_record,
)
from glidemq_orchestrate.flows.home import (
    drop_claim_after,
    find_generation,
    home_of,
    home_queues,
    keep_claim,
    leave_homes,
    release_id,
)
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import (
    Call,
    Op,
    ask,
    ask_all,
    ask_each,
    command,
    function,
    parts,
    side_by_side,
)
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE: Final = 100
ABANDONED_AFTER: Final = timedelta(minutes=15)
MAX_LISTED: Final = 10_000
LISTED: Final[Sequence[FlowState]] = tuple(state for state in FlowState if state is not FlowState.UNKNOWN)
SLICES: Final = 20


@dataclass(frozen=True, slots=True)
class Filter:
    """Which flows to list; empty fields do not filter. ``since_ms`` is the earliest time of creation."""

    state: str = ""
    label: tuple[str, str] | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class IndexPosition:
    """A position in a list, newest first: time (ms) and id of the flow before it; '' at the start."""

    time: str = ""
    flow_id: str = ""


def list_page(
    home: QueueKeys, filter_: Filter, after: IndexPosition, count: int
) -> Call[tuple[IndexPosition | None, list[FlowStatus]]]:
    """The next position (None at the end), and a page of the flows of a home queue, newest first."""
    words: dict[str, str] = {}
    if filter_.state:
        words["state"] = filter_.state
    if filter_.label is not None:
        words["label"] = "=".join(filter_.label)
    if filter_.since_ms is not None:
        words["since"] = str(filter_.since_ms)
    if after.time:
        words |= {"time": after.time, "id": after.flow_id}

    def decode(reply: Any) -> tuple[IndexPosition | None, list[FlowStatus]]:
        time, flow_id, *rest = reply
        rows = zip(rest[::2], rest[1::2], strict=True)
        found = [status_of_record(home, replies.text(name), replies.fields(fields)) for name, fields in rows]
        return (IndexPosition(replies.text(time), replies.text(flow_id)) if time else None), found

    args = (0, json.dumps(words), min(count, PAGE))
    return function("gmo_list_flows", [home.flows()], args, decode)


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a slice of a sweep.

    Attributes:
        is_busy: Whether there may be more to do.
        removed: The id of a flow that was removed, possibly except for its tombstone; '' for none.
        tombstone_ms: The remaining life of its tombstone; 0 for none.
    """

    is_busy: bool
    removed: str
    tombstone_ms: int


def sweep_slice(home: QueueKeys, *, abandoned_before_ms: int, tombstone_ms: int, now_ms: int) -> Call[Swept]:
    """Remove a slice of the due flows. Idempotent."""
    args = (now_ms, abandoned_before_ms, tombstone_ms)

    def decode(reply: Any) -> Swept:
        busy, removed, ms = (reply, "", 0) if isinstance(reply, int) else reply
        return Swept(busy == 1, replies.text(removed), replies.integer(ms))

    return function("gmo_sweep", [home.flows()], args, decode)


Label = tuple[str, str]


def list_flows(  # noqa: PLR0913  one filter each
    prefix: str,
    *,
    state: FlowState | str | None,
    label: Label | None,
    since: datetime | None,
    before: FlowStatus | None,
    limit: int,
) -> Op[list[FlowStatus]]:
    """List the newest flows of all home queues that match the filters."""
    filter_ = _filter(state, label, since)
    if not 1 <= limit <= MAX_LISTED:
        raise ConfigurationError(f"limit must be 1 to {MAX_LISTED:,}, got {described(limit)}")
    start = IndexPosition()
    if before is not None:
        start = IndexPosition(str(_ms(before.created_at)), before.stored_as or before.id)
    homes = yield from ask(home_queues(prefix))
    every = yield from side_by_side(
        [_of_home(QueueKeys(prefix, home), filter_, start, limit) for home in homes]
    )
    found = list(chain.from_iterable(every))
    found.sort(key=lambda flow: (_ms(flow.created_at), flow.id.encode()), reverse=True)
    return found[:limit]


def _of_home(home: QueueKeys, filter_: Filter, start: IndexPosition, limit: int) -> Op[list[FlowStatus]]:
    found: list[FlowStatus] = []
    at: IndexPosition | None = start
    while at is not None and len(found) < limit:
        at, page = yield from ask(list_page(home, filter_, at, limit - len(found)))
        # "a" = "b=c" and "a=b" = "c" share an index entry.
        found += [flow for flow in page if filter_.label is None or filter_.label in flow.labels.items()]
    return found


def _filter(state: FlowState | str | None, label: Label | None, since: datetime | None) -> Filter:
    if state is not None and state not in list(FlowState):
        raise ConfigurationError(f"state must be one of {', '.join(FlowState)}, got {described(state)}")
    if label is not None and (isinstance(label, str) or len(label) != 2):
        raise ConfigurationError(f"label must be a pair of key and value, got {described(label)}")
    if since is not None and since.tzinfo is None:
        raise ConfigurationError("since must have a time zone")
    return Filter(str(state or ""), label, None if since is None else _ms(since))


def _ms(moment: datetime | None) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1000)


def _free(home: QueueKeys, swept: Swept) -> Op[None]:
    """Free the id of a removed flow, since its claim is in another slot."""
    if swept.tombstone_ms:
        yield from ask(drop_claim_after(home.prefix, swept.removed, swept.tombstone_ms))
        # A generation that began since then has relied on the claim.
        current = yield from find_generation(home, swept.removed)
        if current and not (yield from ask(is_expired(home, current.stored_as))):
            yield from ask(keep_claim(home.prefix, swept.removed))
    else:
        yield from release_id(home, swept.removed)
    yield from leave_homes(home)


def sweep(
    queues: Sequence[QueueKeys],
    clock: Clock,
    *,
    abandoned_after: timedelta = ABANDONED_AFTER,
    tombstone: timedelta = TOMBSTONE,
    slices: int = SLICES,
) -> Op[bool]:
    """Remove due flows of these home queues, at most ``slices`` of each. Returns whether more are due.

    It removes half-submitted flows that were not touched for ``abandoned_after``; the jobs and results of
    flows after their retention, leaving a tombstone for ``tombstone``; and nodes that were staged for a flow
    but never added. Idempotent, by any client at any time.
    """
    busy = list(queues)
    for _ in range(slices):
        now_ms = clock.now_ms()
        calls = [
            sweep_slice(
                queue,
                abandoned_before_ms=now_ms - milliseconds(abandoned_after),
                tombstone_ms=milliseconds(tombstone),
                now_ms=now_ms,
            )
            for queue in busy
        ]
        replies = yield from ask_all(calls)
        for queue, swept in zip(busy, replies, strict=True):
            if swept.removed:
                yield from _free(queue, swept)
        busy = [queue for queue, swept in zip(busy, replies, strict=True) if swept.is_busy]
        if not busy:
            return False
    return True


def running_flows(home: QueueKeys, first: int, count: int) -> Call[list[str]]:
    """A page of the ids of running flows of a home queue."""
    return command("ZRANGE", f"{home.flows()}:state:running", first, first + count - 1, decode=list)


def flow_counts(prefix: str) -> Op[dict[str, dict[FlowState, int] | GlideMQError]]:
    """How many flows are listed in each state, by home queue; an error for a home that cannot be read."""
    homes: list[str] = yield from ask(home_queues(prefix))
    found: dict[str, dict[FlowState, int] | GlideMQError] = {}
    for some in parts(homes, PER_TRIP):
        keys = [f"{QueueKeys(prefix, home).flows()}:state:{state}" for home in some for state in LISTED]
        sizes = yield from ask_each([command("ZCARD", key, decode=int) for key in keys])
        for at, home in enumerate(some):
            mine = dict(zip(LISTED, sizes[at * len(LISTED) :], strict=False))
            failed = [size for size in mine.values() if isinstance(size, GlideMQError)]
            counts: dict[FlowState, int] = {
                state: size for state, size in mine.items() if not isinstance(size, GlideMQError)
            }
            found[home] = failed[0] if failed else counts
    return found


def unsettled_flows(queue: QueueKeys, count: int) -> Call[list[str]]:
    """Up to ``count`` flows of this home that need ``advance_flow``."""
    return command("SRANDMEMBER", queue.key("gmo:todo"), count, decode=list)


PER_TRIP: Final = 250


class CurrentGeneration(NamedTuple):
    """The reference to the current generation of a flow, and its record."""

    ref: FlowRef
    found: Generation


def find_flow(prefix: str, flow_id: str) -> Op[CurrentGeneration]:
    """Find the current generation of a flow.

    Raises:
        FlowNotFound: There is no flow with this id.
    """
    home = yield from ask(home_of(prefix, flow_id))
    if home is not None and (found := (yield from find_generation(home, flow_id))):
        return CurrentGeneration(ref_of(home, found), found)
    raise FlowNotFound(f"no flow {flow_id} on this server")


def flow_statuses(refs: Sequence[FlowRef]) -> Op[list[FlowStatus | None]]:
    """The status of each of these generations, of any flows; None for one that no longer exists."""
    found: list[FlowStatus | None] = []
    for part in parts(refs, PER_TRIP):
        records = yield from ask_all([record_fields(ref.home, ref.flow_id) for ref in part])
        found += [
            read_status(ref.home, ref.flow_id, record) if "digest" in record else None
            for ref, record in zip(part, records, strict=True)
        ]
    return found


def flow_history(ref: FlowRef) -> Op[list[FlowStatus]]:
    """The status of every recorded generation, oldest first."""
    every = yield from ask(every_generation(ref.home, ref.public_id))
    stored = [found.stored_as for found in every] or [ref.flow_id]
    every_status = yield from flow_statuses([replace(ref, flow_id=one) for one in stored])
    found = [status for status in every_status if status]  # None: it was only a claim
    if not found:
        raise no_flow(ref)
    return found


def find_ref(prefix: str, flow_id: str) -> Op[FlowRef]:
    """Find a flow by its id.

    Raises:
        FlowNotFound: There is no flow with this id.
    """
    return (yield from find_flow(prefix, flow_id)).ref
