"""Where the server is. Opens nothing and keeps secrets out of ``repr``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.keys import DEFAULT_PREFIX

ENV_URL: Final = "GLIDEMQ_URL"
_SCHEMES: Final = {
    "valkey": "redis",
    "valkeys": "rediss",
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey+unix": "unix",
}


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """One server by URL, and the key prefix to use on it.

    Attributes:
        url: ``valkey://`` or ``redis://`` (``valkeys://``, ``rediss://`` with TLS, ``unix://`` for a socket).
        prefix: First part of every key; ``glide`` as in glide-mq.
        connect_timeout: Seconds to wait for a connection.
        socket_timeout: Seconds to wait for the reply of a call that does not block on purpose.
    """

    url: str
    prefix: str = DEFAULT_PREFIX
    connect_timeout: float = 5.0
    socket_timeout: float = 30.0

    @classmethod
    def resolve(cls, url: str | None = None, *, prefix: str = DEFAULT_PREFIX) -> ConnectionSettings:
        """Settings from a URL, or from ``GLIDEMQ_URL`` when no URL is given.

        Raises:
            ConfigurationError: Neither is there, or the URL is not one of a server.
        """
        url = url or os.environ.get(ENV_URL)
        if not url:
            raise ConfigurationError(
                f"no server named: pass url=..., --url or set {ENV_URL} "
                "(for one on this machine: glidemq server)"
            )
        if not _names_a_server(url):
            raise ConfigurationError(
                f"{masked(url)!r} does not name a server: use one of {', '.join(s + '://' for s in _SCHEMES)}"
            )
        if "{" in prefix or "}" in prefix or not prefix:
            raise ConfigurationError(f"prefix {prefix!r} is not usable: not empty, no {{ }}")
        return cls(url=url, prefix=prefix)

    @property
    def driver_url(self) -> str:
        """The URL in the driver's own scheme."""
        scheme, rest = self.url.split("://", 1)
        return f"{_SCHEMES[scheme]}://{rest}"

    def __repr__(self) -> str:
        """Shows the URL without its secret."""
        return f"ConnectionSettings(url={masked(self.url)!r}, prefix={self.prefix!r})"


def _names_a_server(url: str) -> bool:
    scheme, found, _rest = url.partition("://")
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return bool(found) and scheme in _SCHEMES


def masked(url: str) -> str:
    """The URL with its password replaced by ``***`` and its query dropped."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    place = parts.netloc
    if "@" in place:
        user, host = place.rsplit("@", 1)
        place = f"{user.split(':', 1)[0]}:***@{host}" if ":" in user else f"{user}@{host}"
    return urlunsplit((parts.scheme, place, parts.path, "", ""))
