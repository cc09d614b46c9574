"""Listing the flows of a server, and removing what is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from glidemq_orchestrate._ops.flows.claim import found, leave, release
from glidemq_orchestrate._protocol.flows import claim, generations, index
from glidemq_orchestrate._protocol.flows.index import Filter, IndexPosition, Swept
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.spec import FlowState, FlowStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

ABANDONED_AFTER: Final = timedelta(minutes=15)
TOMBSTONE: Final = timedelta(days=30)
MAX_LISTED: Final = 10_000
SLICES: Final = 20

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
    wanted = _filter(state, label, since)
    if not 1 <= limit <= MAX_LISTED:
        raise ConfigurationError(f"limit must be 1 to {MAX_LISTED:,}, got {described(limit)}")
    start = IndexPosition()
    if before is not None:
        start = IndexPosition(str(_ms(before.created_at)), before.stored_as or before.id)
    found: list[FlowStatus] = []
    for home in (yield from ask(index.homes(prefix))):
        found += yield from _of_home(QueueKeys(prefix, home), wanted, start, limit)
    found.sort(key=lambda flow: (_ms(flow.created_at), flow.id.encode()), reverse=True)
    return found[:limit]


def _of_home(home: QueueKeys, wanted: Filter, start: IndexPosition, limit: int) -> Op[list[FlowStatus]]:
    found: list[FlowStatus] = []
    at: IndexPosition | None = start
    while at is not None and len(found) < limit:
        at, page = yield from ask(index.list_flows(home, wanted, at, limit - len(found)))
        # "a" = "b=c" and "a=b" = "c" share an index entry.
        found += [flow for flow in page if wanted.label is None or wanted.label in flow.labels.items()]
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
    """Free the id of a flow that was removed; its claim is in another slot."""
    if swept.tombstone_ms:
        yield from ask(claim.unclaim_after(home.prefix, swept.removed, swept.tombstone_ms))
        # A generation that began since has relied on the claim.
        current = yield from found(home, swept.removed)
        if current and not (yield from ask(generations.is_expired(home, current.stored_as))):
            yield from ask(claim.keep(home.prefix, swept.removed))
    else:
        yield from release(home, swept.removed)
    yield from leave(home)


def sweep(
    queues: Sequence[QueueKeys],
    clock: Clock,
    *,
    abandoned_after: timedelta = ABANDONED_AFTER,
    tombstone: timedelta = TOMBSTONE,
    slices: int = SLICES,
) -> Op[bool]:
    """Remove what is due in these home queues, at most this many slices of each. Returns whether more is due.

    Removed are flows whose submission stopped half-way and that were not touched for ``abandoned_after``; the
    jobs and results of flows after their retention, which leave a tombstone for ``tombstone``; and nodes that
    were staged for a flow and never added. Repeatable by any client at any time.
    """
    busy = list(queues)
    for _ in range(slices):
        now_ms = clock.now_ms()
        calls = [
            index.sweep(
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
