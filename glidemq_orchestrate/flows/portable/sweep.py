"""Supervises the portable flows of a queue: advances them, and removes abandoned and expired ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from glidemq_orchestrate.errors import TransportError
from glidemq_orchestrate.flows.generation import TOMBSTONE, FlowRef
from glidemq_orchestrate.flows.portable import lists, owners, submit, succession
from glidemq_orchestrate.flows.portable import record as records
from glidemq_orchestrate.flows.portable.advance import _is_running, advance, close
from glidemq_orchestrate.flows.portable.record import Record
from glidemq_orchestrate.flows.portable.table import read_nodes
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

ABANDONED_MS: Final = 15 * 60_000
PER_SWEEP: Final = 100
BUDGET_MS: Final = 2_000


def sweep(home: QueueKeys, clock: Clock, *, tombstone: timedelta = TOMBSTONE) -> Op[None]:
    """Advance the running portable flows of a home; remove aborted flows and those past their retention.

    Handles up to 100 flows of each kind in about two seconds, least recently checked first. Idempotent, also
    concurrently. An error with one flow does not delay the others: the first error is raised at the end.
    """
    refused: Exception | None = None
    reading = [lists.listed(home, PER_SWEEP), lists.expiring(home, clock.now_ms(), PER_SWEEP)]
    running, expired = yield from ask_all(reading)
    todo = [_check(FlowRef(home, flow_id, "portable"), clock) for flow_id in running]
    todo += [_expire(FlowRef(home, flow_id, "portable"), clock, tombstone) for flow_id in expired]
    until = clock.monotonic_ms() + BUDGET_MS
    for step in todo:
        if clock.monotonic_ms() > until:
            step.close()
            continue
        try:
            yield from step
        except TransportError:
            raise
        except Exception as exc:  # noqa: BLE001  raised at the end
            refused = refused or exc
    if refused is not None:
        raise refused


def _check(ref: FlowRef, clock: Clock) -> Op[None]:
    """Check the record of one listed flow, and do what is due."""
    yield from ask(lists.requeue(ref.home, ref.flow_id, clock.now_ms()))
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if _is_running(record) or (record.note and not record.is_expired):
        yield from advance(ref, clock)
    elif record.is_expired:  # another client that found the tombstone may have listed it late
        yield from ask(lists.expire_at(ref.home, ref.flow_id, clock.now_ms()))
        yield from ask(lists.delist(ref.home, ref.flow_id))
    elif record.end:
        yield from ask(
            records.erase(ref.home, ref.flow_id, "listed")
        )  # another client may have listed it late
        yield from close(ref, clock)
    elif not record.fields:
        yield from ask(lists.delist(ref.home, ref.flow_id))
        # A submission may have just listed it, and written its record since.
        if (yield from ask(records.record(ref.home, ref.flow_id))).fields:
            yield from ask(lists.enlist(ref.home, ref.flow_id, clock.now_ms()))
    elif record.is_dropped:
        yield from submit.remove(ref)
    elif record.is_superseded or _last_alive_ms(record) < clock.now_ms() - ABANDONED_MS:
        yield from submit.discard(ref)


def _last_alive_ms(record: Record) -> int:
    return int(record.fields.get("heard_at", record.fields.get("created_at", 0)))


def _expire(ref: FlowRef, clock: Clock, tombstone: timedelta) -> Op[None]:
    """Remove the jobs of a flow after its retention; its record stays as a tombstone. Idempotent.

    Jobs of a superseded generation are removed too; its record stays as long as the flow.
    """
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if record.is_dropped:
        yield from submit.remove(ref)
        return
    if record.fields and not record.is_expired:
        if not record.end:
            yield from ask(lists.expire_never(ref.home, ref.flow_id))
            return
        yield from ask(records.remove(ref.home, ref.flow_id, record.number + 1, clock.now_ms()))
        record = yield from ask(records.record(ref.home, ref.flow_id))
        if not record.is_expired:  # a restart came first
            return
    if record.fields:
        yield from ask(records.write_once(ref.home, ref.flow_id, "expired_at", clock.now_ms()))
    for part in parts((yield from read_nodes(ref))):
        yield from submit.drop_own(ref, [(node.queue, node.job_id) for node in part])
    if record.fields and not record.is_superseded:
        yield from succession.end_with(ref, milliseconds(tombstone))
    yield from owners.forget(ref.home, record, clock)
    yield from submit.forget(ref, record)  # last, so that it stays listed as due until then
