"""Libraries: look at the server's function libraries and load them, on every primary of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE
from glidemq_orchestrate._lua import library as shipped
from glidemq_orchestrate._ops.server import library as ops
from glidemq_orchestrate._ops.server.library import LibraryStatus
from glidemq_orchestrate._protocol.call import Op
from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.importing import importing
from glidemq_orchestrate.settings import Endpoint

__all__ = ["Libraries", "LibraryStatus", "source"]

T = TypeVar("T")


class Libraries(SyncFacade):
    """The function libraries of one server, or of every primary of the cluster that the server belongs to.

    Args:
        url: The server, or any node of a cluster; from ``GLIDEMQ_URL`` when left out.
    """

    def status(self) -> dict[str, list[LibraryStatus]]:
        """What is loaded, by server. Changes nothing."""
        return self._on_each_primary(ops.library_status)

    def load(self, *, replace: bool = False) -> dict[str, list[LibraryStatus]]:
        """Load what is missing on every primary. Repeatable. Answers what is there then, by server.

        Args:
            replace: Also replace what is there and differs, whoever loaded it.

        Raises:
            LibraryError: A ``glidemq`` library of somebody else was left alone.
            LibraryVersionMismatch: A newer ``glidemq_orchestrate`` was left alone.
        """
        return self._on_each_primary(lambda: ops.install_libraries(replace=replace))

    def _on_each_primary(self, op: Callable[[], Op[T]]) -> dict[str, T]:
        """Without the check of the libraries that other clients begin with: here they are the subject."""
        with importing():
            from glidemq_orchestrate._io.sync import SyncDriver  # noqa: PLC0415  takes 0.3 s to import

        settings = self._settings
        driver = SyncDriver(settings)
        try:
            if settings.kind == "single" and (primaries := driver.run(ops.primaries())):
                driver.close()
                settings = settings.as_cluster(Endpoint(*primaries[0]))
                driver = SyncDriver(settings)
            return {settings.node(place): told for place, told in driver.run_on_each(lambda _: op())}
        finally:
            driver.close()


def source(name: str) -> str:
    """The source of a library as this package ships it.

    Raises:
        ConfigurationError: There is no library of this name.
    """
    if name not in {GLIDEMQ, ORCHESTRATE}:
        raise ConfigurationError(f"there is no library {name!r}: {GLIDEMQ} or {ORCHESTRATE}")
    return shipped(name).source
