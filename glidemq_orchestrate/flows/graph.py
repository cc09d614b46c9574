"""The graph of a flow and the states of its nodes, read in as few calls as possible: for the console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.wire.call import Call, Op, ask, command, function

ROWS_PER_CALL: Final = 5_000
STATES_PER_CALL: Final = 5_000
_decode: Final = msgspec.json.Decoder().decode

LETTERS: Final = {
    "c": "completed",
    "s": "skipped",
    "f": "failed",
    "F": "failed",
    "a": "active",
    "w": "waiting",
    "d": "delayed",
    "b": "waiting-children",
    "u": "suspended",
    "?": "unknown",
}
"""The state for each letter of ``gmo_flow_states``; ``F`` has failed by itself."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node as its flow stores it."""

    name: str
    queue: str
    job_id: str
    job: str
    after: Sequence[str]


def read_graph(ref: FlowRef) -> Op[list[GraphNode]]:
    """Every node, dependencies before dependents; 20 calls for 100,000 nodes."""
    cursor, rows = "0", dict[str, str]()
    while True:
        cursor, page = yield from ask(_rows(ref, cursor))
        rows |= zip(page[::2], page[1::2], strict=True)
        if cursor == "0":
            break
    found: list[tuple[float, GraphNode]] = []
    for name, text in rows.items():
        try:
            rank, queue, job_id, job, *after = _decode(text)
        except (msgspec.DecodeError, ValueError, TypeError):
            continue  # the row is broken; the list of nodes shows it
        found.append((float(rank), GraphNode(name, queue, job_id, job, after)))
    found.sort(key=lambda pair: pair[0])
    return [node for _, node in found]


def _rows(ref: FlowRef, cursor: str) -> Call[tuple[str, list[str]]]:
    words = ("HSCAN", f"{ref.home.flow(ref.flow_id)}:nodes", cursor, "COUNT", ROWS_PER_CALL)
    return command(*words, decode=lambda reply: (str(reply[0]), list(reply[1])))


def read_letters(ref: FlowRef) -> Op[dict[str, str]]:
    """The state of every node as a letter; 20 calls for 100,000 nodes.

    Raises:
        FlowNotFound, FlowExpired: The flow or its jobs no longer exist.
    """
    if ref.path != "staged":
        return (yield from _letters_of_nodes(ref))
    position, found = "0", dict[str, str]()
    while True:
        position, names, letters = yield from ask(_letters(ref, position))
        if letters:
            found |= zip(names.split("\n"), letters, strict=True)
        if position == "0":
            break
    return found or (yield from _letters_of_nodes(ref))


def _letters(ref: FlowRef, position: str) -> Call[tuple[str, str, str]]:
    words = (0, ref.flow_id, position, STATES_PER_CALL)
    return function("gmo_flow_states", [ref.home.flow(ref.flow_id)], words, _decode_page)


def _decode_page(reply: Any) -> tuple[str, str, str]:
    position, names, letters = reply
    return position, names, letters


_LETTER_OF: Final = {state: letter for letter, state in reversed(LETTERS.items())} | {
    "prioritized": "d",
    "group-waiting": "w",
}
_CONSEQUENCES: Final = ("upstream ", "cancelled: ")


def _letters_of_nodes(ref: FlowRef) -> Op[dict[str, str]]:
    """The same from the nodes themselves, for flows that store no list of them."""
    from glidemq_orchestrate.flows.backend import backend_of  # noqa: PLC0415  it imports every path

    found = {}
    for node in (yield from backend_of(ref).nodes(ref)):
        letter = _LETTER_OF.get(node.state, "?")
        is_cause = letter == "f" and not node.reason.startswith(_CONSEQUENCES)
        found[node.name] = "F" if is_cause else letter
    return found
