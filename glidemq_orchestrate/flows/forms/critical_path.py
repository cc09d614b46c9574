"""The chain of nodes that decided when a flow ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol


class Timed(Protocol):
    """The status of a node, as far as the critical path depends on it."""

    @property
    def name(self) -> str:
        """Unique in the flow."""

    @property
    def after(self) -> Sequence[str]:
        """Names of its dependencies."""

    @property
    def started_at(self) -> datetime | None:
        """When its last run began."""

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""


def critical_path(nodes: Iterable[Timed]) -> list[str]:
    """Names from the first node of the chain to the last.

    The chain ends with the node that ran and ended last or, while nodes run, with the running node that
    started first. Each node is preceded by its dependency that ended last, which it had to wait for. Ties go
    to the first in the order of the flow, but to the last at the end of the chain. Empty if no node has
    started.
    """
    known = {node.name: node for node in nodes}
    last = _last(known)
    path: list[str] = []
    while last is not None and last not in path:
        path.append(last)
        ended = [
            (node.finished_at, name)
            for name in known[last].after
            if (node := known.get(name)) is not None and node.finished_at is not None
        ]
        last = max(ended, key=lambda pair: pair[0])[1] if ended else None
    return path[::-1]


def _last(known: Mapping[str, Timed]) -> str | None:
    """The end of the path: the running node that started first, else the node that ended last."""
    running = [
        (node.started_at, name)
        for name, node in known.items()
        if node.started_at is not None and node.finished_at is None
    ]
    if running:
        return min(running, key=lambda pair: pair[0])[1]
    ended = [
        (node.finished_at, name)
        for name, node in known.items()
        if node.started_at is not None and node.finished_at is not None
    ]
    # Times are whole milliseconds: on a tie, the last in the order of the flow, as dependents end later.
    return max(reversed(ended), key=lambda pair: pair[0])[1] if ended else None
