"""Many calls in several trips, each encoded while the server works on the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from glidemq_orchestrate.wire.call import Call

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leading(Call[T]):
    """A call of one trip that knows the calls of the next.

    ``following`` returns them, the same ones each time. The driver encodes them once it has sent this call.
    """

    following: Callable[[], Sequence[Call[Any]]] = tuple


class Trips:
    """Takes calls from an iterator as it needs them.

    The first trip is one call, so that the server begins soon. None is too long for the buffers of a
    connection: while a client waits to send the rest of a trip, it cannot encode the next one.
    """

    GROWTH: Final = 4
    LONGEST = 32

    def __init__(self, calls: Iterator[Call[Any]]) -> None:
        self._calls, self._size = calls, 1
        self._spare: list[Call[Any]] = []
        self._next: list[Call[Any]] | None = None
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether no calls remain after the trip that was taken last."""
        return self._next is None and not self._spare

    def take(self) -> list[Call[Any]]:
        """The calls of the next trip; none at the end."""
        trip, self._next = self._upcoming(), None
        if self.is_over:
            return trip
        first = trip[0]
        head = Leading(
            first.words, first.decode, first.blocks_for, first.repeatable, first.confirms, self._upcoming
        )
        object.__setattr__(head, "packed", first.packed)
        return [head, *trip[1:]]

    def _upcoming(self) -> list[Call[Any]]:
        """The calls of the next trip. After an error the iterator is empty, so the error is raised again."""
        if self._error is not None:
            raise self._error
        if self._next is None:
            try:
                found = [*self._spare, *islice(self._calls, self._size + 1 - len(self._spare))]
            except Exception as exc:
                self._error = exc
                raise
            self._next, self._spare = found[: self._size], found[self._size :]
            self._size = min(self.GROWTH * self._size, self.LONGEST)
        return self._next
