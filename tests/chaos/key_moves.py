"""A slot that moves key by key, as ``valkey-cli --cluster reshard`` does it; servers may die meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.chaos.round import Round
    from tests.server.connections.topologies import Server

MIGRATE_MS: Final = 300
AGAIN_SECONDS: Final = 0.1


@dataclass(frozen=True)
class KeyMove:
    """A move of a slot.

    Attributes:
        slot: Its number.
        source: Its owner.
        target: Its next one.
        parts: In about how many parts its keys move.
        pause: Seconds between two of them.
    """

    slot: str
    source: Server
    target: Server
    parts: int
    pause: float


def begin_move(at: Round, move: KeyMove) -> None:
    """Begin a move, and let it end by itself."""
    source, target = (str(at.ask(server, "CLUSTER", "MYID")) for server in (move.source, move.target))
    begun = [
        at.ask(move.target, "CLUSTER", "SETSLOT", move.slot, "IMPORTING", source),
        at.ask(move.source, "CLUSTER", "SETSLOT", move.slot, "MIGRATING", target),
    ]
    if None in begun:  # a server is down, or the slot is already moving at once
        for server in (move.source, move.target):
            at.insist(server, "CLUSTER", "SETSLOT", move.slot, "STABLE")
        return
    at.moving.add(move.slot)
    count = at.ask(move.source, "CLUSTER", "COUNTKEYSINSLOT", move.slot) or 0
    _carry(at, move, str(int(count) // move.parts + 1), target)


def _carry(at: Round, move: KeyMove, most: str, target: str) -> None:
    """Move some keys; the last step gives the slot to its new owner."""
    keys = at.ask(move.source, "CLUSTER", "GETKEYSINSLOT", move.slot, most)
    if keys == []:
        _end(at, move, [move.target, move.source, *at.servers], target)
        return
    moved = keys and at.ask(
        # A key on both sides was still its source's: the source died before it could delete it.
        move.source, "MIGRATE", "127.0.0.1", str(move.target.port), "", "0", str(MIGRATE_MS), "REPLACE",
        "KEYS", *keys,
    )  # fmt: skip
    at.later(move.pause if moved else AGAIN_SECONDS, partial(_carry, at, move, most, target))


def _end(at: Round, move: KeyMove, left: list[Server], target: str) -> None:
    """Tell one server after the other; the new owner first."""
    server, *others = left
    if at.ask(server, "CLUSTER", "SETSLOT", move.slot, "NODE", target) is None:
        at.later(AGAIN_SECONDS, partial(_end, at, move, left, target))
    elif others:
        _end(at, move, others, target)
    else:
        at.moving.discard(move.slot)
