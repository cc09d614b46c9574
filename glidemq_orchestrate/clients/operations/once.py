"""Once: the operation of a method that waits for one thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from glidemq_orchestrate.wire.call import Op

T = TypeVar("T")


def _nothing() -> None:
    return None


@dataclass(slots=True)
class Once(Generic[T]):
    """A wait for one thing, in steps: one that fails because of an outage is repeated after it.

    Attributes:
        wait: Makes the operation that waits; another one goes on where the first was interrupted.
        cleanup: Makes the operation after the wait, if any. Its failure is ignored.
        begin: What comes first, such as adding a job; if it fails, nothing is repeated.
    """

    wait: Callable[[], Op[T]]
    cleanup: Callable[[], Op[None] | None] = _nothing
    begin: Op[None] | None = None

    def step(self) -> Op[Sequence[T]]:
        """The next step; the last one returns one item."""
        begin, self.begin = self.begin, None
        return self._last() if begin is None else self._first(begin)

    def _first(self, begin: Op[None]) -> Op[Sequence[T]]:
        yield from begin
        return ()

    def _last(self) -> Op[Sequence[T]]:
        return ((yield from self.wait()),)

    def end(self) -> Op[None] | None:
        """The cleanup."""
        return self.cleanup()
