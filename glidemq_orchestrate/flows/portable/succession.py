"""Decides which generation of a portable flow is current, and how the next one supersedes it.

A generation is stored and run like a separate flow, with its own id and its own job ids. It begins in these
steps, each of which any client may repeat:

1. ``staging.stage`` writes it completely, with the id of the previous one in ``after``, and ends with
   ``begin:0``: from then on no sweep aborts it. None of its nodes is released while ``after`` exists.
2. ``decide`` notes it in the stream of the generations, under its number. The server accepts an id only once,
   so only one generation with that number is noted. That decides which one is current.
3. ``advance`` ends the previous one: it marks it as superseded, aborts it if it never began, else
   cancels it, and takes the number of its next round, so that no retry can restart it.
4. ``retire`` delists the previous one; a sweep removes its jobs. Its record stays for the history.
5. ``after`` is deleted; the nodes are released.

What a kill leaves, and who continues:

* within step 1: nodes behind gates, and a record without ``begin:0``. A repeat of the same call continues
  with it; else the sweep removes it after 15 minutes without a heartbeat.
* after step 1: a record that has begun and was not noted, on the list of flows to advance. The first client
  that advances it (a repeat, or the next sweep of a supervisor) continues with step 2. If another one has its
  number, it is removed: nothing else is possible, since numbers are not reused.
* between the two notes of step 2 (the first one that begins also notes generation 0): generation 0 is
  current, as in the stream; otherwise like after step 1.
* after step 2, 3 or 4: the current generation has ``after``. Any client that advances it repeats these steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows.generation import (
    FlowRef,
    Generation,
    current_generation,
    every_generation,
    first_generation,
    read_entries,
)
from glidemq_orchestrate.flows.home import claim_id, drop_claim_after, find_generation, keep_claim
from glidemq_orchestrate.flows.portable import records
from glidemq_orchestrate.flows.portable.records import Record, noted_generation
from glidemq_orchestrate.flows.portable.staging import labels_of, lose
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, command
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation

MAX: Final = 100


def note(home: QueueKeys, found: Generation) -> Call[None]:
    """Note a generation as the current one; an error once it or a later one was noted."""
    number = read_generation(found.stored_as)[1]
    words = ["id", found.stored_as, "digest", found.digest, "path", found.path]
    words += ["request", found.request, "how", found.how]
    key = home.generations(found.stored_as)
    return command("XADD", key, f"{number}-1", *words, decode=replies.anything, repeatable=True)


def oldest(home: QueueKeys, flow_id: str, count: int) -> Call[list[Generation]]:
    """The oldest noted generations."""
    return command("XRANGE", home.generations(flow_id), "-", "+", "COUNT", count, decode=read_entries)


def count(home: QueueKeys, flow_id: str) -> Call[int]:
    """The number of noted generations."""
    return command("XLEN", home.generations(flow_id), decode=replies.integer)


def has_nodes(home: QueueKeys, flow_id: str) -> Call[bool]:
    """Whether the table of a generation still exists, so that its jobs were not removed yet."""
    return command("EXISTS", f"{home.flow(flow_id)}:nodes", decode=bool)


def forget(home: QueueKeys, flow_id: str) -> list[Call[None]]:
    """Calls that delete the remains of an old generation. Idempotent."""
    entry = f"{read_generation(flow_id)[1]}-1"
    return [
        command("UNLINK", home.flow(flow_id), decode=replies.anything),
        command("XDEL", home.generations(flow_id), entry, decode=replies.anything),
    ]


def keep_entry(key: str) -> Call[None]:
    """Make a key permanent. Idempotent."""
    return command("PERSIST", key, decode=replies.anything, repeatable=True)


def keep_for(key: str, ms: int) -> Call[None]:
    """Let a key expire after ``ms``, unless it already has an expiry. Idempotent."""
    return command("PEXPIRE", key, ms, "NX", decode=replies.anything, repeatable=True)


def decide(ref: FlowRef) -> Op[bool]:
    """Make a staged and begun generation the current one, unless another one has its number.

    Returns whether it is or was the current one; a losing generation is removed. Idempotent.
    """
    is_noted = yield from _is_noted(ref)
    if is_noted is None:
        yield from _note(ref)
        is_noted = yield from _is_noted(ref)
    if not is_noted:
        yield from lose(ref)
        return False
    yield from keep(ref)
    return True


def _is_noted(ref: FlowRef) -> Op[bool | None]:
    """Whether a generation was noted; None if neither its number nor a later one was."""
    noting: list[Call[Any]] = [
        noted_generation(ref.home, ref.flow_id),
        current_generation(ref.home, ref.flow_id),
    ]
    noted, current = yield from ask_all(noting)
    if noted:
        return bool(noted == ref.flow_id)
    is_later = current is not None and read_generation(current.stored_as)[1] > ref.generation
    return False if is_later else None


def _note(ref: FlowRef) -> Op[None]:
    """Note a generation, and before the first also generation 0; nothing if another one was faster.

    Raises:
        GlideMQError: It was refused for another reason.
    """
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if not record.after:  # another client has found that it lost and removed it
        return
    fields = record.fields
    new = Generation(
        ref.flow_id, records.PATH, fields["digest"], fields.get("request", ""), fields.get("how", "")
    )
    noting = [new]
    if ref.generation == 1:
        first = yield from ask(first_generation(ref.home, ref.public_id))
        noting = [first or Generation(ref.public_id, records.PATH, ""), new]
    *_, refused = yield from ask_each([note(ref.home, one) for one in noting])
    if isinstance(refused, GlideMQError) and (yield from _is_noted(ref)) is None:
        raise refused


def keep(ref: FlowRef) -> Op[None]:
    """Make the claim and the records of all generations permanent: an expired flow runs again."""
    every = yield from ask(every_generation(ref.home, ref.public_id))
    yield from ask_all([keep_entry(key) for key in _keys(ref, every)])
    yield from ask_all([claim_id(ref.home, ref.flow_id), keep_claim(ref.home.prefix, ref.flow_id)])


def end_with(ref: FlowRef, ms: int) -> Op[None]:
    """Let all remains of a flow expire after ``ms``, unless another generation begins."""
    every = yield from ask(every_generation(ref.home, ref.public_id))
    yield from ask_all([keep_for(key, ms) for key in _keys(ref, every)])
    yield from ask(drop_claim_after(ref.home.prefix, ref.flow_id, ms))
    current = yield from find_generation(ref.home, ref.flow_id)
    if current is not None and current.stored_as != ref.flow_id:
        yield from keep(ref)


def _keys(ref: FlowRef, every: list[Generation]) -> Iterator[str]:
    yield ref.home.flow(ref.flow_id)
    yield ref.home.generations(ref.flow_id)
    for found in every:
        yield ref.home.flow(found.stored_as)


def retire(ref: FlowRef, record: Record, clock: Clock) -> Op[None]:
    """Delist a superseded generation that has ended; the sweep will remove its jobs. Idempotent.

    Nothing here takes back that its removal is due: another client may have done the same, and gone on.
    """
    removing = records.expire_at(ref.home, ref.flow_id, clock.now_ms())
    yield from ask_all([removing, *records.unindex(ref.home, ref.flow_id, labels_of(record))])
    yield from _trim(ref)


def _trim(ref: FlowRef) -> Op[None]:
    """Forget the oldest generations beyond ``MAX``, provided that their jobs were removed."""
    surplus = (yield from ask(count(ref.home, ref.flow_id))) - MAX
    if surplus <= 0:
        return
    for found in (yield from ask(oldest(ref.home, ref.flow_id, surplus))):
        if not (yield from ask(has_nodes(ref.home, found.stored_as))):
            yield from ask_all(forget(ref.home, found.stored_as))
