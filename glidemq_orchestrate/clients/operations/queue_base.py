"""What the operations of a queue share: its keys, the clock, and whether data is compressed."""

from __future__ import annotations

from typing import Literal

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.wire.keys import QueueKeys

Compression = Literal["none", "gzip"]


class QueueOperationsBase:
    """Operations of one queue."""

    def __init__(self, keys: QueueKeys, clock: Clock, compression: Compression = "none") -> None:
        if compression not in ("none", "gzip"):
            raise ConfigurationError(f"compression {described(compression)} is unknown; use 'none' or 'gzip'")
        self._keys, self._clock, self._packed = keys, clock, compression == "gzip"
