"""Encodes nodes as arguments of staging calls, in chunks that cost the server a few milliseconds each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from glidemq_orchestrate.flows.checked import CheckedNode
from glidemq_orchestrate.wire.call import Word
from glidemq_orchestrate.wire.keys import QueueKeys, node_job_id

KEEPING: Final = ("removeOnComplete", "removeOnFail")
CHUNK_NODES: Final = 50
GROWTH_NODES: Final = 25
CHUNK_EDGES: Final = 1_000
CHUNK_BYTES: Final = 1_048_576
# Nodes with more dependents list them in the set of parents only, not in the two human-readable fields.
MAX_LISTED: Final = 1_000
CARRIED: Final = "="
SETTLED: Final = "=="


@dataclass(frozen=True, slots=True)
class Piece:
    """A node, or a part of its edges; the last piece has the node itself."""

    node: CheckedNode
    after: Sequence[str]
    dependents: Sequence[str]
    is_last: bool


class JobNames:
    """Caches job ids and refs of the nodes of a flow, and has the trace context of its jobs.

    ``carried``: the job ids of nodes carried over from the previous generation.
    ``settled``: those that keep their edges too.
    """

    def __init__(  # noqa: PLR0913, PLR0917  all that the names depend on
        self,
        prefix: str,
        flow_id: str,
        queue_of: Mapping[str, str],
        trace: str = "",
        carried: Mapping[str, str] = MappingProxyType({}),
        settled: frozenset[str] = frozenset(),
    ) -> None:
        self.queue_of, self.trace, self.carried, self.settled = queue_of, trace, carried, settled
        self._prefix, self._flow_id = prefix, flow_id
        self._bases: dict[str, str] = {}
        self._ids: dict[str, str] = dict(carried)

    def own_id(self, name: str) -> str:
        """The job id of a node that is not carried over."""
        return node_job_id(self._flow_id, name)

    def job_id(self, name: str) -> str:
        """The id of a node's job."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = node_job_id(self._flow_id, name)
        return found

    def ref(self, name: str) -> str:
        """The member of glide-mq's dependency sets for a node."""
        queue = self.queue_of[name]
        base = self._bases.get(queue)
        if base is None:
            base = self._bases[queue] = QueueKeys(self._prefix, queue).base
        return f"{base}:{self.job_id(name)}"


def pieces(node: CheckedNode) -> Iterator[Piece]:
    """Split a node with too many edges for one call."""
    after, dependents = node.after, node.dependents
    while len(after) + len(dependents) > CHUNK_EDGES:
        cut = CHUNK_EDGES - len(after[:CHUNK_EDGES])
        yield Piece(node, after[:CHUNK_EDGES], dependents[:cut], is_last=False)
        after, dependents = after[CHUNK_EDGES:], dependents[cut:]
    yield Piece(node, after, dependents, is_last=True)


def chunks(nodes: Iterable[CheckedNode], max_nodes: int = CHUNK_NODES) -> Iterator[list[Piece]]:
    """The nodes in chunks, one for each call."""
    chunk: list[Piece] = []
    edges = size = 0
    for piece in (piece for node in nodes for piece in pieces(node)):
        more = len(piece.after) + len(piece.dependents)
        length = len(piece.node.data) if piece.is_last else 0
        if chunk and (len(chunk) == max_nodes or edges + more > CHUNK_EDGES or size + length > CHUNK_BYTES):
            yield chunk
            chunk, edges, size = [], 0, 0
        chunk.append(piece)
        edges, size = edges + more, size + length
    if chunk:
        yield chunk


def more_fields(node: CheckedNode, names: JobNames) -> str:
    """The uncommon job fields, as JSON for ``gmo_stage_flow``; '' for none."""
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
    policies = node.policies
    if len(policies) == len(node.after) and len(set(policies.values())) == 1:
        fields["gmo:edge"] = next(iter(policies.values()))
    else:
        fields |= {f"gmo:edge:{names.ref(name)}": policy for name, policy in policies.items()}
    return json.dumps(fields) if fields else ""


def kept(options: str) -> str:
    """The options of a node without its retention: a node is kept as long as its flow."""
    if not any(f'"{name}"' in options for name in KEEPING):
        return options
    given = {name: value for name, value in json.loads(options).items() if name not in KEEPING}
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False)


def traced(options: str, trace: str) -> str:
    """The options of a job with the client's trace context, unless they have one."""
    if not trace or ('"traceparent"' in options and "traceparent" in json.loads(options)):
        return options
    return f'{{"traceparent":{json.dumps(trace)}' + (",".join(["", options[1:]]) if options != "{}" else "}")


def staged(piece: Piece, names: JobNames) -> Iterator[Word]:
    """The arguments for a piece, after the number of its queue; see ``gmo_stage_flow``."""
    node = piece.node
    if node.name in names.carried:
        yield from _carried(piece, names)
        return
    job_id = names.job_id(node.name)
    if piece.is_last:
        options = traced(kept(node.options), names.trace)
        yield from (job_id, node.name, node.job, node.data, options, node.attempts, node.delay_ms)
        yield _row(node, job_id)
        is_listed = 0 < len(node.dependents) <= MAX_LISTED
        yield json.dumps([names.job_id(name) for name in node.dependents]) if is_listed else ""
        yield json.dumps([names.queue_of[name] for name in node.dependents]) if is_listed else ""
        yield more_fields(node, names)
    else:
        yield from (job_id, node.name, "", "", "", "", "", "", "", "", "")
    yield len(piece.after)
    yield from map(names.ref, piece.after)
    yield len(piece.dependents)
    yield from map(names.ref, piece.dependents)


def _carried(piece: Piece, names: JobNames) -> Iterator[Word]:
    """The same for a carried-over node: only its dependents may be new."""
    node, job_id = piece.node, names.job_id(piece.node.name)
    row = _row(node, job_id) if piece.is_last else ""
    is_settled = node.name in names.settled
    kept = SETTLED if is_settled else CARRIED
    dependents = () if is_settled else piece.dependents
    yield from (names.own_id(node.name), node.name, "", job_id, "", "", "", row, "", "", kept, 0)
    yield len(dependents)
    yield from map(names.ref, dependents)


def _row(node: CheckedNode, job_id: str) -> str:
    table = [node.rank, node.queue, job_id, node.job, *node.after]
    return json.dumps(table, separators=(",", ":"), ensure_ascii=False)
