"""The owners of a portable flow; ``parts/owners.lua`` does the same for flows within one slot.

The record contains ``owner:<round>:<name>``: the lease in ms, and what happens when it expires. It also
contains ``silent:<round>:<name>``, which the first check without a new renewal writes: the times of the last
renewal and of that check. The leases are stored as for staged flows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.owner import (
    MAX,
    Owner,
    begin_lease,
    last_renewal,
    lease_name,
    remove_leases,
    silent_leases,
)
from glidemq_orchestrate.flows.portable import records
from glidemq_orchestrate.flows.portable.reading import record_of, unsuperseded
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

FORGOTTEN_MS: Final = 2 * milliseconds(MAX)
PER_FLOW: Final = 100


class _Owned(NamedTuple):
    name: str
    lease_ms: int
    choice: str


def own(ref: FlowRef, owner: Owner, clock: Clock) -> Op[FlowState]:
    """Add an owner to a flow, or renew its lease. Returns the state. An ended flow is unchanged. Idempotent.

    An owner that does not join flows is renewed only if it already owns the flow.

    Raises:
        FlowNotFound, Superseded: The flow cannot be owned.
    """
    record = yield from unsuperseded(ref)
    may_own = owner.joins or any(owned.name == owner.name for owned in _owners(record))
    if not record.state.is_terminal and may_own:
        yield from own_round(ref, owner, max(record.number, 0), clock)
    return record.state


def own_round(ref: FlowRef, owner: Owner, number: int, clock: Clock) -> Op[None]:
    """Add an owner to a round of a flow, which may not have begun. Idempotent."""
    yield from ask(begin_lease(ref.home, owner, clock.now_ms()))
    text = f"{owner.lease_ms}\n{owner.on_expiry}"
    yield from ask(records.write(ref.home, ref.flow_id, {f"owner:{number}:{owner.name}": text}))


def names(ref: FlowRef) -> Op[list[str]]:
    """The names of the owners of a flow that has not ended, sorted."""
    record = yield from record_of(ref)
    return [] if record.state.is_terminal else sorted(owned.name for owned in _owners(record))


def abandoned(ref: FlowRef, record: Record, clock: Clock) -> Op[str]:
    """Why the round of a flow must be cancelled, if the leases of all its owners have expired; else ''."""
    owners = _owners(record)
    if not owners:
        return ""
    renewed_ms = yield from ask_all(
        [last_renewal(ref.home, lease_name(owned.name, owned.lease_ms)) for owned in owners]
    )
    now_ms, is_wanted = clock.now_ms(), False
    for owned, at in zip(owners, renewed_ms, strict=True):
        if at is not None and now_ms < at + owned.lease_ms // 2:
            is_wanted = True
        elif not _has_expired(owned, at or 0, record, now_ms):
            mark = f"silent:{record.number}:{owned.name}"
            if not record.fields.get(mark, "").startswith(f"{at or 0} "):
                yield from ask(records.write(ref.home, ref.flow_id, {mark: f"{at or 0} {now_ms}"}))
            is_wanted = True
    pairs = [(owned, at or 0) for owned, at in zip(owners, renewed_ms, strict=True)]
    last, at = max(pairs, key=lambda pair: pair[1] + pair[0].lease_ms)
    return "" if is_wanted or last.choice != "cancel" else _reason(last, at)


def _has_expired(owned: _Owned, renewed_ms: int, record: Record, now_ms: int) -> bool:
    """Whether a lease has expired, and a check half a lease ago already found no new renewal."""
    before, _, since = record.fields.get(f"silent:{record.number}:{owned.name}", "").partition(" ")
    is_known = before == str(renewed_ms) and now_ms >= int(since) + owned.lease_ms // 2
    return is_known and now_ms >= renewed_ms + owned.lease_ms


def _owners(record: Record) -> list[_Owned]:
    found: dict[str, str] = {}
    for number in reversed(record.lasting):
        start = f"owner:{number}:"
        own = {name: text for name, text in record.fields.items() if name.startswith(start)}
        found |= {name.removeprefix(start): text for name, text in own.items()}
    pairs = [(name, text.partition("\n")) for name, text in found.items()]
    return [_Owned(name, int(lease), choice) for name, (lease, _, choice) in pairs]


def _reason(owned: _Owned, renewed_ms: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=renewed_ms)
    when = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    lasts = f"its lease lasts {owned.lease_ms / 1000:g} s"
    return f"its owner {owned.name} is gone: its last renewal was at {when}, {lasts}"


def forget(home: QueueKeys, record: Record, clock: Clock) -> Op[None]:
    """When a flow with owners is removed, remove leases that expired long ago. Idempotent."""
    if any(name.startswith("owner:") for name in record.fields):
        gone = yield from ask(silent_leases(home, clock.now_ms() - FORGOTTEN_MS, PER_FLOW))
        if gone:
            yield from ask(remove_leases(home, gone))
