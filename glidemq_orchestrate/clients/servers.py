"""Administration of servers: inspects and loads the function libraries, and checks for faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE
from glidemq_orchestrate._lua import library as shipped
from glidemq_orchestrate.attempts.client_supervision import unsupervised_homes
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.foundation.clock import Clock, SystemClock
from glidemq_orchestrate.foundation.durations import seconds
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.server import doctor, libraries
from glidemq_orchestrate.server.calls import Primary
from glidemq_orchestrate.server.doctor import Finding, Verdict
from glidemq_orchestrate.server.libraries import LibraryStatus
from glidemq_orchestrate.settings import Address, ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

if TYPE_CHECKING:
    from glidemq_orchestrate.io.aio import AsyncDriver
    from glidemq_orchestrate.io.sync import SyncDriver


__all__ = ["Finding", "Libraries", "LibraryStatus", "Verdict", "examine", "source"]

T = TypeVar("T")


class Libraries(SyncFacade):
    """The function libraries of one server, or of every primary of the cluster that the server belongs to.

    Args:
        url: The server, or any node of a cluster; by default from ``GLIDEMQ_URL``.
    """

    def status(self) -> dict[str, list[LibraryStatus]]:
        """Read the loaded libraries, by server. Changes nothing."""
        return self._on_each_primary(libraries.library_status)

    def load(self, *, replace: bool = False) -> dict[str, list[LibraryStatus]]:
        """Load missing libraries on every primary; returns the libraries then loaded, by server. Repeatable.

        Args:
            replace: Also replace a library that differs, even one loaded by another program.

        Raises:
            LibraryError: Another program has loaded a different ``glidemq`` library, which was not replaced.
            LibraryVersionMismatch: A newer ``glidemq_orchestrate`` is loaded, and was not replaced.
        """
        return self._on_each_primary(lambda: libraries.install_libraries(replace=replace))

    def _on_each_primary(self, op: Callable[[], Op[T]]) -> dict[str, T]:
        """Run an operation on each primary, without the library check of other clients."""
        with importing():
            from glidemq_orchestrate.io.sync import SyncDriver  # noqa: PLC0415  takes 0.3 s to import

        settings = self._settings
        driver = SyncDriver(settings)
        try:
            primaries = self._known_primaries(driver)
            if settings.kind == "single" and primaries:
                driver.close()
                settings = settings.as_cluster(Endpoint(*primaries[0][:2]))
                driver = SyncDriver(settings)
            empty = [Endpoint(host, port) for host, port, serves in primaries if not serves]
            found = driver.run_on_each(lambda _: op(), empty)
            return {settings.node(place): result for place, result in found}
        finally:
            driver.close()

    def _known_primaries(self, driver: SyncDriver) -> Sequence[Primary]:
        """The primaries of the cluster, also those without slots; none if this is not a cluster.

        With the URL of a cluster, a user without the permission for CLUSTER NODES gets those with slots.
        """
        try:
            return [] if self._settings.kind == "sentinel" else driver.run(libraries.primaries())
        except ConfigurationError as exc:
            if self._settings.kind == "cluster" and exc.code == "NOPERM":
                return []
            raise


def source(name: str) -> str:
    """The source of a library shipped in this package.

    Raises:
        ConfigurationError: No library has this name.
    """
    if name not in {GLIDEMQ, ORCHESTRATE}:
        raise ConfigurationError(f"there is no library {described(name)}: {GLIDEMQ} or {ORCHESTRATE}")
    return shipped(name).source


REPLY_SECONDS: Final = 5.0


def examine(
    url: Address = None,
    *,
    prefix: str = DEFAULT_PREFIX,
    clock: Clock | None = None,
    read_only: bool = False,
) -> list[Finding]:
    """Check the server, or every primary of the cluster. Leaves nothing behind. Repeatable.

    Checks connection, version, role, persistence, memory, durability, permissions of the user, libraries (and
    whether the user may load a missing one), clock, slots, and the supervision of running flows.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key; the permissions for such keys are checked.
        clock: For tests.
        read_only: Write nothing at all, not even a temporary key. A few permissions then remain untested.

    Returns:
        The findings, in that order. An unreachable server is a finding too.

    Raises:
        ConfigurationError: The URL is not valid.
    """
    settings, now = ConnectionSettings.resolve(url, prefix=prefix), clock or SystemClock()
    settings = replace(settings, socket_timeout=min(seconds(settings.socket_timeout), REPLY_SECONDS))
    # A separate event loop also limits the wait for a reply that never ends.
    looking = partial(asyncio.run, _examined(settings, now, read_only=read_only))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return looking()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(looking).result()


async def _examined(settings: ConnectionSettings, clock: Clock, *, read_only: bool) -> list[Finding]:
    with importing():
        from glidemq_orchestrate.io.aio import AsyncDriver  # noqa: PLC0415  takes 0.3 s to import

    driver = AsyncDriver(settings)
    try:
        findings = await driver.run_on_each(
            lambda place: doctor.examine(settings.prefix, clock, settings, place, read_only=read_only)
        )
    except GlideMQError as exc:  # the primaries are not known
        return [doctor.unreachable(settings.where, exc)]
    else:
        where = settings.node(findings[0][0]) if findings else settings.where
        is_out = any(
            finding.check in ("connection", "role") and finding.verdict is Verdict.FAILED
            for _, found in findings
            for finding in found
        )
        supervision = [] if is_out else await _supervision(driver, settings.prefix, where)
    finally:
        await driver.aclose()
    return [*(finding for _, found in findings for finding in found), *supervision]


async def _supervision(driver: AsyncDriver, prefix: str, where: str) -> list[Finding]:
    """Whether each home queue of running flows has a supervisor; no finding if that cannot be read."""
    name = "supervision"
    try:
        missing = await driver.run(unsupervised_homes(prefix))
    except GlideMQError:
        return []
    if not missing:
        return [Finding(name, Verdict.OK, "no running flow is without a supervisor", server=where)]
    options = " ".join(f"--queue {queue}" for queue in missing)
    return [
        Finding(
            name,
            Verdict.WARNING,
            f"running flows have a home queue without a supervisor: {', '.join(missing)}",
            f"start a Python worker for a queue of these flows, or glidemq supervise {options}",
            where,
        )
    ]
