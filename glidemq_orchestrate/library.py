"""Libraries: look at the server's function libraries and load them, on every primary of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from glidemq_orchestrate._facade import SyncFacade
from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE
from glidemq_orchestrate._lua import library as shipped
from glidemq_orchestrate._ops import library as ops
from glidemq_orchestrate._ops.library import LibraryStatus
from glidemq_orchestrate._protocol.call import Op
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.settings import ConnectionSettings, masked

__all__ = ["Libraries", "LibraryStatus", "source"]

T = TypeVar("T")


class Libraries(SyncFacade):
    """The function libraries of one server, or of every primary of the cluster that the server belongs to.

    Args:
        url: The server, or any node of a cluster; from ``GLIDEMQ_URL`` when left out.
    """

    def status(self) -> dict[str, list[LibraryStatus]]:
        """What is loaded, by server. Changes nothing."""
        return dict(self._on_each_primary(ops.library_status))

    def load(self, *, replace: bool = False) -> dict[str, list[LibraryStatus]]:
        """Load what is missing on every primary. Repeatable. Answers what is there then, by server.

        Args:
            replace: Also replace what is there and differs, whoever loaded it.

        Raises:
            LibraryError: A ``glidemq`` library of somebody else was left alone.
            LibraryVersionMismatch: A newer ``glidemq_orchestrate`` was left alone.
        """
        return dict(self._on_each_primary(lambda: ops.install_libraries(replace=replace)))

    def _run(self, op: Op[T]) -> T:
        """Run without the check of the libraries that other clients begin with: here they are the subject."""
        if self._driver is None or self._pid != os.getpid():
            from glidemq_orchestrate._io.sync import SyncDriver  # noqa: PLC0415  the driver takes 0.3 s to import

            self._driver, self._pid = SyncDriver(self._settings), os.getpid()
        return self._driver.run(op)

    def _on_each_primary(self, op: Callable[[], Op[T]]) -> Iterator[tuple[str, T]]:
        places = self._run(ops.primaries())
        if not places:
            yield masked(self._settings.url), self._run(op())
        for host, port in places:
            with Libraries(_at(self._settings, host, port)) as node:
                yield masked(node._settings.url), node._run(op())


def source(name: str) -> str:
    """The source of a library as this package ships it.

    Raises:
        ConfigurationError: There is no library of this name.
    """
    if name not in {GLIDEMQ, ORCHESTRATE}:
        raise ConfigurationError(f"there is no library {name!r}: {GLIDEMQ} or {ORCHESTRATE}")
    return shipped(name).source


def _at(settings: ConnectionSettings, host: str, port: int) -> str:
    """The URL of another node: same scheme, user and password."""
    parts = urlsplit(settings.url)
    user = f"{parts.netloc.rsplit('@', 1)[0]}@" if "@" in parts.netloc else ""
    place = f"[{host}]" if ":" in host else host or (parts.hostname or "")
    return changed(settings, url=urlunsplit(parts._replace(netloc=f"{user}{place}:{port}"))).url
