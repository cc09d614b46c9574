"""Libraries: inspect and load the server's function libraries, on every primary of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE
from glidemq_orchestrate._lua import library as shipped
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.server import libraries as ops
from glidemq_orchestrate.server.libraries import LibraryStatus
from glidemq_orchestrate.settings import Endpoint
from glidemq_orchestrate.wire.call import Op

__all__ = ["Libraries", "LibraryStatus", "source"]

T = TypeVar("T")


class Libraries(SyncFacade):
    """The function libraries of one server, or of every primary of the cluster that the server belongs to.

    Args:
        url: The server, or any node of a cluster; from ``GLIDEMQ_URL`` when left out.
    """

    def status(self) -> dict[str, list[LibraryStatus]]:
        """The loaded libraries, by server. Changes nothing."""
        return self._on_each_primary(ops.library_status)

    def load(self, *, replace: bool = False) -> dict[str, list[LibraryStatus]]:
        """Load what is missing on every primary. Repeatable. Returns the libraries afterwards, by server.

        Args:
            replace: Also replace a library that differs, even if another program loaded it.

        Raises:
            LibraryError: A ``glidemq`` library of another program was left unchanged.
            LibraryVersionMismatch: A newer ``glidemq_orchestrate`` was left unchanged.
        """
        return self._on_each_primary(lambda: ops.install_libraries(replace=replace))

    def _on_each_primary(self, op: Callable[[], Op[T]]) -> dict[str, T]:
        """Run an operation on each primary, without the check of the libraries that other clients make."""
        with importing():
            from glidemq_orchestrate.io.sync import SyncDriver  # noqa: PLC0415  takes 0.3 s to import

        settings = self._settings
        driver = SyncDriver(settings)
        try:
            if settings.kind == "single" and (primaries := driver.run(ops.primaries())):
                driver.close()
                settings = settings.as_cluster(Endpoint(*primaries[0]))
                driver = SyncDriver(settings)
            return {settings.node(place): result for place, result in driver.run_on_each(lambda _: op())}
        finally:
            driver.close()


def source(name: str) -> str:
    """The source of a library as shipped in this package.

    Raises:
        ConfigurationError: There is no library of this name.
    """
    if name not in {GLIDEMQ, ORCHESTRATE}:
        raise ConfigurationError(f"there is no library {described(name)}: {GLIDEMQ} or {ORCHESTRATE}")
    return shipped(name).source
