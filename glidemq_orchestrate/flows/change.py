"""The changes that a watched flow reports, and the position from which watching can resume.

A position holds the states reported so far, not a place in a stream: so nothing that was trimmed away is
missed and nothing is reported twice, whichever process resumes and however much later.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.spec import FlowState, NodeStatus
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.keys import read_generation
from glidemq_orchestrate.names import MAX_NAME

UNSEEN: Final = JobState.WAITING_CHILDREN
"""A node is not reported before it leaves this state."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node is in another state than the one last reported, or has made progress.

    Attributes:
        node: Its name.
        state: Its state now.
        at: When it entered the state; for states without a stored time, when the change was noticed.
        attempts: Runs that were started.
        reason: Why it last failed.
        progress: What the handler last reported.
        position: Where watching resumes after this change.
    """

    node: str
    state: JobState
    at: datetime
    attempts: int
    reason: str
    progress: Json
    position: str


@dataclass(frozen=True, slots=True)
class FlowChange:
    """The end of the flow: always the last change.

    Attributes:
        flow: Its id.
        state: How it ended.
        at: When it ended.
        reason: The first failure, or why it was cancelled.
        position: Where watching resumes after this change, when the flow was retried or has grown.
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
_POSITION: Final = re.compile(r"1\.([\w-]+)\.((?:\d+[a-z])*)\Z", re.ASCII)
_MOST_DELTAS: Final = 64
_MOST_BYTES: Final = 16 * 2**20
_MOST_RANK: Final = 999_999
_PARTS: Final = 4


class Seen:
    """What was reported so far: the state of each node, and of the flow when it has ended.

    A node is identified by its rank where that is a whole number, as in all nodes of a submission; nodes
    added later have ranks between those and are identified by their names.
    """

    def __init__(self, flow_id: str) -> None:
        self.flow_id, self.end = flow_id, ""
        self._codes = bytearray()
        self._others: dict[str, str] = {}
        self._head, self._deltas = "", list[str]()

    @classmethod
    def at(cls, flow_id: str, position: str) -> Seen:
        """What was reported up to a position.

        Raises:
            ConfigurationError: It is not a position, or belongs to another flow.
        """
        seen = cls(flow_id)
        match = _POSITION.match(position)
        try:
            of, seen.end, codes, seen._others = _unpacked(match[1] if match else "")
            seen._codes = bytearray(_known(codes), "ascii")
            for rank, code in re.findall(r"(\d+)([a-z])", match[2] if match else ""):
                seen._put(_rank(rank), _known(code))
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
        """The state of a node that was last reported."""
        if not isinstance(rank, int):
            return self._others.get(name, UNSEEN)
        return _STATES[chr(self._codes[rank])] if rank < len(self._codes) else UNSEEN

    def record(self, rank: float, node: NodeStatus) -> str:
        """Remember the state of a node; returns the position after it."""
        code = _CODES.get(node.state, "")
        if isinstance(rank, int) and code:
            self._put(rank, code)
            self._deltas.append(f"{rank}{code}")
        else:
            self._others[node.name] = str(node.state)
            self._head = ""
        if self.end:
            self.end, self._head = "", ""
        return self._position()

    def record_end(self, state: FlowState) -> str:
        """Remember the end of the flow; returns the position after it."""
        self.end, self._head = str(state), ""
        return self._position()

    def _put(self, rank: int, code: str) -> None:
        """Set the state of a node with a whole rank."""
        missing = rank + 1 - len(self._codes)
        self._codes.extend([_UNSEEN] * max(missing, 0))
        self._codes[rank] = ord(code)

    def _position(self) -> str:
        """The packed states, followed by the changes since they were packed."""
        # Packing everything takes time in proportion to the flow: most positions only append their changes.
        if not self._head or len(self._deltas) > max(_MOST_DELTAS, len(self._codes) // 100):
            wire = json.dumps([self.flow_id, self.end, self._codes.decode("ascii"), self._others])
            self._head = base64.urlsafe_b64encode(zlib.compress(wire.encode())).decode().rstrip("=")
            self._deltas.clear()
        return f"1.{self._head}.{''.join(self._deltas)}"


def _unpacked(packed: str) -> tuple[str, str, str, dict[str, str]]:
    """The parts of a position. It may be forged: the parts are checked, and the unpacked size is limited."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), _MOST_BYTES)
    wire = json.loads(data) if unpacker.eof else None
    if not isinstance(wire, list) or len(wire) != _PARTS:
        raise ValueError("not the parts of a position")
    of, end, codes, others = wire
    if not (isinstance(of, str) and isinstance(codes, str) and isinstance(others, dict)):
        raise ValueError("a part of the wrong type")  # noqa: TRY004  the caller reports an invalid position
    if end not in ("", *map(str, FlowState)) or not all(isinstance(state, str) for state in others.values()):
        raise ValueError("an unknown state")
    return of, end, codes, others


def _known(codes: str) -> str:
    if not set(codes) <= _STATES.keys():
        raise ValueError("an unknown state")
    return codes


def _rank(text: str) -> int:
    if len(text) > len(str(_MOST_RANK)) or int(text) > _MOST_RANK:
        raise ValueError("a rank that no node has")
    return int(text)


def time_of(node: NodeStatus, noticed: datetime) -> datetime:
    """When a node entered its state."""
    if node.state.is_terminal:
        return node.finished_at or noticed
    return (node.started_at if node.state is JobState.ACTIVE else None) or noticed
