"""The graph of a flow and the states of its nodes, read in as few calls as possible: for the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import nodes_page
from glidemq_orchestrate.jobs.job import started
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.wire.call import Call, Op, ask, command, function
from glidemq_orchestrate.wire.stored import number

ROWS_PER_CALL: Final = 5_000
STATES_PER_CALL: Final = 1_000
_COLUMNS: Final = 4
_TIME_FIELDS: Final[tuple[JobField, ...]] = ("state", "processedOn", "finishedOn", "gmo:token")
_Row = tuple[Any, ...]
T = TypeVar("T")
# Tuples of texts: the garbage collector soon looks at them no more, which would take as long as all else.
_decode: Final = msgspec.json.Decoder(_Row).decode
_decode_page: Final = msgspec.json.Decoder(tuple[_Row, ...]).decode

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
class FlowGraph:
    """The nodes of a flow, dependencies before dependents, as lists of the same length."""

    names: list[str]
    queues: list[str]
    job_ids: list[str]
    jobs: list[str]
    after: list[_Row]


@dataclass(frozen=True, slots=True)
class StoredNodes:
    """The table of the nodes of a flow as the server has it: names, and rows in JSON."""

    pages: list[list[str]]


def read_nodes(ref: FlowRef) -> Op[StoredNodes]:
    """Every node; 20 calls for 100,000."""
    cursor, pages = "0", list[list[str]]()
    while True:
        cursor, page = yield from ask(_rows(ref, cursor))
        pages.append(page)
        if cursor == "0":
            return StoredNodes(pages)


def graph_of(stored: StoredNodes) -> FlowGraph:
    """The graph of stored nodes; those whose row is broken are left out.

    Columns are taken as the rows lie in memory, and only then brought into order: this is twice as fast.
    """
    names = list(chain.from_iterable(page[::2] for page in stored.pages))
    rows = list(chain.from_iterable(_decoded(page[1::2]) for page in stored.pages))
    names, whole = _once(names, rows)
    ranks: list[Any] = [row[0] for row in whole]
    order: Sequence[int] = range(len(whole))
    if not set(map(type, ranks)) <= {int, float}:
        order = [at for at in order if type(ranks[at]) in (int, float)]
    order = sorted(order, key=ranks.__getitem__)

    def ordered(column: Sequence[T]) -> list[T]:
        return list(map(column.__getitem__, order))

    return FlowGraph(
        ordered(names),
        _shared([row[1] for row in whole], order),
        ordered(_texts([row[2] for row in whole])),
        _shared([row[3] for row in whole], order),
        ordered([row[_COLUMNS:] if len(row) > _COLUMNS else () for row in whole]),
    )


def _once(names: list[str], rows: list[_Row | None]) -> tuple[list[str], list[_Row]]:
    """The names and rows without those that are broken or came twice, as HSCAN may return them."""
    if None not in rows:
        whole: list[_Row] = rows  # type: ignore[assignment]
        are_all_whole = min(map(len, whole), default=_COLUMNS) >= _COLUMNS
        if are_all_whole and len({row[0] for row in whole}) == len(whole):
            return names, whole
    pairs = zip(names, rows, strict=True)
    kept = {name: row for name, row in pairs if row is not None and len(row) >= _COLUMNS}
    return list(kept), list(kept.values())


def _texts(column: list[Any]) -> list[str]:
    return column if set(map(type, column)) <= {str} else list(map(str, column))


def _shared(column: list[Any], order: Sequence[int]) -> list[str]:
    """A column of few different texts in order. Each text is one object: these are compared much faster."""
    texts = _texts(column)
    known = dict.fromkeys(texts)
    if len(known) == 1:
        return list(known) * len(order)
    canonical = dict(zip(known, known, strict=True))
    texts = list(map(canonical.__getitem__, texts))
    return list(map(texts.__getitem__, order))


def _decoded(texts: Sequence[str]) -> Sequence[_Row | None]:
    """The rows of a page, at once; None for each that is broken."""
    try:
        found = _decode_page(f"[{','.join(texts)}]")
    except (msgspec.DecodeError, UnicodeEncodeError):
        found = ()
    return found if len(found) == len(texts) else [_decoded_one(text) for text in texts]


def _decoded_one(text: str) -> _Row | None:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _rows(ref: FlowRef, cursor: str) -> Call[tuple[str, list[str]]]:
    words = ("HSCAN", f"{ref.home.flow(ref.flow_id)}:nodes", cursor, "COUNT", ROWS_PER_CALL)
    return command(*words, decode=lambda reply: (str(reply[0]), list(reply[1])))


class NodeTimes(NamedTuple):
    """When the last run of a node began and ended, in ms; None if it has not."""

    name: str
    started: int | None
    finished: int | None


def read_times(ref: FlowRef, note: Callable[[int], None]) -> Op[list[NodeTimes]]:
    """The times of all nodes, and nothing else of them: a third of the time that reading the nodes takes.

    ``note`` is called with the number of nodes after each page of 200.
    """
    if ref.path != "staged":
        return (yield from _times_of_nodes(ref))
    cursor, found = "0", dict[str, NodeTimes]()
    while True:
        page = nodes_page(ref.home, ref.flow_id, cursor, _TIME_FIELDS, _times)
        cursor, times = yield from ask(page)
        found |= {one.name: one for one in times}
        note(len(found))
        if cursor == "0":
            return list(found.values())


def _times(name: str, _row: str, fields: Sequence[str]) -> NodeTimes:
    state, begun, finished, token = fields
    return NodeTimes(name, number(started(state, begun, finished, token)) or None, number(finished) or None)


def _times_of_nodes(ref: FlowRef) -> Op[list[NodeTimes]]:
    from glidemq_orchestrate.flows.backend import backend_of  # noqa: PLC0415  it imports every path

    nodes = yield from backend_of(ref).nodes(ref)
    return [NodeTimes(node.name, _ms(node.started_at), _ms(node.finished_at)) for node in nodes]


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)


def read_ends(ref: FlowRef) -> Op[tuple[set[str], set[str]]]:
    """The ids of the jobs of open nodes and of failed ones; at most 40 calls for 100,000 nodes.

    Only for flows in one slot. Nodes that were skipped because of others are among the failed ones.
    """
    key = ref.home.flow(ref.flow_id)
    return (yield from _job_ids(f"{key}:open")), (yield from _job_ids(f"{key}:failed"))


def _job_ids(key: str) -> Op[set[str]]:
    cursor, found = "0", set[str]()
    while True:
        words = ("SSCAN", key, cursor, "COUNT", ROWS_PER_CALL)
        cursor, refs = yield from ask(command(*words, decode=lambda reply: (str(reply[0]), list(reply[1]))))
        found |= {one.rpartition(":")[2] for one in refs}
        if cursor == "0":
            return found


def read_letters(ref: FlowRef) -> Op[dict[str, str]]:
    """The state of every node as a letter; a call for each 1,000.

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
    return function("gmo_flow_states", [ref.home.flow(ref.flow_id)], words, _page_of_letters)


def _page_of_letters(reply: Any) -> tuple[str, str, str]:
    position, names, letters = reply
    return position, names, letters


_LETTER_OF: Final = {state: letter for letter, state in reversed(LETTERS.items())} | {
    "prioritized": "d",
    "group-waiting": "w",
}
_CONSEQUENCES: Final = ("upstream ", "cancelled: ")


def failed_letter(reason: str) -> str:
    """The letter of a failed node: whether it failed by itself, or because of others."""
    return "f" if reason.startswith(_CONSEQUENCES) else "F"


def _letters_of_nodes(ref: FlowRef) -> Op[dict[str, str]]:
    """The same from the nodes themselves, for flows that store no list of them."""
    from glidemq_orchestrate.flows.backend import backend_of  # noqa: PLC0415  it imports every path

    found = {}
    for node in (yield from backend_of(ref).nodes(ref)):
        letter = _LETTER_OF.get(node.state, "?")
        found[node.name] = failed_letter(node.reason) if letter == "f" else letter
    return found
