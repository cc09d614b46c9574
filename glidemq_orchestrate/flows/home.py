"""The home queue of a flow: its choice, its claim on the id, its links to other queues, and its deadlines.

The claim is a key in its own slot, so no call writes it together with the record. A claim without a record
has one of two causes: a kill between the two writes, or a submission that is about to write the record. A
submission with the same home continues with it; one with another home takes it over. Every submission
confirms its claim before it starts its flow.

The supervisor of the home advances a flow; it is fast only if the flow's other queues are supervised too. So
a submission links the home to these queues, and each of them to the home. The links are sets in the slots of
their queues. A repeat writes them again. A supervisor removes links between queues that no longer share a
flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from glidemq_orchestrate import registry
from glidemq_orchestrate.errors import FlowConflict, GlideMQError
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.flows.generation import Generation, current_generation, first_generation
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, command, function
from glidemq_orchestrate.wire.keys import QueueKeys, flow_home, flow_homes, read_generation

CLAIM_MS: Final = 15 * 60_000
MAX: Final = 100
MAX_NAMED: Final = 5


def claim_id(home: QueueKeys, flow_id: str) -> Call[None]:
    """Claim a flow id for a home queue, unless it is already claimed. Idempotent.

    The claim expires after 15 minutes, unless ``keep_claim`` is called.
    """
    key = flow_home(home.prefix, flow_id)
    return command("SET", key, home.queue, "NX", "PX", CLAIM_MS, decode=replies.anything, repeatable=True)


def keep_claim(prefix: str, flow_id: str) -> Call[None]:
    """Make a claim permanent, for as long as its flow exists. Idempotent."""
    return command("PERSIST", flow_home(prefix, flow_id), decode=replies.anything, repeatable=True)


def home_of(prefix: str, flow_id: str) -> Call[QueueKeys | None]:
    """The home queue of a flow, or None."""
    key = flow_home(prefix, flow_id)
    return command("GET", key, decode=lambda reply: None if reply is None else QueueKeys(prefix, reply))


def drop_claim(prefix: str, flow_id: str) -> Call[None]:
    """Free the id of a flow."""
    return command("UNLINK", flow_home(prefix, flow_id), decode=replies.anything)


def drop_claim_after(prefix: str, flow_id: str, ms: int) -> Call[None]:
    """Free the id of a flow after ``ms``, unless that is already scheduled. Idempotent."""
    return command("PEXPIRE", flow_home(prefix, flow_id), ms, "NX", decode=replies.anything)


def has_flows(home: QueueKeys) -> Call[bool]:
    """Whether the queue is the home of a flow."""
    return command("EXISTS", home.flows(), decode=bool)


def add_home(home: QueueKeys) -> Call[None]:
    """Add a queue to the home queues. Idempotent."""
    return command("SADD", flow_homes(home.prefix), home.queue, decode=replies.anything, repeatable=True)


def linked_queues(queue: QueueKeys) -> Call[set[str]]:
    """The queues that share flows with a queue."""
    return command("SMEMBERS", queue.beside(), decode=lambda reply: set(replies.texts(list(reply))))


def add_links(queue: QueueKeys, others: Sequence[str]) -> Call[None]:
    """Record that a queue shares flows with others. Idempotent."""
    return command("SADD", queue.beside(), *others, decode=replies.anything, repeatable=True)


def remove_link(queue: QueueKeys, other: str) -> Call[None]:
    """Remove the record that a queue shares a flow with another one. Idempotent."""
    return command("SREM", queue.beside(), other, decode=replies.anything, repeatable=True)


def home_queues(prefix: str) -> Call[list[str]]:
    """The home queues."""
    return command("SMEMBERS", flow_homes(prefix), decode=list)


def remove_home(queue: QueueKeys) -> Call[None]:
    """Remove a queue from the home queues. Idempotent."""
    return command("SREM", flow_homes(queue.prefix), queue.queue, decode=replies.anything)


def link_queues(home: QueueKeys, queues: Iterable[str]) -> Op[None]:
    """Link a home to the queues of a flow, and each of them to the home. Idempotent."""
    others = [QueueKeys(home.prefix, name) for name in sorted(set(queues) - {home.queue})]
    if others:
        links = [add_links(home, [other.queue for other in others])]
        yield from ask_all([*links, *(add_links(other, [home.queue]) for other in others)])


def choose_home(prefix: str, flow: CheckedFlow, flow_id: str, clock: Clock) -> Op[str]:
    """The home for a flow: the existing one, or that of a submission that has begun.

    Otherwise the queue with the most nodes, the first of equals, among those that our workers serve, or among
    all if there is none. Our workers supervise a home; Node workers do not.
    """
    if len(flow.queues) == 1:
        return flow.home
    now_ms = clock.now_ms()
    asking: list[Call[Any]] = [home_of(prefix, flow_id)]
    asking += [registry.live_workers(QueueKeys(prefix, queue), now_ms) for queue in flow.queues]
    claimed, *lives = yield from ask_each(asking)
    if isinstance(claimed, GlideMQError):
        raise claimed
    if claimed is not None and claimed.queue in flow.queues:
        return str(claimed.queue)
    # A queue without read rights counts as not served.
    served = {
        queue
        for queue, live in zip(flow.queues, lives, strict=True)
        if live and not isinstance(live, GlideMQError)
    }
    counts = Counter(queue for queue in flow.queue_of.values() if not served or queue in served)
    chosen = QueueKeys(prefix, counts.most_common(1)[0][0])
    # Two concurrent submissions may see different workers: the second follows the first.
    claiming: list[Call[Any]] = [claim_id(chosen, flow_id), home_of(prefix, flow_id)]
    _, owner = yield from ask_all(claiming)
    return str(owner.queue) if owner is not None and owner.queue in flow.queues else chosen.queue


def queues_around(queue: QueueKeys) -> Op[list[QueueKeys]]:
    """The other queues to supervise with a queue: the homes of its flows, and the queues of these homes.

    At most ``MAX``, the first by name.
    """
    near = yield from ask(linked_queues(queue))
    if not near:
        return []
    beside = [QueueKeys(queue.prefix, name) for name in sorted(near)[:MAX]]
    found = set(near)
    for reply in (yield from ask_each([linked_queues(other) for other in beside])):
        if not isinstance(reply, GlideMQError):  # a queue without rights
            found |= reply
    return [QueueKeys(queue.prefix, name) for name in sorted(found - {queue.queue})[:MAX]]


def unlink_queues(queue: QueueKeys) -> Op[None]:
    """Remove the links of a queue to those with which it no longer shares a flow. Idempotent."""
    near = [QueueKeys(queue.prefix, name) for name in sorted((yield from ask(linked_queues(queue))))][:MAX]
    if not near or (yield from ask(has_flows(queue))):
        return
    are_homes = yield from ask_each([has_flows(other) for other in near])
    for other, is_home in zip(near, are_homes, strict=True):
        if is_home is not False:  # or the right to read it is missing
            continue
        yield from ask_all([remove_link(queue, other.queue), remove_link(other, queue.queue)])
        # In case of a submission since the check: it had already written its links.
        if any((yield from ask_all([has_flows(queue), has_flows(other)]))):
            yield from ask_all([add_links(queue, [other.queue]), add_links(other, [queue.queue])])


def find_generation(home: QueueKeys, flow_id: str) -> Op[Generation | None]:
    """The current generation of a flow of this home; None if there is none."""
    public, _ = read_generation(flow_id)
    first, current = yield from ask_all([first_generation(home, public), current_generation(home, public)])
    return current or first


def take_id(home: QueueKeys, flow_id: str) -> Op[Generation | None]:
    """Claim an id. Returns the existing flow, or None. Idempotent.

    Raises:
        FlowConflict: A flow with another home has the id.
    """
    other, existing = yield from _claim(home, flow_id)
    if other is not None and other != home:
        if (yield from find_generation(other, flow_id)):
            raise id_conflict(flow_id)
        # The claim has no record: its submission stopped half-way.
        yield from ask(drop_claim(home.prefix, flow_id))
        now, existing = yield from _claim(home, flow_id)
        if (yield from find_generation(other, flow_id)):  # the submission was only slow
            yield from ask(drop_claim(home.prefix, flow_id))
            yield from ask(claim_id(other, flow_id))
            raise id_conflict(flow_id)
        if now != home:
            raise id_conflict(flow_id)
    return existing


def _claim(home: QueueKeys, flow_id: str) -> Op[tuple[QueueKeys | None, Generation | None]]:
    """Claim an id if it is free; returns the queue that has it, and the record in this home."""
    asking: list[Call[Any]] = [
        claim_id(home, flow_id),
        home_of(home.prefix, flow_id),
        first_generation(home, read_generation(flow_id)[0]),
        current_generation(home, flow_id),
    ]
    _, owner, first, current = yield from ask_all(asking)
    return owner, current or first


def confirm_claim(home: QueueKeys, flow_id: str) -> Op[None]:
    """Claim an id again after its record was written.

    Raises:
        FlowConflict: Another submission has taken it over.
    """
    owner, _ = yield from _claim(home, flow_id)
    if owner is None:  # it was freed between the two calls
        owner, _ = yield from _claim(home, flow_id)
    if owner != home:
        raise id_conflict(flow_id)
    yield from ask(keep_claim(home.prefix, flow_id))


def hold_claim(home: QueueKeys, flow_id: str) -> list[Call[None]]:
    """The calls that make a claim permanent, and restore it if the server has lost it."""
    return [claim_id(home, flow_id), keep_claim(home.prefix, flow_id)]


def release_id(home: QueueKeys, flow_id: str) -> Op[None]:
    """Free the id of a flow that has no record; does nothing if it has one. Idempotent."""
    if (yield from ask(home_of(home.prefix, flow_id))) != home:
        return
    if (yield from find_generation(home, flow_id)) is not None:
        return
    yield from ask(drop_claim(home.prefix, flow_id))
    # A submission since the check may have found the claim and relied on it.
    if (yield from find_generation(home, flow_id)) is not None:
        yield from ask_all(hold_claim(home, flow_id))


def leave_homes(home: QueueKeys) -> Op[None]:
    """Remove a queue from the homes, with its links, once it has no flows. Idempotent."""
    if (yield from ask(has_flows(home))):
        return
    yield from unlink_queues(home)
    yield from ask(remove_home(home))
    if (yield from ask(has_flows(home))):
        yield from ask(add_home(home))


def id_conflict(
    flow_id: str,
    differences: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    fields: Sequence[str] = (),
) -> FlowConflict:
    """The error for an id that another flow has, with the known differences."""
    text = f"flow id {flow_id} belongs to another flow"
    if fields:
        text += f"; differs in: {', '.join(fields)}"
    if differences:
        named = [f"{name} ({', '.join(what)})" for name, what in islice(differences.items(), MAX_NAMED)]
        more = ["..."] if len(differences) > MAX_NAMED else []
        text += f"; nodes that differ: {', '.join([*named, *more])}"
    return FlowConflict(text, differences, fields)


def is_due(queue: QueueKeys, now_ms: int) -> Call[bool]:
    """Whether ``expire_due`` has anything to do in a home queue."""
    return command("ZCOUNT", queue.key("gmo:due"), "-inf", now_ms, decode=bool)


def expire_due(queue: QueueKeys, now_ms: int) -> Call[tuple[int, int]]:
    """End expired jobs, nodes and flows of a home queue; returns how many, and the next time or -1."""

    def decode(reply: Any) -> tuple[int, int]:
        count, next_ms = replies.integers(reply)
        return count, next_ms

    return function("gmo_expire_due", [queue.key("gmo:due")], (now_ms,), decode)
