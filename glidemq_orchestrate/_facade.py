"""What every client class shares: a driver made on first use, the check of the libraries, and closing."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from glidemq_orchestrate._ops.library import ensure_libraries, with_libraries
from glidemq_orchestrate._ops.server_time import in_time, learn_time
from glidemq_orchestrate._protocol.call import Op
from glidemq_orchestrate.clock import Clock, ServerClock
from glidemq_orchestrate.keys import DEFAULT_PREFIX
from glidemq_orchestrate.settings import Address, ConnectionSettings

if TYPE_CHECKING:
    from glidemq_orchestrate._io.aio import AsyncDriver
    from glidemq_orchestrate._io.sync import SyncDriver

T = TypeVar("T")

# A worker's thread and a producer's that begin to import redis from two ends wait for each other, and Python
# then gives one of them half a module.
_IMPORTING = threading.Lock()


class SyncFacade:
    """A client with blocking calls. Thread-safe. Opens its connections on first use, anew after a fork."""

    def __init__(
        self, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        self._settings = ConnectionSettings.resolve(url, prefix=prefix)
        self._prefix = self._settings.prefix
        self._clock = clock or ServerClock()
        self._driver: SyncDriver | None = None
        self._pid = 0

    def _run(self, op: Op[T]) -> T:
        return self._connected().run(in_time(self._clock, with_libraries(op)))

    def _now(self) -> int:
        """The server's time; it is asked where it has not told it yet."""
        self._connected()
        return self._clock.now_ms()

    def _connected(self) -> SyncDriver:
        driver = self._driver
        if driver is None or self._pid != os.getpid():
            with _IMPORTING:
                from glidemq_orchestrate._io.sync import SyncDriver  # noqa: PLC0415  takes 0.3 s to import

            driver = SyncDriver(self._settings)
            try:
                driver.run_on_each(lambda _: ensure_libraries())
                driver.run(learn_time(self._clock))
            except BaseException:
                driver.close()
                raise
            if self._driver is not None and self._pid == os.getpid():  # two threads have made one each
                driver.close()
                driver = self._driver
            self._driver, self._pid = driver, os.getpid()
        return driver

    def close(self) -> None:
        """Close the connections. A repeat does nothing; a later call opens new ones."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()


class AsyncFacade:
    """A client with awaitable calls, for one event loop. Opens its connections on first use."""

    def __init__(
        self, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        self._settings = ConnectionSettings.resolve(url, prefix=prefix)
        self._prefix = self._settings.prefix
        self._clock = clock or ServerClock()
        self._driver: AsyncDriver | None = None

    async def _run(self, op: Op[T]) -> T:
        driver = self._driver or await self._connected()
        return await driver.run(in_time(self._clock, with_libraries(op)))

    async def _now(self) -> int:
        """The server's time; it is asked where it has not told it yet."""
        await self._connected()
        return self._clock.now_ms()

    async def _connected(self) -> AsyncDriver:
        driver = self._driver
        if driver is None:
            with _IMPORTING:
                from glidemq_orchestrate._io.aio import AsyncDriver  # noqa: PLC0415  takes 0.3 s to import

            driver = AsyncDriver(self._settings)
            try:
                await driver.run_on_each(lambda _: ensure_libraries())
                await driver.run(learn_time(self._clock))
            except BaseException:
                await driver.aclose()
                raise
            if self._driver is not None:  # two tasks have made one each
                await driver.aclose()
                driver = self._driver
            self._driver = driver
        return driver

    async def close(self) -> None:
        """Close the connections. A repeat does nothing; a later call opens new ones."""
        if self._driver is not None:
            await self._driver.aclose()
            self._driver = None

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()
