"""The flows of the comparison, as names with their dependencies. ``size`` counts all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

WIDTH: Final = 50
Node = tuple[str, list[str]]


def nodes_of(shape: str, size: int) -> list[Node]:
    """The nodes of a flow, dependencies before dependents."""
    return list(SHAPES[shape](size))


def fan_in(size: int) -> Iterator[Node]:
    """One node waits for all others."""
    names = [f"n{at}" for at in range(size - 1)]
    yield from ((name, []) for name in names)
    yield "end", names


def fan_out(size: int) -> Iterator[Node]:
    """All others wait for one."""
    yield "begin", []
    yield from ((f"n{at}", ["begin"]) for at in range(size - 1))


def chain(size: int) -> Iterator[Node]:
    """Each node waits for the previous one."""
    for at in range(size):
        yield f"n{at}", [f"n{at - 1}"] if at else []


def columns(size: int) -> Iterator[Node]:
    """Fifty chains side by side and a node that waits for their ends: a tree, which BullMQ supports too."""
    tall = (size - 1) // WIDTH
    for row in range(tall):
        for column in range(WIDTH):
            yield f"n{row}-{column}", [f"n{row - 1}-{column}"] if row else []
    yield "end", [f"n{tall - 1}-{column}" for column in range(WIDTH)]


def ladder(size: int) -> Iterator[Node]:
    """Ten chains side by side and a node that waits for their ends."""
    tall = (size - 1) // 10
    for row in range(tall):
        for column in range(10):
            yield f"n{row}-{column}", [f"n{row - 1}-{column}"] if row else []
    yield "end", [f"n{tall - 1}-{column}" for column in range(10)]


def layers(size: int) -> Iterator[Node]:
    """Layers of 49, each waiting for all of the previous layer through a node that joins them."""
    for row in range(size // WIDTH):
        names = [f"n{row}-{column}" for column in range(WIDTH - 1)]
        yield from ((name, [f"join{row - 1}"] if row else []) for name in names)
        yield f"join{row}", names


def mesh(size: int) -> Iterator[Node]:
    """Layers of 50; each node waits for two of the previous layer."""
    for at in range(size):
        yield f"n{at}", [f"n{at - WIDTH}", f"n{at // WIDTH * WIDTH - WIDTH}"] if at >= WIDTH else []


SHAPES: Final = {
    "fan-in": fan_in,
    "fan-out": fan_out,
    "chain": chain,
    "columns": columns,
    "ladder": ladder,
    "layers": layers,
    "mesh": mesh,
}
