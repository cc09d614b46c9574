"""Who owns a portable flow: what ``parts/owners.lua`` does for flows within one slot.

The record holds ``owner:<round>:<name>``, the lapse in ms and what happens then, and
``silent:<round>:<name>``, written by the first look that finds an owner silent: when it had been heard of,
and when that look was. The leases are those of staged flows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from glidemq_orchestrate.flows import owner_leases
from glidemq_orchestrate.flows.owner import MAX, Owner
from glidemq_orchestrate.flows.portable import record as records
from glidemq_orchestrate.flows.portable.reading import record_of, unsuperseded
from glidemq_orchestrate.flows.portable.record import Record
from glidemq_orchestrate.flows.ref import FlowRef
from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

FORGOTTEN_MS: Final = 2 * milliseconds(MAX)
PER_FLOW: Final = 100


class _Owned(NamedTuple):
    name: str
    lapse_ms: int
    choice: str


def own(ref: FlowRef, owner: Owner, clock: Clock) -> Op[FlowState]:
    """Add an owner to a flow, or renew it; an ended one is not changed. Returns the state. Repeatable.

    One that does not join is renewed if it owns the flow already.

    Raises:
        FlowNotFound, Superseded: The flow cannot be owned.
    """
    record = yield from unsuperseded(ref)
    may_own = owner.joins or any(one.name == owner.name for one in _owners(record))
    if not record.state.is_terminal and may_own:
        yield from own_round(ref, owner, max(record.number, 0), clock)
    return record.state


def own_round(ref: FlowRef, owner: Owner, number: int, clock: Clock) -> Op[None]:
    """Give a round of a flow, which may not have begun, to an owner. Repeatable."""
    yield from ask(owner_leases.begin(ref.home, owner, clock.now_ms()))
    text = f"{owner.lease_ms}\n{owner.on_expiry}"
    yield from ask(records.write(ref.home, ref.flow_id, {f"owner:{number}:{owner.name}": text}))


def names(ref: FlowRef) -> Op[list[str]]:
    """The names of the owners of a flow that has not ended, sorted."""
    record = yield from record_of(ref)
    return [] if record.state.is_terminal else sorted(one.name for one in _owners(record))


def abandoned(ref: FlowRef, record: Record, clock: Clock) -> Op[str]:
    """Why the round of a flow is to be cancelled, since all its owners have vanished; '' if it is not."""
    owners = _owners(record)
    if not owners:
        return ""
    heard = yield from ask_all(
        [owner_leases.heard(ref.home, owner_leases.lease(one.name, one.lapse_ms)) for one in owners]
    )
    now_ms, is_wanted = clock.now_ms(), False
    for one, at in zip(owners, heard, strict=True):
        if at is not None and now_ms < at + one.lapse_ms // 2:
            is_wanted = True
        elif not _is_gone(one, at or 0, record, now_ms):
            mark = f"silent:{record.number}:{one.name}"
            if not record.fields.get(mark, "").startswith(f"{at or 0} "):
                yield from ask(records.write(ref.home, ref.flow_id, {mark: f"{at or 0} {now_ms}"}))
            is_wanted = True
    pairs = [(one, at or 0) for one, at in zip(owners, heard, strict=True)]
    last, at = max(pairs, key=lambda pair: pair[1] + pair[0].lapse_ms)
    return "" if is_wanted or last.choice != "cancel" else _reason(last, at)


def _is_gone(one: _Owned, heard: int, record: Record, now_ms: int) -> bool:
    """Whether an owner is silent beyond its lapse, and was at a look half a lapse ago too."""
    before, _, since = record.fields.get(f"silent:{record.number}:{one.name}", "").partition(" ")
    is_known = before == str(heard) and now_ms >= int(since) + one.lapse_ms // 2
    return is_known and now_ms >= heard + one.lapse_ms


def _owners(record: Record) -> list[_Owned]:
    found: dict[str, str] = {}
    for number in reversed(record.lasting):
        start = f"owner:{number}:"
        own = {name: text for name, text in record.fields.items() if name.startswith(start)}
        found |= {name.removeprefix(start): text for name, text in own.items()}
    pairs = [(name, text.partition("\n")) for name, text in found.items()]
    return [_Owned(name, int(lapse), choice) for name, (lapse, _, choice) in pairs]


def _reason(one: _Owned, heard: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=heard)
    when = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    lasts = f"its lease lasts {one.lapse_ms / 1000:g} s"
    return f"its owner {one.name} has vanished: last heard of at {when}, {lasts}"


def forget(home: QueueKeys, record: Record, clock: Clock) -> Op[None]:
    """With a flow that is removed and had owners, forget the leases of those long gone. Repeatable."""
    if any(name.startswith("owner:") for name in record.fields):
        gone = yield from ask(owner_leases.silent(home, clock.now_ms() - FORGOTTEN_MS, PER_FLOW))
        if gone:
            yield from ask(owner_leases.forget(home, gone))
