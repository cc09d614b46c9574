"""The connection of a Spark task, or of the driver while it plans: each opens its own; none is pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.runs import Patience
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Op

PATIENCE_SECONDS: Final = 60.0
T = TypeVar("T")
P = TypeVar("P")


def patience() -> Patience:
    """Waits for a server that goes away: it may be restarting. One that never replied is not waited for."""
    return Patience(PATIENCE_SECONDS, first=0.0)


class Link(SyncFacade):
    """Runs operations that may be repeated, with patience."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self._patience = patience()

    @property
    def prefix(self) -> str:
        """First part of every key."""
        return self._prefix

    def ask(self, make: Callable[[], Op[T]]) -> T:
        """Run an operation; again, while it fails for what may pass."""
        return self._patience(lambda: self._run(make()))

    def pages(
        self, read: Callable[[P | None], Op[tuple[T, P | None]]], first: P | None = None
    ) -> Iterator[T]:
        """What an operation returns for one place after the other, until it names no next one."""
        place = first
        while True:
            found, following = self.ask(partial(read, place))
            yield found
            if following is None:
                return
            place = following

    def now_ms(self) -> int:
        """The server's time."""
        return self._now()
