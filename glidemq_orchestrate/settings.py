"""Where the server is, and how to be let in. Opens nothing and keeps secrets out of ``repr``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from glidemq_orchestrate._names import PREFIX
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.keys import DEFAULT_PREFIX

ENV_URL: Final = "GLIDEMQ_URL"
DEFAULT_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

Kind: TypeAlias = Literal["single", "cluster", "sentinel"]

_TCP: Final = {"valkey": False, "valkeys": True, "redis": False, "rediss": True}
_KINDS: Final[dict[str, Kind]] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
_SOCKETS: Final = ("unix", "valkey+unix")
SCHEMES: Final = tuple(
    [f"{scheme}{'+' if kind else ''}{kind}://" for kind in _KINDS for scheme in _TCP]
    + [f"{scheme}://" for scheme in _SOCKETS]
)
# In a query: our names, and those under which redis-py knows the same.
_QUERY: Final = {
    "user": "user",
    "username": "user",
    "password": "password",
    "db": "db",
    "ca": "ca",
    "ssl_ca_certs": "ca",
    "cert": "cert",
    "ssl_certfile": "cert",
    "key": "key",
    "ssl_keyfile": "key",
    "verify": "verify",
    "sentinel_user": "sentinel_user",
    "sentinel_password": "sentinel_password",
    "connect_timeout": "connect_timeout",
    "socket_timeout": "socket_timeout",
}
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_FILES: Final = ("ca", "cert", "key")


class Place(NamedTuple):
    """One server: host and port, or the path of a unix socket (then the port is 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        """As in a URL."""
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """A server, a cluster, or a server that sentinels watch; and how to be let in.

    What is given here goes before what the URL says. Files are read when the first connection is made.

    Attributes:
        url: ``valkey://user:password@host:6379/0``, ``unix:///path``, ``valkey+cluster://host:6379,host:6379``
            (some nodes suffice) or ``valkey+sentinel://host:26379,host:26379/SERVICE/0``. ``valkeys`` instead
            of ``valkey`` is TLS; ``redis`` and ``rediss`` mean the same. The names below, and ``db``, may
            stand in the query: ``?ca=/etc/ca.pem``.
        prefix: First part of every key; ``glide`` as in glide-mq.
        connect_timeout: Seconds to wait for a connection.
        socket_timeout: Seconds to wait for the reply of a call that does not block on purpose.
        user: ACL user.
        password: Of the user.
        ca: File with the certificates to trust; those of the system by default.
        cert: File with the certificate of this client.
        key: File with its private key; it may be in ``cert``.
        verify: False takes any certificate of the server: for tests only.
        sentinel_user: ACL user at the sentinels.
        sentinel_password: Of that user.

    Raises:
        ConfigurationError: An option is not usable; the message names it and shows no secret.
    """

    url: str
    prefix: str = DEFAULT_PREFIX
    connect_timeout: float = 5.0
    socket_timeout: float = 30.0
    user: str | None = None
    password: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True
    sentinel_user: str | None = None
    sentinel_password: str | None = None
    kind: Kind = field(init=False)
    places: tuple[Place, ...] = field(init=False)
    db: int = field(init=False, default=0)
    service: str = field(init=False, default="")
    tls: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Read the URL and check every option."""
        PREFIX.check(self.prefix)
        for name, value in _read(self.url).items():
            if name in _FROM_URL or getattr(self, name) == _DEFAULTS[name]:
                object.__setattr__(self, name, value)
        for name in ("connect_timeout", "socket_timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigurationError(f"{name} must be a number of seconds above zero, got {value!r}")
        self._check_options()

    def _check_options(self) -> None:
        if not self.tls and (set_ := [name for name in _FILES if getattr(self, name)]):
            raise ConfigurationError(
                f"{set_[0]} needs TLS: {self.where} is a plain connection, valkeys://... is TLS"
            )
        if self.key and not self.cert:
            raise ConfigurationError("key needs cert: name the file of the client's certificate too")
        if self.kind == "cluster" and self.db:
            raise ConfigurationError(f"db must be 0 in a cluster, got {self.db}")
        if self.kind != "sentinel" and (self.sentinel_user or self.sentinel_password):
            raise ConfigurationError(
                f"sentinel_user and sentinel_password need a +sentinel URL, not {self.where}"
            )

    @classmethod
    def resolve(cls, url: Address = None, *, prefix: str = DEFAULT_PREFIX) -> ConnectionSettings:
        """Settings as they are, or from a URL, or from ``GLIDEMQ_URL`` when nothing is given.

        Args:
            url: The settings or the URL.
            prefix: Goes before that of the settings unless it is the default.

        Raises:
            ConfigurationError: Neither is there, or the URL or a part of it is not usable.
        """
        if isinstance(url, ConnectionSettings):
            return url if prefix in {DEFAULT_PREFIX, url.prefix} else replace(url, prefix=prefix)
        url = url or os.environ.get(ENV_URL)
        if not url:
            raise ConfigurationError(
                f"no server named: pass url=..., --url or set {ENV_URL} "
                "(for one on this machine: glidemq server)"
            )
        return cls(url=url, prefix=prefix)

    @property
    def where(self) -> str:
        """The URL without secrets, for people."""
        return masked(self.url)

    def node(self, place: Place) -> str:
        """One of the servers, for people: without secrets."""
        if self.kind == "single" and place in self.places:
            return self.where
        return f"{'valkeys' if self.tls else 'valkey'}://{place}"

    def as_cluster(self, place: Place) -> ConnectionSettings:
        """Settings for the cluster that a server belongs to, with all the rest as here."""
        return replace(self, url=f"{'valkeys' if self.tls else 'valkey'}+cluster://{place}")

    def __repr__(self) -> str:
        """Shows no secret."""
        secrets = [name for name in ("password", "sentinel_password") if getattr(self, name)]
        shown = {"url": self.where, "prefix": self.prefix}
        shown |= {name: getattr(self, name) for name in ("user", *_FILES) if getattr(self, name)}
        shown |= dict.fromkeys(secrets, "***")
        return f"ConnectionSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


Address: TypeAlias = str | ConnectionSettings | None
_FROM_URL: Final = ("kind", "places", "db", "service", "tls")
_DEFAULTS: Final = {one.name: one.default for one in fields(ConnectionSettings)}


def masked(url: str) -> str:
    """The URL with its password replaced by ``***`` and its query dropped."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    if _is_torn(parts):
        return f"{parts.scheme}://***"
    place = parts.netloc
    if "@" in place:
        user, host = place.rsplit("@", 1)
        place = f"{user.split(':', 1)[0]}:***@{host}" if ":" in user else f"{user}@{host}"
    return urlunsplit((parts.scheme, place, parts.path, "", ""))


def _read(url: str) -> dict[str, object]:
    """What a URL says, by the names of the settings."""
    scheme, found, _ = url.partition("://")
    base, _, suffix = scheme.partition("+")
    try:
        parts = urlsplit(url)
    except ValueError:
        found = ""
    if not found or not (
        scheme in _SOCKETS or (base in _TCP and suffix in _KINDS and not scheme.endswith("+"))
    ):
        raise ConfigurationError(f"{masked(url)!r} does not name a server: use one of {', '.join(SCHEMES)}")
    if _is_torn(parts):
        raise ConfigurationError(
            f"{masked(url)!r} does not name a server: write / ? # @ in a password, and @ after the host, as "
            "%2F %3F %23 %40"
        )
    said: dict[str, object] = dict(_query(url, parts))
    said |= _secrets(parts)
    if scheme in _SOCKETS:
        return said | {"kind": "single", "places": (Place(unquote(parts.path), 0),)}
    kind = _KINDS[suffix]
    said |= {"kind": kind, "tls": _TCP[base], "places": tuple(_places(url, parts, kind))}
    path = [unquote(part) for part in parts.path.split("/")[1:] if part]
    if kind == "sentinel":
        if not path:
            raise ConfigurationError(
                f"{masked(url)!r} does not name a server: the service is missing: .../SERVICE"
            )
        said["service"] = path.pop(0)
    if len(path) > 1:
        raise ConfigurationError(f"{masked(url)!r} does not name a server: {path[1]!r} is too much")
    if path:
        said["db"] = _database(path[0])
    return said


def _is_torn(parts: SplitResult) -> bool:
    """Whether a password may reach beyond where user and host should end: it has a ``/``, ``?`` or ``#``."""
    return any("@" in part for part in (parts.path, parts.query, parts.fragment))


def _secrets(parts: SplitResult) -> Mapping[str, str]:
    who, mark, _ = parts.netloc.rpartition("@")
    if not mark:
        return {}
    user, _, password = who.partition(":")
    found = {"user": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _places(url: str, parts: SplitResult, kind: Kind) -> Iterator[Place]:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if kind == "single" and len(hosts) > 1:
        raise ConfigurationError(
            f"{masked(url)!r} does not name a server: several need valkey+cluster:// or valkey+sentinel://"
        )
    for text in hosts:
        try:
            one = urlsplit(f"//{text}")
            port = one.port
        except ValueError:
            one, port = urlsplit("//"), None
        if text and not one.hostname and kind != "single":
            raise ConfigurationError(f"{masked(url)!r} does not name a server: {text!r} is no host and port")
        if text and one.hostname is None:
            raise ConfigurationError(f"{masked(url)!r} does not name a server: use HOST or HOST:PORT")
        default = SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT
        yield Place(one.hostname or "localhost", default if port is None else port)


def _query(url: str, parts: SplitResult) -> Iterator[tuple[str, object]]:
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        ours = _QUERY.get(name)
        if name == "ssl_cert_reqs":
            yield "verify", text != "none"
        elif ours is None:
            raise ConfigurationError(
                f"{masked(url)!r} has an unknown option {name}: "
                f"use one of {', '.join(dict.fromkeys(_QUERY.values()))}"
            )
        elif ours == "verify":
            if text.lower() not in _TRUTH:
                raise ConfigurationError(f"verify must be true or false, got {text!r}")
            yield ours, _TRUTH[text.lower()]
        elif ours == "db":
            yield ours, _database(text)
        elif ours.endswith("timeout"):
            yield ours, _seconds(ours, text)
        else:
            yield ours, text


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigurationError(f"db must be a whole number, got {text!r}")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a number of seconds, got {text!r}") from None
