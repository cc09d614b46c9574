"""Submits a flow within one slot: stages its nodes in chunks, starts it, and advances it.

A chunk costs the server a few milliseconds. ``lua/glidemq_orchestrate/functions`` has the contracts of the
server functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Final

from glidemq_orchestrate.errors import FlowIncomplete, GlideMQError, TransportError
from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode, kept, traced
from glidemq_orchestrate.flows.definitions import refuse_lost
from glidemq_orchestrate.flows.generation import (
    Before,
    FlowRef,
    begin_generation,
    expired,
    flow_status,
    is_expired,
)
from glidemq_orchestrate.flows.home import add_home, hold_claim, take_id
from glidemq_orchestrate.flows.owner import Owner, owner_words
from glidemq_orchestrate.flows.staged.lost_jobs import find_removed
from glidemq_orchestrate.flows.status import BROKEN, FlowState, OnExisting
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, ask_all, ask_each, function
from glidemq_orchestrate.wire.codec import compact_texts, texts
from glidemq_orchestrate.wire.keys import QueueKeys, node_job_id
from glidemq_orchestrate.wire.trips import Trips

MAX_STAGINGS: Final = 3
CHUNK_NODES: Final = 50
GROWTH_NODES: Final = 25
CHUNK_EDGES: Final = 1_000
CHUNK_BYTES: Final = 1_048_576
CHUNK_WORDS: Final = 200
# Nodes with more dependents list them in the set of parents only, not in the two human-readable fields.
MAX_LISTED: Final = 1_000
CARRIED: Final = "="
EDGES_KEPT: Final = "=="
SLICE: Final = 50
ROOTS: Final = 100
MAX_SLICES: Final = 20


@dataclass(slots=True)  # frozen, making one takes twice the time
class Piece:
    """A node, or some of its edges; the last piece also has the node itself."""

    node: CheckedNode
    after: Sequence[str]
    dependents: Sequence[str]
    is_last: bool = True


class JobNames:
    """The job ids and refs of the nodes of a flow, cached, and the trace context of its jobs.

    Attributes:
        carried: The job ids of nodes carried over from the previous generation.
        edges_kept: The names of those that also keep their edges.
        job_id: Returns the id of a node's job.
        ref: Returns the member of glide-mq's dependency sets for a node.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the names depend on each
        self,
        prefix: str,
        flow_id: str,
        queue_of: Mapping[str, str],
        trace: str = "",
        carried: Mapping[str, str] = MappingProxyType({}),
        edges_kept: frozenset[str] = frozenset(),
    ) -> None:
        self.queue_of, self.trace, self.carried, self.edges_kept = queue_of, trace, carried, edges_kept
        self._prefix, self._flow_id = prefix, flow_id
        self._bases: dict[str, str] = {}
        self.job_id: Callable[[str], str] = cache(self._job_id)
        self.ref: Callable[[str], str] = cache(self._ref)

    def own_id(self, name: str) -> str:
        """The job id of a node that is not carried over."""
        return node_job_id(self._flow_id, name)

    def _job_id(self, name: str) -> str:
        return self.carried.get(name) or node_job_id(self._flow_id, name)

    def _ref(self, name: str) -> str:
        queue = self.queue_of[name]
        base = self._bases.get(queue)
        if base is None:
            base = self._bases[queue] = QueueKeys(self._prefix, queue).base
        return f"{base}:{self.job_id(name)}"


def pieces(node: CheckedNode) -> list[Piece]:
    """Split a node with too many edges for one call."""
    after, dependents = node.after, node.dependents
    found: list[Piece] = []
    while len(after) + len(dependents) > CHUNK_EDGES:
        cut = CHUNK_EDGES - len(after[:CHUNK_EDGES])
        found.append(Piece(node, after[:CHUNK_EDGES], dependents[:cut], is_last=False))
        after, dependents = after[CHUNK_EDGES:], dependents[cut:]
    found.append(Piece(node, after, dependents))
    return found


def chunks(nodes: Iterable[CheckedNode], max_nodes: int = CHUNK_NODES) -> Iterator[list[Piece]]:
    """The nodes in chunks, one for each call."""
    chunk: list[Piece] = []
    edges = size = 0
    for node in nodes:
        for piece in pieces(node):
            more = len(piece.after) + len(piece.dependents)
            length = len(node.data) if piece.is_last else 0
            full = len(chunk) == max_nodes or edges + more > CHUNK_EDGES or size + length > CHUNK_BYTES
            if full and chunk:
                yield chunk
                chunk, edges, size = [], 0, 0
            chunk.append(piece)
            edges, size = edges + more, size + length
    if chunk:
        yield chunk


def more_fields(node: CheckedNode, names: JobNames) -> str:
    """The uncommon job fields, as JSON for ``gmo_stage_flow``; '' for none."""
    if node.is_ordinary:
        return ""
    fields: dict[str, str] = {}
    if node.is_placed:
        fields |= {"gmo:placed": "1", "priority": str(node.priority)}
    if node.rule is not None:
        fields["gmo:rule"] = node.rule
    if node.on_failure is not None:
        fields["gmo:on_failure"] = node.on_failure
    if node.queue_timeout_ms is not None:
        fields["gmo:queue_timeout"] = str(node.queue_timeout_ms)
    if node.extension:
        fields["gmo:grown"] = node.extension
    if node.array is not None:
        fields["gmo:array"] = node.array.definition
    policies = node.policies
    if len(policies) == len(node.after) and len(set(policies.values())) == 1:
        fields["gmo:edge"] = next(iter(policies.values()))
    else:
        fields |= {f"gmo:edge:{names.ref(name)}": policy for name, policy in policies.items()}
    return json.dumps(fields) if fields else ""


def piece_words(piece: Piece, names: JobNames) -> list[Word]:
    """The arguments for a piece, after the number of its queue; see ``gmo_stage_flow``."""
    node, after, dependents = piece.node, piece.after, piece.dependents
    if node.name in names.carried:
        return _carried(piece, names)
    job_id = names.job_id(node.name)
    edges: tuple[Word, ...] = (
        len(after),
        *map(names.ref, after),
        len(dependents),
        *map(names.ref, dependents),
    )
    if not piece.is_last:
        return [job_id, node.name, "", "", "", "", "", "", "", "", "", *edges]
    options, ids, queues = kept(node.options), "", ""
    if names.trace:
        options = traced(options, names.trace)
    if 0 < len(node.dependents) <= MAX_LISTED:
        ids = texts(map(names.job_id, node.dependents))
        queues = texts(map(names.queue_of.__getitem__, node.dependents))
    return [
        job_id, node.name, node.job, node.data, options, node.attempts, node.delay_ms,
        _row(node, job_id), ids, queues, more_fields(node, names), *edges,
    ]  # fmt: skip


def _carried(piece: Piece, names: JobNames) -> list[Word]:
    """The same for a carried-over node: only its dependents may be new."""
    node, job_id = piece.node, names.job_id(piece.node.name)
    row = _row(node, job_id) if piece.is_last else ""
    keeps_edges = node.name in names.edges_kept
    kept = EDGES_KEPT if keeps_edges else CARRIED
    dependents = () if keeps_edges else piece.dependents
    own_id = names.own_id(node.name)
    words: list[Word] = [own_id, node.name, "", job_id, "", "", "", row, "", "", kept, 0, len(dependents)]
    words += map(names.ref, dependents)
    return words


def _row(node: CheckedNode, job_id: str) -> str:
    return f"[{node.rank},{compact_texts((node.queue, job_id, node.job, *node.after))}]"


def stage_flow(
    home: QueueKeys, flow_id: str, flow: CheckedFlow, parts: Iterable[Sequence[Piece]], now_ms: int
) -> Iterator[Call[FlowState]]:
    """Write a flow's nodes, a call for each chunk; each returns the state. No node runs yet. Idempotent."""
    header: dict[str, Any] = {
        "id": flow_id,
        "name": flow.name,
        "digest": flow.digest,
        "total": len(flow.nodes),
        "home": home.queue,
        "labels": json.dumps(dict(flow.labels)),
    }
    if flow.retention_ms is not None:
        header["retention"] = flow.retention_ms
    if flow.deadline_ms is not None:
        header["deadline"] = flow.deadline_ms
    if flow.fail_fast:
        header["fail_fast"] = 1
    if flow.request:
        header["request"] = flow.request
    if flow.owner:
        header["owner"] = owner_words(flow.owner)
    if flow.carried:
        header["completed"] = len(flow.carried)
    head, names = (
        json.dumps(header),
        JobNames(home.prefix, flow_id, flow.queue_of, flow.trace, flow.carried, flow.edges_kept),
    )
    places = [QueueKeys(home.prefix, queue) for queue in flow.queues]
    numbers = {place.queue: number for number, place in enumerate(places, start=1)}
    keys = [home.flow(flow_id), *(place.key("id") for place in places)]
    for chunk in parts:
        args: list[Word] = [now_ms, head]
        for piece in chunk:
            args.append(numbers[piece.node.queue])
            args += piece_words(piece, names)
        yield function("gmo_stage_flow", keys, args, FlowState, repeatable=True)


def stage_items(
    home: QueueKeys, flow_id: str, nodes: Iterable[CheckedNode], names: JobNames
) -> Iterator[Call[Any]]:
    """Write the items of staged arrays. Idempotent."""
    for node in nodes:
        if node.array is None or node.name in names.carried:
            continue
        keys = [QueueKeys(home.prefix, node.queue).job(names.own_id(node.name)), home.flow(flow_id)]
        about = (node.array.digest, node.name)
        words: list[Word] = []
        size = 0
        for number, chunk in enumerate(node.array.chunks):
            words += (number, chunk)
            size += len(chunk)
            if len(words) >= CHUNK_WORDS or size >= CHUNK_BYTES:
                yield _items_call(keys, about, words)
                words, size = [], 0
        if words:
            yield _items_call(keys, about, words)


def _items_call(keys: Sequence[str], about: Sequence[Word], words: Sequence[Word]) -> Call[None]:
    return function("gmo_stage_items", keys, (0, *about, *words), replies.anything, repeatable=True)


def start_flow(queue: QueueKeys, flow_id: str, digest: str, now_ms: int) -> Call[FlowState]:
    """Start a completely staged flow; returns its state. Idempotent."""
    args = (now_ms, flow_id, digest)
    return function("gmo_start_flow", [queue.flow(flow_id)], args, FlowState, repeatable=True)


def discard_flow(queue: QueueKeys, flow_id: str, digest: str) -> Call[int]:
    """Delete a slice of a flow that never started; returns how many nodes remain. Idempotent."""
    args = (0, flow_id, digest)
    return function("gmo_discard_flow", [queue.flow(flow_id)], args, replies.integer, repeatable=True)


def advance_flow(queue: QueueKeys, flow_id: str, now_ms: int) -> Call[int]:
    """Do the next slice of a flow's open work; returns 0 if there is none. Idempotent."""
    keys = [queue.flow(flow_id)]
    return function("gmo_advance_flow", keys, (now_ms, flow_id), replies.integer, repeatable=True)


def retry_flow(
    queue: QueueKeys, flow_id: str, now_ms: int, owner: Owner | None = None, also: Sequence[str] = ()
) -> Call[FlowState]:
    """Mark an ended flow so that ``advance_flow`` reruns the nodes that did not complete. Idempotent.

    ``also``: refs of completed nodes to rerun too.
    """
    args = (now_ms, flow_id, *(owner_words(owner) if owner else ("", "", "") if also else ()), *also)
    return function("gmo_retry_flow", [queue.flow(flow_id)], args, FlowState)


def submit(ref: FlowRef, flow: CheckedFlow, on_existing: OnExisting, clock: Clock) -> Op[None]:
    """Write and start a flow whose id is claimed, or attach to the equal flow that exists."""
    state, left = yield from _stage(ref, flow, clock)
    if state in BROKEN and on_existing == "retry_failed":
        state = yield from retry(ref, clock, flow.owner, (yield from needed_again(ref)))
        if state is FlowState.CANCELLED:
            # It was cancelled while being staged: no node ever ran, so it is staged again.
            yield from _discard(ref, flow.digest)
            state, left = yield from _stage(ref, flow, clock)
    if state is FlowState.RUNNING and left:
        yield from advance(ref, clock)


def begin(ref: FlowRef, flow: CheckedFlow, before: Before, clock: Clock) -> Op[None]:
    """Write a generation and start it in place of the current one. Idempotent.

    Raises:
        GenerationTaken: Another generation has begun. The staged nodes are removed.
    """
    _, left = yield from _stage(ref, flow, clock, before)
    if left:
        yield from advance(ref, clock)


Staged = tuple[FlowState, int]
"""The state of a flow, and how many nodes remain to be released; -1 if unknown."""


def _stage(ref: FlowRef, flow: CheckedFlow, clock: Clock, before: Before | None = None) -> Op[Staged]:
    """Write all nodes and start the flow. Starts over if a sweep removed staged nodes as abandoned."""
    for stagings in count(1):
        reply = yield from _stage_once(ref, flow, clock, before)
        if not isinstance(reply, GlideMQError):
            return reply
        if isinstance(reply, FlowIncomplete) and stagings < MAX_STAGINGS:
            yield from take_id(ref.home, ref.flow_id)  # the sweep has freed the id too
            continue
        try:
            yield from _discard(ref, flow.digest)
        except TransportError as exc:
            raise reply from exc
        raise reply
    raise AssertionError


def _stage_once(
    ref: FlowRef, flow: CheckedFlow, clock: Clock, before: Before | None
) -> Op[Staged | GlideMQError]:
    """Returns the state, or the first error; all other calls stay in effect."""
    now_ms = clock.now_ms()
    names = JobNames(ref.home.prefix, ref.flow_id, flow.queue_of, carried=flow.carried)
    trips = Trips(
        chain(
            stage_flow(ref.home, ref.flow_id, flow, chunks(flow.nodes), now_ms),
            stage_items(ref.home, ref.flow_id, flow.nodes, names),
        )
    )
    # The server refuses to start a flow without all its nodes, so the start may follow the last of them in
    # the same trip. If a node is in several calls, it waits until each was accepted.
    may_follow, is_started = all(map(_is_in_one_call, flow.nodes)), False
    # In a cluster the claim is in another slot; it is permanent by the time the next trip starts.
    opening: list[Call[Any]] = [add_home(ref.home), *hold_claim(ref.home, ref.flow_id)]
    staged: Staged = (FlowState.STAGING, -1)
    while staged[0] is FlowState.STAGING and not is_started:
        trip = trips.take()
        if is_started := trips.is_over and (may_follow or not trip):
            trip = [*trip, *_starting(ref, flow, before, clock.now_ms())]
        for reply in (yield from ask_each([*opening, *trip])):
            if isinstance(reply, GlideMQError):
                return reply
            if isinstance(reply, FlowState):
                staged = (reply, -1)
            elif isinstance(reply, int):
                staged = (staged[0], reply)
        opening = []
    return staged


def _is_in_one_call(node: CheckedNode) -> bool:
    has_items = node.array is not None and bool(node.array.chunks)
    return not has_items and len(node.after) + len(node.dependents) <= CHUNK_EDGES


def _starting(ref: FlowRef, flow: CheckedFlow, before: Before | None, now_ms: int) -> list[Call[Any]]:
    """The calls that start a flow and release its nodes without dependencies, slice by slice."""
    roots = sum(1 for node in flow.nodes if not node.after)
    slices = min(max(roots - 1, 0) // ROOTS + 1, MAX_SLICES)
    start = start_flow(ref.home, ref.flow_id, flow.digest, now_ms)
    if before is not None:
        start = begin_generation(ref.home, before, ref.flow_id, flow.digest, now_ms)
    return [start, *[advance_flow(ref.home, ref.flow_id, now_ms)] * slices]


def _discard(ref: FlowRef, digest: str) -> Op[None]:
    """Remove the staged nodes of a submission, but only of a flow with this digest that never started."""
    while (yield from ask(discard_flow(ref.home, ref.flow_id, digest))):
        pass


def advance(ref: FlowRef, clock: Clock) -> Op[None]:
    """Do all open work of the flow in slices, with several slices per trip if much is left."""
    left = 1
    while left:
        slices = min(max(left // SLICE, 1), MAX_SLICES)
        call = advance_flow(ref.home, ref.flow_id, clock.now_ms())
        left = (yield from ask_all([call] * slices))[-1] if slices > 1 else (yield from ask(call))


def sweep(home: QueueKeys, clock: Clock) -> Op[None]:
    """Do nothing: a server function sweeps every home, see ``index.sweep``."""
    del home, clock
    yield from ()  # no call


def retry_failed(ref: FlowRef, clock: Clock, owner: Owner | None = None) -> Op[FlowState]:
    """Rerun every node that did not complete, for an owner. Returns the state afterwards.

    Also reruns completed nodes whose removed results are needed.

    Raises:
        FlowExpired: Its retention has ended.
        NodeNotRepeatable: A required job was removed with its data. Nothing was changed.
    """
    is_broken = (yield from ask(flow_status(ref.home, ref.flow_id))).state in BROKEN
    return (yield from retry(ref, clock, owner, (yield from needed_again(ref)) if is_broken else ()))


def retry(ref: FlowRef, clock: Clock, owner: Owner | None, also: Sequence[str]) -> Op[FlowState]:
    state = yield from ask(retry_flow(ref.home, ref.flow_id, clock.now_ms(), owner, also))
    yield from advance(ref, clock)
    return state


def needed_again(ref: FlowRef) -> Op[list[str]]:
    """The refs of completed nodes that a retry reruns, since their results were removed.

    Raises:
        FlowExpired: They are being removed with all of the flow.
        NodeNotRepeatable: A required job was removed with its data.
    """
    found = yield from find_removed(ref.home, ref.flow_id)
    if found.lost and (yield from ask(is_expired(ref.home, ref.flow_id))):
        raise expired(ref)
    refuse_lost(ref.public_id, found.lost)
    return found.needed
