"""The changes of a watched flow, and the position from which watching can resume.

A position contains the states reported so far, not a position in a stream. So trimming loses nothing and
nothing is reported twice, no matter which process resumes and when. With each state it contains the turn,
which distinguishes a node that was rerun from one that was not, even if both ended alike.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.status import FlowState, NodeStatus
from glidemq_orchestrate.foundation.values import MAX_NAME
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.keys import read_generation

UNSEEN: Final = JobState.WAITING_CHILDREN
"""A node is not reported until it leaves this state."""

_DELTA: Final = r"(\d+)([a-z])(?:(\d{1,19})\.)?"
_MAX_DELTAS: Final = 64
_MAX_BYTES: Final = 16 * 2**20
_MAX_RANK: Final = 999_999
_TURNS_OF_RUN: Final = 1_000  # later attempts count as the last one


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node has changed its state since the last report, entered the same state again, or made progress.

    Attributes:
        node: Its name.
        state: Its current state.
        at: When it entered the state; if that time is not stored, when the change was read.
        attempts: The number of attempts started in its current run.
        reason: Why it last failed.
        progress: The last progress that the handler reported.
        position: The position after this change, from which watching can resume.
    """

    node: str
    state: JobState
    at: datetime
    attempts: int
    reason: str
    progress: Any
    position: str


@dataclass(frozen=True, slots=True)
class FlowChange:
    """The end of the flow: always the last change.

    Attributes:
        flow: Its id.
        state: How it ended.
        at: When it ended.
        reason: The first failure, or why it was cancelled.
        position: The position after this change, for when the flow is retried or grows, or nodes rerun.
    """

    flow: str
    state: FlowState
    at: datetime
    reason: str
    position: str


_CODES: Final = {
    UNSEEN: "b", JobState.WAITING: "w", JobState.DELAYED: "d", JobState.PRIORITIZED: "p",
    JobState.GROUP_WAITING: "g", JobState.SUSPENDED: "u", JobState.ACTIVE: "a", JobState.COMPLETED: "c",
    JobState.FAILED: "f", "skipped": "s", JobState.UNKNOWN: "x",
}  # fmt: skip
_STATES: Final = {code: str(state) for state, code in _CODES.items()}
_UNSEEN: Final = ord(_CODES[UNSEEN])
_POSITION: Final = re.compile(rf"1\.([\w-]+)\.((?:{_DELTA})*)\Z", re.ASCII)
_TURN: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


def turn_of(node: NodeStatus) -> int:
    """A number that increases with each run of a node, and with each failed attempt within a run."""
    if node.state == UNSEEN:
        return 0
    failed = node.attempts - (node.state in (JobState.ACTIVE, JobState.COMPLETED))
    return node.reruns * _TURNS_OF_RUN + min(max(failed, 0), _TURNS_OF_RUN - 1)


class Reported:
    """The reports so far: state and turn of each node, and the end of the flow if it has ended.

    A node with a whole rank, as all submitted nodes have, is identified by its rank. Nodes added later have
    ranks in between and are identified by their names.
    """

    def __init__(self, flow_id: str) -> None:
        self.flow_id, self.end = flow_id, ""
        self._ended_ms = 0  # 0: unknown
        self._codes = bytearray()
        self._turns: dict[int, int] = {}  # omits 0, which nearly all nodes have
        self._others: dict[str, str] = {}
        self._head, self._deltas = "", list[str]()

    @classmethod
    def at(cls, flow_id: str, position: str) -> Reported:
        """The reports up to a position.

        Raises:
            ConfigurationError: It is not a position, or belongs to another flow.
        """
        seen = cls(flow_id)
        match = _POSITION.match(position)
        try:
            packed, deltas = match.groups()[:2] if match else ("", "")
            of, seen.end, seen._ended_ms, codes, seen._others, turns = _unpacked(packed)
            seen._codes = bytearray(_checked_codes(codes), "ascii")
            seen._turns = _turns(turns)
            for rank, code, turn in re.findall(_DELTA, deltas):
                seen._put(_rank(rank), _checked_codes(code), int(turn or 0))
        except (ValueError, RecursionError, zlib.error) as exc:
            raise ConfigurationError(f"{position[:60]!r} is not a position of a watched flow") from exc
        if of != flow_id:
            (old, number), (flow, current) = read_generation(of[:MAX_NAME]), read_generation(flow_id)
            if old == flow:
                raise ConfigurationError(
                    f"the position belongs to generation {number} of flow {flow}, not to {current}"
                )
            raise ConfigurationError(f"the position belongs to flow {old}, not to {flow}")
        return seen

    def state(self, rank: float, name: str) -> str:
        """The last reported state of a node."""
        if not isinstance(rank, int):
            return self._others.get(name, UNSEEN).partition(" ")[0]
        return _STATES[chr(self._codes[rank])] if rank < len(self._codes) else UNSEEN

    def turn(self, rank: float, name: str) -> int:
        """The turn of that report; 0 before the node has started."""
        if not isinstance(rank, int):
            return int(self._others.get(name, "").partition(" ")[2] or 0)
        return self._turns.get(rank, 0)

    def run(self, rank: float, name: str) -> int:
        """The run of that report."""
        return self.turn(rank, name) // _TURNS_OF_RUN

    def has(self, rank: float, node: NodeStatus) -> bool:
        """Whether a node was reported in this state and turn. The turn of a removed job is unknown."""
        return self.state(rank, node.name) == node.state and turn_of(node) <= self.turn(rank, node.name)

    def has_end(self, state: FlowState, at: datetime | None) -> bool:
        """Whether this end of the flow was reported."""
        return self.end == state and (not self._ended_ms or self._ended_ms == _milliseconds(at))

    def record(self, rank: float, node: NodeStatus) -> str:
        """Record state and turn of a node; returns the position after it."""
        self._set(rank, node)
        if self.end:
            self.end, self._ended_ms, self._head = "", 0, ""
        return self._position()

    def record_end(self, state: FlowState, at: datetime | None = None) -> str:
        """Record the end of the flow; returns the position after it."""
        self.end, self._ended_ms, self._head = str(state), _milliseconds(at), ""
        return self._position()

    def _set(self, rank: float, node: NodeStatus) -> None:
        code, turn = _CODES.get(node.state, ""), turn_of(node)
        if isinstance(rank, int) and code:
            self._put(rank, code, turn)
            self._deltas.append(f"{rank}{code}{turn}." if turn else f"{rank}{code}")
        else:
            self._others[node.name] = f"{node.state} {turn}" if turn else str(node.state)
            self._head = ""

    def _put(self, rank: int, code: str, turn: int) -> None:
        """Set state and turn of a node with a whole rank."""
        missing = rank + 1 - len(self._codes)
        self._codes.extend([_UNSEEN] * max(missing, 0))
        self._codes[rank] = ord(code)
        if turn:
            self._turns[rank] = turn
        else:
            self._turns.pop(rank, None)

    def _position(self) -> str:
        """The packed states, followed by the changes since then."""
        # Packing everything takes time proportional to the flow: most positions only append changes.
        if not self._head or len(self._deltas) > max(_MAX_DELTAS, len(self._codes) // 100):
            end = f"{self.end} {self._ended_ms}" if self._ended_ms else self.end
            ranks = range(max(self._turns, default=-1) + 1)
            turns = ",".join(str(self._turns.get(rank, "")) for rank in ranks)
            wire = json.dumps([self.flow_id, end, self._codes.decode("ascii"), self._others, turns])
            self._head = base64.urlsafe_b64encode(zlib.compress(wire.encode())).decode().rstrip("=")
            self._deltas.clear()
        return f"1.{self._head}.{''.join(self._deltas)}"


def _unpacked(packed: str) -> tuple[str, str, int, str, dict[str, str], str]:
    """The parts of a position: flow, its end, the time of that, states, states of added nodes, turns.

    It may be forged, so the parts are checked and the unpacked size is limited.
    """
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), _MAX_BYTES)
    wire = json.loads(data) if unpacker.eof else None
    if not isinstance(wire, list) or len(wire) != 5:
        raise ValueError("not the parts of a position")
    of, end, codes, others, turns = wire
    if not (isinstance(others, dict) and all(isinstance(one, str) for one in (of, end, codes, turns))):
        raise ValueError("a part of the wrong type")
    if not all(isinstance(state, str) for state in others.values()):
        raise ValueError("an unknown state")
    for state in others.values():
        _turn(state.partition(" ")[2])
    end, _, ended = end.partition(" ")
    if end not in ("", *map(str, FlowState)):
        raise ValueError("an unknown state")
    return of, end, _turn(ended), codes, others, turns


def _turns(text: str) -> dict[int, int]:
    """The turns, by rank."""
    if text.count(",") > _MAX_RANK:
        raise ValueError("more turns than there are nodes")
    return {rank: _turn(turn) for rank, turn in enumerate(text.split(",")) if turn}


def _turn(text: str) -> int:
    if text and not _TURN.fullmatch(text):
        raise ValueError("not a number")
    return int(text or 0)


def _checked_codes(codes: str) -> str:
    if not set(codes) <= _STATES.keys():
        raise ValueError("an unknown state")
    return codes


def _rank(text: str) -> int:
    if len(text) > len(str(_MAX_RANK)) or int(text) > _MAX_RANK:
        raise ValueError("a rank that no node has")
    return int(text)


def _milliseconds(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1000)


def time_of(node: NodeStatus, noticed: datetime) -> datetime:
    """When a node entered its state."""
    if node.state.is_terminal:
        return node.finished_at or noticed
    return (node.started_at if node.state is JobState.ACTIVE else None) or noticed
