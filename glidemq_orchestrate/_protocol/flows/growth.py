"""Calls that add nodes to a flow; the contracts are in ``gmo_grow.lua`` and ``gmo_extend.lua``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from glidemq_orchestrate._protocol import job_hash
from glidemq_orchestrate._protocol.flows.nodes import read_row
from glidemq_orchestrate._protocol.flows.staging import GROWTH_NODES, JobNames, Piece, chunks, staged
from glidemq_orchestrate.flows.growth import CheckedGrowth, KnownNode
from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, command, function
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys

T = TypeVar("T")
Send = Callable[[Sequence[str], str, Sequence[Word]], Call[T]]


def grow(
    home: QueueKeys,
    attempt: Attempt,
    growth: CheckedGrowth,
    known: Mapping[str, KnownNode],
    now_ms: int,
) -> Iterator[Call[int]]:
    """Stage the nodes that an attempt adds when it completes, a call for each chunk.

    Each returns 1; or 0 when it removed a slice of what an earlier attempt had staged: then all are to be
    sent again. Repeatable.
    """
    queue = QueueKeys(home.prefix, attempt.queue)
    proof = (now_ms, attempt.job_id, attempt.entry_id, GROUP, attempt.token, attempt.processed_on)

    def send(places: Sequence[str], header: str, words: Sequence[Word]) -> Call[int]:
        keys = [queue.job(attempt.job_id), home.flow(attempt.stored_flow), *places]
        return function("gmo_grow", keys, (*proof, header, *words), replies.integer, repeatable=True)

    return _chunks(home, attempt.stored_flow, attempt.job_id, growth, known, send)


def extend(
    home: QueueKeys,
    flow_id: str,
    growth: CheckedGrowth,
    known: Mapping[str, KnownNode],
    now_ms: int,
) -> Iterator[Call[FlowState]]:
    """Stage nodes that are added from outside, a call for each chunk; the last adds them. Repeatable."""

    def send(places: Sequence[str], header: str, words: Sequence[Word]) -> Call[FlowState]:
        keys = [home.flow(flow_id), *places]
        return function("gmo_extend", keys, (now_ms, header, *words), FlowState, repeatable=True)

    return _chunks(home, flow_id, extension_id(growth), growth, known, send)


def extension_id(growth: CheckedGrowth) -> str:
    """The growth id of nodes that are added from outside: the same for the same nodes."""
    return f"x-{growth.digest}"


def _chunks(  # noqa: PLR0913, PLR0917  the parts of a growth
    home: QueueKeys,
    flow_id: str,
    growth_id: str,
    growth: CheckedGrowth,
    known: Mapping[str, KnownNode],
    send: Send[T],
) -> Iterator[Call[T]]:
    """The calls that stage a growth; the header of the last has the number of all."""
    names = JobNames(home.prefix, flow_id, growth.queue_of(known))
    queues = list(dict.fromkeys(node.queue for node in growth.nodes))
    numbers = {queue: number for number, queue in enumerate(queues, start=1)}
    places = [QueueKeys(home.prefix, queue).key("id") for queue in queues]
    parts = list(chunks(growth.nodes, GROWTH_NODES))
    for at, chunk in enumerate(parts, start=1):
        header: dict[str, Any] = {"id": flow_id, "growth": growth_id, "batch": growth.digest, "chunk": at}
        header |= _outer_edges(chunk, growth, names)
        if at == len(parts):
            header["chunks"] = len(parts)
        words = [word for piece in chunk for word in (numbers[piece.node.queue], *staged(piece, names))]
        yield send(places, json.dumps(header), words)


def _outer_edges(chunk: Iterable[Piece], growth: CheckedGrowth, names: JobNames) -> dict[str, Any]:
    """The edges of a chunk between new and old nodes, as the header has them."""
    after, before = [], []
    held = set(growth.before)
    for piece in chunk:
        ref = names.ref(piece.node.name)
        after += [[names.ref(name), ref] for name in piece.after if name in growth.outside]
        before += [[ref, names.ref(name), piece.node.name] for name in piece.dependents if name in held]
    return {key: edges for key, edges in (("after", after), ("before", before)) if edges}


def drop_growth(home: QueueKeys, flow_id: str, growth_id: str) -> Call[int]:
    """Remove a slice of the staged nodes that did not join; returns how many are left. Repeatable."""
    args = (0, flow_id, growth_id)
    return function("gmo_drop_growth", [home.flow(flow_id)], args, replies.integer, repeatable=True)


def known_nodes(home: QueueKeys, flow_id: str, names: Sequence[str]) -> Call[dict[str, KnownNode]]:
    """Those of the nodes that the flow has, without their states."""

    def decode(reply: Any) -> dict[str, KnownNode]:
        return _all_known(zip(names, reply, strict=True))

    return command("HMGET", home.flow(flow_id) + ":nodes", *names, decode=decode)


def staged_nodes(home: QueueKeys, growth_id: str, names: Sequence[str]) -> Call[dict[str, KnownNode]]:
    """Those of the nodes that are staged in a growth, without their states."""

    def decode(reply: Any) -> dict[str, KnownNode]:
        lines = ((name, (text or "").split("\n", 2)) for name, text in zip(names, reply, strict=True))
        return _all_known((name, parts[1] if len(parts) > 1 else None) for name, parts in lines)

    return command("HMGET", home.growth(growth_id), *names, decode=decode)


def _all_known(rows: Iterable[tuple[str, str | None]]) -> dict[str, KnownNode]:
    """Nodes by name; one whose row cannot be read is treated as missing."""
    places = ((name, read_row(row) if row else None) for name, row in rows)
    return {
        name: KnownNode(name, place[0], place[1], place[2], place[4], "") for name, place in places if place
    }


def job_state(queue: QueueKeys, job_id: str) -> Call[str]:
    """The state of a job; '' for a missing job."""
    return job_hash.get(queue, job_id, "state", lambda reply: reply or "")
