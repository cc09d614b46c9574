"""The base of every client class: opens a driver on first use, checks the libraries, closes it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from glidemq_orchestrate.clients.twins import with_operations
from glidemq_orchestrate.errors import ConfigurationError, TransportError
from glidemq_orchestrate.foundation.arguments import explain_methods
from glidemq_orchestrate.foundation.clock import Clock, ServerClock
from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.server.calls import learn_time, learn_time_well
from glidemq_orchestrate.server.libraries import ensure_libraries, repeat_lost
from glidemq_orchestrate.settings import Address, ConnectionSettings
from glidemq_orchestrate.shards import KnownShards
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.confirmation import check_confirmation, standing
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

if TYPE_CHECKING:
    from glidemq_orchestrate.io.aio import AsyncDriver
    from glidemq_orchestrate.io.sync import SyncDriver

T = TypeVar("T")
D = TypeVar("D")
F = TypeVar("F", bound="_Facade[Any]")


# Keeps alive the drivers that a forked child inherited: closing one, even by the garbage collector, would
# affect the parent's event loop.
_INHERITED: list[object] = []


class Connections(Generic[D]):
    """What a client shares with its queues, readers and the like: a driver for each process.

    Attributes:
        is_closed: Whether the client was closed.
        closings: How often connections were closed.
        shards: What is known of the shards of queues.
    """

    def __init__(self) -> None:
        self._drivers: dict[int, D] = {}
        self.is_closed = False
        self.closings = 0
        self.shards = KnownShards()

    def own(self) -> D | None:
        """The driver of this process, if any.

        Raises:
            ConfigurationError: The ``Client`` is closed.
        """
        if self.is_closed:
            raise ConfigurationError("the client is closed. Fix: use it before close(), or make another one")
        return self._of_this_process()

    def _of_this_process(self) -> D | None:
        pid = os.getpid()
        if (driver := self._drivers.get(pid)) is None:
            _INHERITED.extend(self._drivers.pop(other) for other in list(self._drivers) if other != pid)
        return driver

    def hold(self, driver: D) -> D:
        """Set the driver of this process unless another thread or task has; returns the one in use."""
        return self._drivers.setdefault(os.getpid(), driver)

    def release(self) -> D | None:
        """Remove the driver of this process and return it, for closing."""
        self.closings += 1
        return None if self._of_this_process() is None else self._drivers.pop(os.getpid(), None)


class _Facade(Generic[D]):
    """A client whose driver belongs to the process that created it."""

    _is_patient = True
    """Whether a call waits until a slot has moved. A service goes on with its other queues instead."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the methods name an argument of the wrong type when a call fails because of it."""
        super().__init_subclass__(**kwargs)
        explain_methods(with_operations(cls))

    def __init__(
        self, url: Address = None, *, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        self._settings = ConnectionSettings.resolve(url, prefix=prefix)
        self._prefix, self._confirmation = self._settings.prefix, self._settings.confirmation
        self._clock = clock or ServerClock()
        self._connections: Connections[D] = Connections()
        self._is_shared = False

    def _known_shards(self) -> KnownShards:
        """What this client and those that share its connections know of shards."""
        return self._connections.shards

    def _share(self, made: F) -> F:
        """Share the connections with another client, whose ``close`` leaves them open.

        Raises:
            ConfigurationError: This client is closed.
        """
        self._connections.own()
        made._connections, made._is_shared = self._connections, True  # noqa: SLF001  of the same base
        return made

    def _checks(self) -> Op[None]:
        """The checks before the first call: the libraries, then what ``confirm`` requires."""
        yield from ensure_libraries()
        yield from check_confirmation(self._confirmation)

    def _guarded(self, op: Op[T]) -> Op[T]:
        """The operation as run: with confirmed writes, if required."""
        return standing(op) if self._confirmation else op

    @property
    def _moving_seconds(self) -> float:
        """For how many seconds a driver repeats calls for a moving slot."""
        return seconds(self._settings.socket_timeout) if self._is_patient else 0.0

    def _own(self) -> D | None:
        """The driver of this process, if any."""
        return self._connections.own()

    def _hold(self, driver: D) -> D:
        """Set the driver of this process; see ``Connections``."""
        return self._connections.hold(driver)

    def _clock_is_due(self) -> bool:
        """Whether the server's time was read too long ago."""
        return isinstance(self._clock, ServerClock) and self._clock.is_due()

    def _closings(self) -> int:
        """How often its connections were closed: a wait does not open them again."""
        return self._connections.closings

    def _forget_sync(self) -> None:
        """Forget the server's time: another server may be the primary now, and its clock may differ."""
        if isinstance(self._clock, ServerClock):
            self._clock.forget_sync()


class SyncFacade(_Facade["SyncDriver"]):
    """A client with blocking calls. Thread-safe. Opens its connections on first use, again after a fork."""

    def _run(self, op: Op[T]) -> T:
        """Run an operation; keeps the server's time fresh."""
        driver = self._connected()
        if self._clock_is_due():
            driver.run(learn_time(self._clock))
        try:
            return driver.run(self._guarded(op))
        except TransportError:
            self._forget_sync()
            raise

    def _now(self) -> int:
        """The server's time; reads it if it is not known yet."""
        self._connected()
        return self._clock.now_ms()

    def _connected(self) -> SyncDriver:
        """The driver of this process; created on first use, with the checks of the server."""
        driver: SyncDriver | None = self._own()
        if driver is None:
            with importing():
                from glidemq_orchestrate.io.sync import SyncDriver  # noqa: PLC0415  takes 0.3 s to import

            driver = SyncDriver(self._settings, repeat_lost, self._moving_seconds)
            try:
                driver.run_on_each(lambda _: self._checks())
                driver.run(learn_time_well(self._clock))
            except BaseException:
                driver.close()
                raise
            if (held := self._hold(driver)) is not driver:
                driver.close()
            return held
        return driver

    def close(self) -> None:
        """Close the connections of this process. Repeatable. A later call opens new ones.

        A queue or reader of a ``Client`` leaves the shared connections open.
        """
        if not self._is_shared and (driver := self._connections.release()) is not None:
            driver.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()


class AsyncFacade(_Facade["AsyncDriver"]):
    """A client with awaitable calls, for one event loop; a forked child may use it on its own loop.

    Opens its connections on first use.
    """

    async def _run(self, op: Op[T]) -> T:
        """Run an operation; keeps the server's time fresh."""
        driver = self._own() or await self._connected()
        if self._clock_is_due():
            await driver.run(learn_time(self._clock))
        try:
            return await driver.run(self._guarded(op))
        except TransportError:
            self._forget_sync()
            raise

    async def _now(self) -> int:
        """The server's time; reads it if it is not known yet."""
        await self._connected()
        return self._clock.now_ms()

    async def _connected(self) -> AsyncDriver:
        """The driver of this process; created on first use, with the checks of the server."""
        driver: AsyncDriver | None = self._own()
        if driver is None:
            with importing():
                from glidemq_orchestrate.io.aio import AsyncDriver  # noqa: PLC0415  takes 0.3 s to import

            driver = AsyncDriver(self._settings, repeat_lost, self._moving_seconds)
            try:
                await driver.run_on_each(lambda _: self._checks())
                await driver.run(learn_time_well(self._clock))
            except BaseException:
                await driver.aclose()
                raise
            if (held := self._hold(driver)) is not driver:
                await driver.aclose()
            return held
        return driver

    async def close(self) -> None:
        """Close the connections of this process. Repeatable. A later call opens new ones.

        A queue or reader of an ``AsyncClient`` leaves the shared connections open.
        """
        if not self._is_shared and (driver := self._connections.release()) is not None:
            await driver.aclose()

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()
