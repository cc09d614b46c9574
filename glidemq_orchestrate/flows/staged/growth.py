"""Adds nodes to a flow: by one of its nodes, or by an extension from outside.

A kill between any two steps leaves staged nodes that cannot start and are not counted. The next attempt of
the node removes them, a repeat of the extension continues with them, or else the sweep removes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    DuplicateNode,
    FlowIncomplete,
    FlowTooLarge,
    GlideMQError,
    InvalidFlow,
    TransportError,
    UnknownDependency,
)
from glidemq_orchestrate.flows.checked import MAX_NODES, CheckedNode, check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.home import link_queues
from glidemq_orchestrate.flows.node_table import flow_nodes, read_row
from glidemq_orchestrate.flows.placement import beside
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec
from glidemq_orchestrate.flows.staged import reading
from glidemq_orchestrate.flows.staged.submit import (
    GROWTH_NODES,
    MAX_STAGINGS,
    JobNames,
    Piece,
    advance,
    chunks,
    piece_words,
    stage_items,
)
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, ask_each, command, function, parts
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys, slot_of
from glidemq_orchestrate.wire.trips import Trips

MAX_BEFORE: Final = 100
_RANK_STEP: Final = 1e-6
T = TypeVar("T")
_NAMES_PER_CALL: Final = 500


@dataclass(frozen=True, slots=True)
class KnownNode:
    """An existing node of the flow. ``rank`` is its position in the order of the flow."""

    name: str
    rank: float
    queue: str
    job_id: str
    after: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True)
class CheckedGrowth:
    """Validated nodes to add: unique names, acyclic, payloads encoded, in topological order.

    Attributes:
        nodes: Their ``after`` and ``dependents`` may name nodes of the flow too.
        outside: The nodes of the flow that they wait for.
        before: The nodes of the flow that will wait for them too.
        digest: A fingerprint of all this.
    """

    nodes: tuple[CheckedNode, ...]
    outside: frozenset[str]
    before: tuple[str, ...]
    digest: str

    def placed(self, known: Mapping[str, KnownNode], last: float) -> CheckedGrowth:
        """A copy with ranks after those of their dependencies, or after ``last`` without any."""
        base = max((known[name].rank for name in self.outside), default=last)
        nodes = (replace(node, rank=base + at * _RANK_STEP) for at, node in enumerate(self.nodes, start=1))
        return replace(self, nodes=tuple(nodes))

    def queue_of(self, known: Mapping[str, KnownNode]) -> dict[str, str]:
        """The queue of every node that occurs in these nodes and their edges."""
        outside = {name: known[name].queue for name in (*self.outside, *self.before)}
        return outside | {node.name: node.queue for node in self.nodes}


def check_growth(
    nodes: Iterable[FlowNode], *, before: Sequence[str] = (), grower: str | None = None
) -> CheckedGrowth:
    """Check nodes to add to a flow.

    Args:
        nodes: In any order. Those without dependencies wait for ``grower``.
        before: Nodes of the flow that must wait for the added nodes without added dependents.
        grower: The node that adds them; None for an extension.

    Raises:
        InvalidFlow, CycleError, DuplicateNode, FlowTooLarge, ConfigurationError, EncodeError,
        PayloadTooLarge: See ``check_flow``.
    """
    added = list(nodes)
    names = {node.name for node in added}
    if isinstance(before, str) or len(before) > MAX_BEFORE:
        raise InvalidFlow(f"before must be a list of at most {MAX_BEFORE} node names")
    if known := sorted(names.intersection((*before, grower))):
        raise DuplicateNode(known)
    flow = check_flow(FlowSpec("added nodes", added), is_part=True)
    roots = (grower,) if grower is not None else ()
    checked = tuple(
        replace(node, after=node.after or roots, dependents=node.dependents or tuple(before))
        for node in flow.nodes
    )
    outside = frozenset(name for node in checked for name in node.after if name not in names)
    content = json.dumps([flow.digest, list(before)])
    return CheckedGrowth(checked, outside, tuple(before), hashlib.sha256(content.encode()).hexdigest()[:32])


def check_place(
    growth: CheckedGrowth, known: Mapping[str, KnownNode], status: FlowStatus, grower: str | None
) -> None:
    """Check that the flow has the nodes that the added ones refer to, and room for them.

    Raises:
        UnknownDependency: A node waits for one that is not in the flow.
        FlowTooLarge: The flow would have too many nodes.
        InvalidFlow: A node in ``before`` does not wait for the grower. Or, with ``before``, an added node
            waits for a node that has not completed, which could form a cycle.
    """
    missing = {
        node.name: [n for n in node.after if n in growth.outside - set(known)] for node in growth.nodes
    }
    if any(missing.values()):
        raise UnknownDependency({name: names for name, names in missing.items() if names})
    if status.total + len(growth.nodes) > MAX_NODES:
        raise FlowTooLarge(
            f"flow {status.id} has {status.total:,} nodes and would get {len(growth.nodes):,} more; "
            f"the limit is {MAX_NODES:,}"
        )
    for name in growth.before:
        if name not in known or grower not in known[name].after:
            raise InvalidFlow(f"before names {name}, which does not wait for {grower}")
    if growth.before:
        unfinished = sorted(n for n in growth.outside if n != grower and known[n].state != "completed")
        if unfinished:
            raise InvalidFlow(
                "nodes added before others may wait for completed nodes only, "
                f"not for {', '.join(unfinished)}"
            )


SendNodes = Callable[[Sequence[str], str, Sequence[Word]], Call[T]]


def grow(
    home: QueueKeys,
    attempt: Attempt,
    growth: CheckedGrowth,
    known: Mapping[str, KnownNode],
    now_ms: int,
) -> Iterator[Call[int]]:
    """Stage nodes that an attempt will add on completion, a call for each chunk.

    Each returns 1, or 0 if it removed a slice of the nodes staged by an earlier attempt: then send all calls
    again. Idempotent.
    """
    queue = QueueKeys(home.prefix, attempt.queue)
    proof = (now_ms, attempt.job_id, attempt.entry_id, GROUP, attempt.token, attempt.processed_on)

    def send(places: Sequence[str], header: str, words: Sequence[Word]) -> Call[int]:
        keys = [queue.job(attempt.job_id), home.flow(attempt.stored_flow), *places]
        return function("gmo_grow", keys, (*proof, header, *words), replies.integer, repeatable=True)

    return _chunks(home, attempt.stored_flow, attempt.job_id, growth, known, send)


def extend_flow(
    home: QueueKeys,
    flow_id: str,
    growth: CheckedGrowth,
    known: Mapping[str, KnownNode],
    now_ms: int,
) -> Iterator[Call[FlowState]]:
    """Stage the nodes of an extension, a call for each chunk; the last one adds them. Idempotent."""

    def send(places: Sequence[str], header: str, words: Sequence[Word]) -> Call[FlowState]:
        keys = [home.flow(flow_id), *places]
        return function("gmo_extend", keys, (now_ms, header, *words), FlowState, repeatable=True)

    return _chunks(home, flow_id, extension_id(growth), growth, known, send)


def extension_id(growth: CheckedGrowth) -> str:
    """The growth id of an extension: the same for the same nodes."""
    return f"x-{growth.digest}"


def _chunks(  # noqa: PLR0913, PLR0917  the parts of a growth
    home: QueueKeys,
    flow_id: str,
    growth_id: str,
    growth: CheckedGrowth,
    known: Mapping[str, KnownNode],
    send: SendNodes[T],
) -> Iterator[Call[T]]:
    """The calls that stage a growth; the header of the last one has the total number of chunks."""
    names = JobNames(home.prefix, flow_id, growth.queue_of(known))
    queues = list(dict.fromkeys(node.queue for node in growth.nodes))
    numbers = {queue: number for number, queue in enumerate(queues, start=1)}
    places = [QueueKeys(home.prefix, queue).key("id") for queue in queues]
    every: list[list[Piece]] = list(chunks(growth.nodes, GROWTH_NODES))
    if has_items := any(node.array is not None and node.array.chunks for node in growth.nodes):
        every.append([])  # the last call seals the addition, and the items are written before
    for at, chunk in enumerate(every, start=1):
        header: dict[str, Any] = {"id": flow_id, "growth": growth_id, "batch": growth.digest, "chunk": at}
        header |= _outer_edges(chunk, growth, names)
        if at == len(every):
            header["chunks"] = len(every)
            yield from stage_items(home, flow_id, growth.nodes if has_items else (), names)
        words = [word for piece in chunk for word in (numbers[piece.node.queue], *piece_words(piece, names))]
        yield send(places, json.dumps(header), words)


def _outer_edges(chunk: Iterable[Piece], growth: CheckedGrowth, names: JobNames) -> dict[str, Any]:
    """The edges of a chunk between new and old nodes, in the form for the header."""
    after, before = [], []
    held = set(growth.before)
    for piece in chunk:
        ref = names.ref(piece.node.name)
        after += [[names.ref(name), ref] for name in piece.after if name in growth.outside]
        before += [[ref, names.ref(name), piece.node.name] for name in piece.dependents if name in held]
    return {key: edges for key, edges in (("after", after), ("before", before)) if edges}


def drop_growth(home: QueueKeys, flow_id: str, growth_id: str) -> Call[int]:
    """Remove a slice of staged nodes that did not join; returns how many remain. Idempotent."""
    args = (0, flow_id, growth_id)
    return function("gmo_drop_growth", [home.flow(flow_id)], args, replies.integer, repeatable=True)


def known_nodes(home: QueueKeys, flow_id: str, names: Sequence[str]) -> Call[dict[str, KnownNode]]:
    """The nodes with these names in the flow, without their states."""

    def decode(reply: Any) -> dict[str, KnownNode]:
        return _all_known(zip(names, reply, strict=True))

    return command("HMGET", home.flow(flow_id) + ":nodes", *names, decode=decode)


def staged_nodes(home: QueueKeys, growth_id: str, names: Sequence[str]) -> Call[dict[str, KnownNode]]:
    """The nodes with these names in a growth, without their states."""

    def decode(reply: Any) -> dict[str, KnownNode]:
        lines = ((name, (text or "").split("\n", 2)) for name, text in zip(names, reply, strict=True))
        return _all_known((name, fields[1] if len(fields) > 1 else None) for name, fields in lines)

    return command("HMGET", home.growth(growth_id), *names, decode=decode)


def _all_known(rows: Iterable[tuple[str, str | None]]) -> dict[str, KnownNode]:
    """Nodes by name; a node with an unreadable row is treated as missing."""
    places = ((name, read_row(row) if row else None) for name, row in rows)
    return {
        name: KnownNode(name, place[0], place[1], place[2], place[4], "") for name, place in places if place
    }


def job_state(queue: QueueKeys, job_id: str) -> Call[str]:
    """The state of a job; '' for a missing job."""
    return job_hash.get(queue, job_id, "state", lambda reply: reply or "")


def add_nodes(
    prefix: str, attempt: Attempt, nodes: Iterable[FlowNode], before: Sequence[str], clock: Clock
) -> Op[None]:
    """Stage nodes that join the flow of an attempt together with its completion.

    Added nodes without dependencies wait for the node of the attempt. May be called several times in an
    attempt: each call is all or nothing, and repeating a call changes nothing. Later calls may refer to nodes
    of earlier ones.

    Raises:
        InvalidFlow, CycleError, DuplicateNode, UnknownDependency, FlowTooLarge, ConfigurationError,
        EncodeError, PayloadTooLarge: The nodes are not valid; nothing was added.
        NodeExists: The flow has a node of that name, or another attempt is adding one; nothing was added.
        LeaseLost: The attempt no longer owns its job.
    """
    if attempt.flow_id is None or attempt.node is None:
        raise InvalidFlow(f"job {attempt.job_id} is not a node of a flow, so it cannot add nodes to one")
    if attempt.is_of_array:
        raise InvalidFlow(
            f"an element of array {attempt.node} cannot add nodes to its flow. "
            "Fix: add them in a node that runs after the array"
        )
    growth = check_growth(nodes, before=before, grower=attempt.node)
    ref = yield from reading.find(prefix, attempt.stored_flow)
    names = {attempt.node, *growth.outside, *growth.before}
    known = yield from _known(ref, sorted(names), attempt.job_id)
    if attempt.node not in known:
        raise InvalidFlow(f"flow {ref.public_id} no longer has a node {attempt.node}")
    check_place(growth, known, (yield from reading.status(ref)), attempt.node)
    placed = growth.placed(known, known[attempt.node].rank)
    placed = replace(placed, nodes=tuple((yield from beside(ref.home, placed.nodes))))
    yield from link_queues(ref.home, (node.queue for node in placed.nodes))
    stagings = 0
    while True:
        calls = grow(ref.home, attempt, placed, known, clock.now_ms())
        words, refused = yield from _send(calls)
        if 0 in words:
            continue  # leftovers of an earlier attempt are being removed, a slice per call
        stagings += 1
        if refused is None:
            return
        if not isinstance(refused, FlowIncomplete) or stagings == MAX_STAGINGS:
            raise _explained(refused, ref.home, placed) from refused


def extend(ref: FlowRef, nodes: Iterable[FlowNode], clock: Clock) -> Op[FlowState]:
    """Add nodes to a running or completed flow, all or none. Idempotent."""
    growth = check_growth(nodes)
    status = yield from reading.status(ref)
    known = yield from _known(ref, sorted(growth.outside), extension_id(growth))
    try:
        check_place(growth, known, status, None)
    except UnknownDependency:
        yield from ask(flow_nodes(ref.home, ref.flow_id, "0"))  # an error if its nodes were removed
        raise
    placed = growth.placed(known, status.total)
    placed = replace(placed, nodes=tuple((yield from beside(ref.home, placed.nodes))))
    yield from link_queues(ref.home, (node.queue for node in placed.nodes))
    for stagings in range(1, MAX_STAGINGS + 1):
        calls = extend_flow(ref.home, ref.flow_id, placed, known, clock.now_ms())
        states, refused = yield from _send(calls)
        if refused is None:
            yield from advance(ref, clock)
            return states[-1]
        if not isinstance(refused, FlowIncomplete) or stagings == MAX_STAGINGS:
            yield from _drop(ref, growth, refused)
            raise _explained(refused, ref.home, placed) from refused
    raise AssertionError


def _explained(refused: GlideMQError, home: QueueKeys, growth: CheckedGrowth) -> GlideMQError:
    """The error of a refused growth; for queues in several slots it names the node."""
    queues = {node.name: QueueKeys(home.prefix, node.queue) for node in growth.nodes}
    apart = [name for name, queue in queues.items() if slot_of(queue.base) != slot_of(home.base)]
    if refused.code != "CROSSSLOT" or not apart:
        return refused
    return ConfigurationError(
        f"node {apart[0]} cannot be added: its queue {queues[apart[0]].queue} is not in the slot of its "
        "flow in the cluster. Fix: use a queue of the flow, or submit the nodes as a flow of their own"
    )


def _known(ref: FlowRef, names: Sequence[str], growth_id: str) -> Op[dict[str, KnownNode]]:
    """The nodes with these names in the flow and in the growth, with their states."""
    pages = list(parts(names, _NAMES_PER_CALL))
    found: dict[str, KnownNode] = {}
    for part in (yield from ask_all([staged_nodes(ref.home, growth_id, page) for page in pages])):
        found |= part
    for part in (yield from ask_all([known_nodes(ref.home, ref.flow_id, page) for page in pages])):
        found |= part
    nodes = list(found.values())
    states = yield from ask_all(
        [job_state(QueueKeys(ref.home.prefix, node.queue), node.job_id) for node in nodes]
    )
    return {node.name: replace(node, state=state) for node, state in zip(nodes, states, strict=True)}


def _send(calls: Iterable[Call[T]]) -> Op[tuple[list[T], GlideMQError | None]]:
    """Send all chunks; returns the replies and the first error."""
    trips, accepted = Trips(iter(calls)), []
    refused: GlideMQError | None = None
    while refused is None and (trip := trips.take()):
        for reply in (yield from ask_each(trip)):
            if isinstance(reply, GlideMQError):
                refused = refused or reply
            else:
                accepted.append(reply)
    return accepted, refused


def _drop(ref: FlowRef, growth: CheckedGrowth, refused: GlideMQError) -> Op[None]:
    try:
        while (yield from ask(drop_growth(ref.home, ref.flow_id, extension_id(growth)))):
            pass
    except TransportError as exc:
        raise refused from exc
