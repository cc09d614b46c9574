"""What the operations of a queue share: its keys, the clock, and whether data is compressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys

T = TypeVar("T")
Compression = Literal["none", "gzip"]


class QueueOperationsBase:
    """Operations of one queue."""

    def __init__(self, keys: QueueKeys, clock: Clock, compression: Compression = "none") -> None:
        if compression not in ("none", "gzip"):
            raise ConfigurationError(f"compression {described(compression)} is unknown; use 'none' or 'gzip'")
        self._keys, self._clock, self._packed = keys, clock, compression == "gzip"

    def _now(self, make: Callable[[int], Op[T]]) -> Op[T]:
        """An operation that needs the server's time, which is known only when the client is connected."""
        return (yield from make(self._clock.now_ms()))
