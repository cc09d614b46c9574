"""The base of the parts of Queue and AsyncQueue: the queue's keys, and whether data is compressed."""

from __future__ import annotations

from typing import Literal

from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name

Compression = Literal["none", "gzip"]


class QueueBase(SyncFacade):
    """A client of one queue."""

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(name))
        self._packed = _is_packed(compression)


class AsyncQueueBase(AsyncFacade):
    """A client of one queue, with awaitable calls."""

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys = QueueKeys(self._prefix, check_queue_name(name))
        self._packed = _is_packed(compression)


def _is_packed(compression: str) -> bool:
    if compression not in ("none", "gzip"):
        raise ConfigurationError(f"compression {described(compression)} is unknown; use 'none' or 'gzip'")
    return compression == "gzip"
