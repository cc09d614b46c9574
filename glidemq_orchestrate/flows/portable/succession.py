"""Which generation of a portable flow is current: how the next one takes the place of the one before.

A generation is a flow of its own, stored and run under an id that names it; the ids of its jobs are its own.
It begins in these steps, each of which may be repeated by any client:

1. ``submit.stage`` writes it completely, with the id of the one before in ``after``, and ends with
   ``begin:0``: from then on no sweep aborts it. None of its nodes is released while ``after`` is there.
2. ``decide`` notes it in the stream of the generations, under its number. The server takes an id once, so one
   of those with the same number is noted. That is the decision: it is the current generation.
3. ``advance.follow`` ends the one before: marks it as superseded, aborts it if it never began, else cancels
   it, and takes the number of its next round, so that no retry begins it again.
4. ``retire`` delists the one before; a sweep removes its jobs. Its record stays for the history.
5. ``after`` is deleted; the nodes are released.

What a kill leaves, and who goes on:

* within step 1: nodes behind gates, and a record without ``begin:0``. A repeat of the same call continues
  with it; else the sweep removes it when nothing was heard of it for a quarter of an hour.
* after step 1: a record that has begun and was not noted, on the list of flows to advance. Whoever advances
  it first (a repeat, or the next sweep of a supervisor) goes on with step 2. If another one has its number,
  it is removed: no other ending is possible, as numbers are not given back.
* between the two notes of step 2 (the first one that begins also notes generation 0): generation 0 is
  current, which is what the stream says then; else as after step 1.
* after step 2, 3 or 4: the current generation has ``after``. Whoever advances it repeats these steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows import generation_record
from glidemq_orchestrate.flows import home as homes
from glidemq_orchestrate.flows.generation_record import Found, read_entries
from glidemq_orchestrate.flows.portable import lists, submit
from glidemq_orchestrate.flows.portable import record as records
from glidemq_orchestrate.flows.portable.record import Record
from glidemq_orchestrate.flows.portable.record import current_generation as read_noted
from glidemq_orchestrate.flows.ref import FlowRef
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, command
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation

MAX: Final = 100


def note(home: QueueKeys, found: Found) -> Call[None]:
    """Note a generation as the current one; refused once it or a later one was noted."""
    number = read_generation(found.stored_as)[1]
    words = ["id", found.stored_as, "digest", found.digest, "path", found.path]
    words += ["request", found.request, "how", found.how]
    key = home.generations(found.stored_as)
    return command("XADD", key, f"{number}-1", *words, decode=replies.anything, repeatable=True)


def oldest(home: QueueKeys, flow_id: str, count: int) -> Call[list[Found]]:
    """The oldest generations that are noted."""
    return command("XRANGE", home.generations(flow_id), "-", "+", "COUNT", count, decode=read_entries)


def count(home: QueueKeys, flow_id: str) -> Call[int]:
    """How many generations are noted."""
    return command("XLEN", home.generations(flow_id), decode=replies.integer)


def has_nodes(home: QueueKeys, flow_id: str) -> Call[bool]:
    """Whether the table of a generation still exists: its jobs were not removed yet."""
    return command("EXISTS", f"{home.flow(flow_id)}:nodes", decode=bool)


def forget(home: QueueKeys, flow_id: str) -> list[Call[None]]:
    """Calls that delete what is kept of an old generation. Repeatable."""
    entry = f"{read_generation(flow_id)[1]}-1"
    return [
        command("UNLINK", home.flow(flow_id), decode=replies.anything),
        command("XDEL", home.generations(flow_id), entry, decode=replies.anything),
    ]


def keep_entry(key: str) -> Call[None]:
    """Let a key not expire. Repeatable."""
    return command("PERSIST", key, decode=replies.anything, repeatable=True)


def keep_for(key: str, ms: int) -> Call[None]:
    """Let a key expire after so long, unless it is about to. Repeatable."""
    return command("PEXPIRE", key, ms, "NX", decode=replies.anything, repeatable=True)


def decide(ref: FlowRef) -> Op[bool]:
    """Make a generation that is staged and has begun the current one, unless another one has its number.

    Returns whether it is the current one, or was; one that lost is removed. Repeatable.
    """
    is_noted = yield from _is_noted(ref)
    if is_noted is None:
        yield from _note(ref)
        is_noted = yield from _is_noted(ref)
    if not is_noted:
        yield from submit.lose(ref)
        return False
    yield from keep(ref)
    return True


def _is_noted(ref: FlowRef) -> Op[bool | None]:
    """Whether a generation was noted; None while none of its number or a later one was."""
    noting: list[Call[Any]] = [
        read_noted(ref.home, ref.flow_id),
        generation_record.current(ref.home, ref.flow_id),
    ]
    noted, current = yield from ask_all(noting)
    if noted:
        return bool(noted == ref.flow_id)
    is_later = current is not None and read_generation(current.stored_as)[1] > ref.generation
    return False if is_later else None


def _note(ref: FlowRef) -> Op[None]:
    """Note a generation, and generation 0 if it is the first to be noted; refused if another one was faster.

    Raises:
        GlideMQError: It was refused for another reason.
    """
    record = yield from ask(records.record(ref.home, ref.flow_id))
    if not record.after:  # another client has found that it lost, and has removed it
        return
    fields = record.fields
    new = Found(ref.flow_id, records.PATH, fields["digest"], fields.get("request", ""), fields.get("how", ""))
    noting = [new]
    if ref.generation == 1:
        first = yield from ask(generation_record.first(ref.home, ref.public_id))
        noting = [first or Found(ref.public_id, records.PATH, ""), new]
    *_, refused = yield from ask_each([note(ref.home, one) for one in noting])
    if isinstance(refused, GlideMQError) and (yield from _is_noted(ref)) is None:
        raise refused


def keep(ref: FlowRef) -> Op[None]:
    """Keep the claim and the records of all generations: a flow whose retention had ended runs again."""
    every = yield from ask(generation_record.every(ref.home, ref.public_id))
    yield from ask_all([keep_entry(key) for key in _keys(ref, every)])
    yield from ask_all([homes.claim(ref.home, ref.flow_id), homes.keep(ref.home.prefix, ref.flow_id)])


def end_with(ref: FlowRef, ms: int) -> Op[None]:
    """Let everything that is kept of a flow end after so long, unless another generation begins."""
    every = yield from ask(generation_record.every(ref.home, ref.public_id))
    yield from ask_all([keep_for(key, ms) for key in _keys(ref, every)])
    yield from ask(homes.unclaim_after(ref.home.prefix, ref.flow_id, ms))
    current = yield from homes.find_current(ref.home, ref.flow_id)
    if current is not None and current.stored_as != ref.flow_id:
        yield from keep(ref)


def _keys(ref: FlowRef, every: list[Found]) -> Iterator[str]:
    yield ref.home.flow(ref.flow_id)
    yield ref.home.generations(ref.flow_id)
    for found in every:
        yield ref.home.flow(found.stored_as)


def retire(ref: FlowRef, record: Record, clock: Clock) -> Op[None]:
    """Delist a generation that was superseded and has ended; the sweep will remove its jobs. Repeatable."""
    yield from ask_all(lists.unindex(ref.home, ref.flow_id, submit.labels_of(record)))
    yield from ask(lists.expire_at(ref.home, ref.flow_id, clock.now_ms()))
    yield from _trim(ref)


def _trim(ref: FlowRef) -> Op[None]:
    """Forget the oldest generations beyond the hundred that are kept, as far as their jobs are gone."""
    surplus = (yield from ask(count(ref.home, ref.flow_id))) - MAX
    if surplus <= 0:
        return
    for found in (yield from ask(oldest(ref.home, ref.flow_id, surplus))):
        if not (yield from ask(has_nodes(ref.home, found.stored_as))):
            yield from ask_all(forget(ref.home, found.stored_as))
