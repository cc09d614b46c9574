"""The address of the server and the credentials. Opens no connection; ``repr`` shows no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import (
    MILLISECOND,
    Duration,
    duration,
    seconds,
    setting_duration,
)
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.values import PREFIX, SERVICE
from glidemq_orchestrate.wire.confirmation import Confirmation, read_confirm
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

ENV_URL: Final = "GLIDEMQ_URL"
ENV_PREFIX: Final = "GLIDEMQ_PREFIX"
"""The key prefix for the Spark data source; a worker sets it for its steps."""
DEFAULT_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

ServerKind: TypeAlias = Literal["single", "cluster", "sentinel"]

_TCP: Final = {"valkey": False, "valkeys": True, "redis": False, "rediss": True}
_KINDS: Final[dict[str, ServerKind]] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
_SOCKETS: Final = ("unix", "valkey+unix")
SCHEMES: Final = tuple(
    [f"{scheme}{'+' if kind else ''}{kind}://" for kind in _KINDS for scheme in _TCP]
    + [f"{scheme}://" for scheme in _SOCKETS]
)
# Query parameters: our names, and redis-py's names for the same.
_OWN: Final = (
    "user", "password", "db", "ca", "cert", "key", "verify", "sentinel_user", "sentinel_password",
    "connect_timeout", "socket_timeout", "confirm", "confirm_timeout",
)  # fmt: skip
_QUERY: Final = {name: name for name in _OWN} | {
    "username": "user", "ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key",
}  # fmt: skip
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_FILES: Final = ("ca", "cert", "key")
_QUOTED: Final = {"/": "%2F", "?": "%3F", "#": "%23", "@": "%40", "%": "%25"}
MAX_HOST: Final = 253
MAX_HOSTS: Final = 1_000
_HOST: Final = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?\Z")
_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?\Z")
_DATABASE: Final = re.compile(r"[0-9]{1,6}\Z")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ADDRESS: Final = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+):\d{1,5}")  # has no place for a secret
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_USER_INFO: Final = re.compile(r"[^/]*://[^/]*@")
_SECRETS: Final = ("password", "sentinel_user", "sentinel_password")
_FROM_URL: Final = ("kind", "places", "db", "service", "tls")


class Endpoint(NamedTuple):
    """One server: host and port, or the path of a unix socket (then the port is 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        """The endpoint as in a URL."""
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """A server, a cluster or a server behind sentinels, and the credentials for it.

    These options take precedence over the URL. Files are read at the first connection. Durations are kept in
    seconds; in the URL they may be text, such as ``500ms`` or ``PT1M``.

    Attributes:
        url: ``valkey://user:password@host:6379/0``, ``unix:///path``, ``valkey+cluster://host:6379,host:6379``
            (any of its nodes) or ``valkey+sentinel://host:26379,host:26379/SERVICE/0``. ``valkeys`` instead
            of ``valkey`` is TLS; ``redis`` and ``rediss`` mean the same. The options below and ``db`` may
            also be query parameters: ``?ca=/etc/ca.pem``.
        prefix: First part of every key; ``glide`` as in glide-mq.
        connect_timeout: How long to wait for a connection.
        socket_timeout: How long to wait for the reply to a call that does not block on purpose.
        user: ACL user.
        password: Password of that user.
        ca: File with the trusted certificates; those of the system by default.
        cert: File with the certificate of this client.
        key: File with its private key; it may be in ``cert``.
        verify: False accepts any server certificate: for tests only.
        sentinel_user: ACL user at the sentinels.
        sentinel_password: Password of that user.
        confirm: What every write that a caller relies on must reach before its call returns: ``disk``
            (the append-only file of the primary), ``replicas:1`` (that many replicas) or
            ``disk,replicas:1``. By default nothing is awaited.
        confirm_timeout: How long to wait for each of the two; then ``NotConfirmed`` is raised.

    Raises:
        ConfigurationError: An option is not valid; the message names it and shows no secret.
    """

    url: str
    prefix: str = DEFAULT_PREFIX
    connect_timeout: Duration = 5.0
    socket_timeout: Duration = 30.0
    user: str | None = None
    password: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True
    sentinel_user: str | None = None
    sentinel_password: str | None = None
    confirm: str | None = None
    confirm_timeout: Duration = 5.0
    kind: ServerKind = field(init=False)
    places: tuple[Endpoint, ...] = field(init=False)
    db: int = field(init=False, default=0)
    service: str = field(init=False, default="")
    tls: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Read the URL and check every option."""
        PREFIX.check(self.prefix)
        for name, value in options_in(self.url).items():
            if name in _FROM_URL or getattr(self, name) == _DEFAULTS[name]:
                object.__setattr__(self, name, value)
        read_confirm(self.confirm)
        for name in ("connect_timeout", "socket_timeout", "confirm_timeout"):
            object.__setattr__(self, name, seconds(duration(name, getattr(self, name), min_=MILLISECOND)))
        self._check_options()

    def _check_options(self) -> None:
        if not self.tls and (set_ := [name for name in _FILES if getattr(self, name)]):
            raise ConfigurationError(
                f"{set_[0]} needs TLS, but {self.where} is not encrypted. Fix: use valkeys://..."
            )
        if self.key and not self.cert:
            raise ConfigurationError("key needs cert. Fix: pass the file of the client's certificate too")
        if self.kind == "cluster" and self.db:
            raise ConfigurationError(f"db must be 0 in a cluster, got {self.db}")
        if self.kind != "sentinel" and (self.sentinel_user or self.sentinel_password):
            raise ConfigurationError(
                f"sentinel_user and sentinel_password need a +sentinel URL, not {self.where}"
            )

    @classmethod
    def resolve(cls, url: Address = None, *, prefix: str = DEFAULT_PREFIX) -> ConnectionSettings:
        """Return the settings unchanged, or read them from a URL; by default from ``GLIDEMQ_URL``.

        Args:
            url: The settings or the URL.
            prefix: Replaces the prefix of the settings unless it is the default.

        Raises:
            ConfigurationError: There is no URL, or it is not valid.
        """
        if isinstance(url, ConnectionSettings):
            return url if prefix in {DEFAULT_PREFIX, url.prefix} else replace(url, prefix=prefix)
        url = url or os.environ.get(ENV_URL)
        if not url:
            raise ConfigurationError(
                f"no server URL. Fix: pass url=... or --url, or set {ENV_URL}; "
                "to start a server on this machine: glidemq server"
            )
        return cls(url=url, prefix=prefix)

    @property
    def confirmation(self) -> Confirmation | None:
        """What writes must reach; None if they need not wait."""
        return read_confirm(self.confirm)

    @property
    def where(self) -> str:
        """The servers as in the URL, without user, password and query: safe to display."""
        return _shown(self)

    @property
    def whole_url(self) -> str:
        """A URL with every option except the prefix, for another process. It contains the secrets."""
        names = [name for name in dict.fromkeys(_QUERY.values()) if name != "db"]
        changed = {name: getattr(self, name) for name in names if getattr(self, name) != _DEFAULTS[name]}
        options = {name: "false" if value is False else str(value) for name, value in changed.items()}
        head, scheme = self.url.partition("://")[0], "valkeys" if self.tls else "valkey"
        if head in _SOCKETS:
            place = f"unix://{quote(self.places[0].host)}"
            options["db"] = str(self.db)
        else:
            kind = "" if self.kind == "single" else f"+{self.kind}"
            service = f"/{quote(self.service, safe='')}" if self.service else ""
            database = f"/{self.db}" if self.db else ""
            place = f"{scheme}{kind}://{','.join(map(str, self.places))}{service}{database}"
        return f"{place}?{urlencode(options)}" if options else place

    def node(self, place: Endpoint) -> str:
        """The URL of one of the servers, without secrets: safe to display."""
        if self.kind == "single" and place in self.places:
            return self.where
        return f"{'valkeys' if self.tls else 'valkey'}://{place}"

    def as_cluster(self, place: Endpoint) -> ConnectionSettings:
        """Settings for the cluster that a server belongs to, with everything else unchanged."""
        parts = urlsplit(self.url)
        secrets = _secrets(parts)
        user_info = ":".join(quote(secrets.get(name, ""), safe="") for name in ("user", "password")) + "@"
        options = parse_qsl(parts.query, keep_blank_values=True)
        query = urlencode([option for option in options if option[0] != "db"])
        scheme = "valkeys+cluster" if self.tls else "valkey+cluster"
        return replace(
            self, url=f"{scheme}://{user_info if secrets else ''}{place}{'?' if query else ''}{query}"
        )

    def __repr__(self) -> str:
        """Show the options that are set, without secrets."""
        # A part of the URL may be a misplaced part of a password.
        hidden = {*_SECRETS, *options_in(self.url)}
        shown = {"url": self.where, "prefix": self.prefix}
        for name in ("user", *_FILES, *_SECRETS, "confirm"):
            if getattr(self, name):
                shown[name] = "***" if name in hidden else getattr(self, name)
        return f"ConnectionSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


Address: TypeAlias = str | ConnectionSettings | None
_DEFAULTS: Final = {parsed.name: parsed.default for parsed in fields(ConnectionSettings)}


def _shown(settings: ConnectionSettings) -> str:
    """The URL without user, password and query."""
    head, path = settings.url.partition("://")[0], f"/{settings.db}" if settings.db else ""
    user_info = "***@" if _USER_INFO.match(settings.url) else ""
    if head in _SOCKETS:
        return f"{head}://{user_info}{settings.places[0].host}"
    service = f"/{settings.service}" if settings.service else ""
    return f"{head}://{user_info}{','.join(map(str, settings.places))}{service}{path}"


def options_in(url: str) -> dict[str, object]:
    """Read only the options that a URL contains, secrets included, by the name of the setting.

    Raises:
        ConfigurationError: The URL is not valid. The message quotes none of it: it may be part of a password.
    """
    if not isinstance(url, str) or (not url.isascii() and _SURROGATE.search(url)):
        raise ConfigurationError("the URL of the server must be a string without lone surrogates")
    scheme, mark, _ = url.partition("://")
    base, _, suffix = scheme.partition("+")
    is_known = scheme in _SOCKETS or (base in _TCP and suffix in _KINDS and not scheme.endswith("+"))
    if not mark or not is_known:
        hint = f"; did you mean valkey://{url}?" if _ADDRESS.fullmatch(url) else ""
        raise _refused(f"it must begin with one of {', '.join(SCHEMES)}{hint}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _refused("use HOST or HOST:PORT after ://, and [ ] around IPv6 addresses") from None
    if _is_split(url, parts):
        raise _refused(f"write {' '.join(_QUOTED)} in a password as {' '.join(_QUOTED.values())}")
    found = _once([*_query(parts), *_secrets(parts).items()])
    if scheme in _SOCKETS:
        return found | {"kind": "single", "places": (Endpoint(_socket_path(parts), 0),)}
    kind = _KINDS[suffix]
    found |= {"kind": kind, "tls": _TCP[base], "places": tuple(_places(parts, kind))}
    path = [unquote(part) for part in parts.path.split("/")[1:] if part]
    if kind == "sentinel":
        if not path:
            raise _refused("the service is missing: .../SERVICE")
        found["service"] = _service(path.pop(0))
    if len(path) > 1:
        raise _refused("its path is too long: only a database number may follow the host")
    if path:
        found = _once([*found.items(), ("db", _database(path[0]))])
    return found


def _once(stated: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Options by name. Refuses an option that occurs twice with different values."""
    found: dict[str, object] = {}
    for name, value in stated:
        if found.setdefault(name, value) != value:
            raise ConfigurationError(f"the URL contains {name} twice with different values. Fix: use it once")
    return found


def _refused(why: str) -> ConfigurationError:
    return ConfigurationError(f"the URL does not name a server: {why}")


def _is_split(url: str, parts: SplitResult) -> bool:
    """Whether an unescaped ``/``, ``?`` or ``#`` seems to split the password."""
    return "#" in url or any("@" in part for part in (parts.path, parts.query))


def _secrets(parts: SplitResult) -> Mapping[str, str]:
    user_info, mark, _ = parts.netloc.rpartition("@")
    if not mark:
        return {}
    user, _, password = user_info.partition(":")
    found = {"user": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _service(name: str) -> str:
    try:
        return SERVICE.check(name)
    except ConfigurationError:  # its message quotes the name
        why = f"the service of the sentinels is not valid: use {SERVICE.rule}"
    raise _refused(why)


def _socket_path(parts: SplitResult) -> str:
    path = unquote(parts.path)
    if not path or _CONTROL.search(path):
        raise _refused("the path of the socket is missing or not valid: unix:///PATH")
    return path


def _places(parts: SplitResult, kind: ServerKind) -> Iterator[Endpoint]:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if len(hosts) > MAX_HOSTS:
        raise _refused(f"it has more than {MAX_HOSTS:,} hosts; a few nodes of a cluster suffice")
    if kind == "single" and len(hosts) > 1:
        raise _refused("several hosts need valkey+cluster:// or valkey+sentinel://")
    for number, text in enumerate(hosts, 1):
        try:
            parsed = urlsplit(f"//{text}")
            host, port = parsed.hostname, parsed.port
        except ValueError:
            host, port = None, None
        if text and (host is None or port == 0 or not _is_host(host)):
            raise _refused(f"host number {number} is not valid: use HOST or HOST:PORT")
        default = SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT
        yield Endpoint(host or "localhost", default if port is None else port)


def _is_host(host: str) -> bool:
    """Whether a resolver accepts the host name."""
    if _IPV6.match(host):
        return True
    if len(host) > MAX_HOST or not _HOST.match(host):
        return False
    try:
        with importing():  # the idna codec is imported on first use
            return host.isascii() or bool(host.encode("idna"))
    except UnicodeError:
        return False


def _query(parts: SplitResult) -> Iterator[tuple[str, object]]:
    for number, (name, text) in enumerate(parse_qsl(parts.query, keep_blank_values=True), 1):
        ours = _QUERY.get(name)
        if not text and (ours is not None or name == "ssl_cert_reqs"):
            continue  # an empty option
        if name == "ssl_cert_reqs":
            yield "verify", text != "none"
        elif ours is None:
            raise ConfigurationError(
                f"option {number} in the query of the URL is unknown: use one of "
                f"{', '.join(dict.fromkeys(_QUERY.values()))}; write & # % + in a value as %26 %23 %25 %2B"
            )
        elif ours == "verify":
            if text.lower() not in _TRUTH:
                raise ConfigurationError("verify in the query of the URL must be true or false")
            yield ours, _TRUTH[text.lower()]
        elif ours == "db":
            yield ours, _database(text)
        elif ours.endswith("timeout"):
            yield ours, _seconds(f"{ours} in the query of the URL", text)
        else:
            yield ours, text


def _database(text: str) -> int:
    if not _DATABASE.match(text):
        raise ConfigurationError("db in the URL must be a whole number, at most 6 digits")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        return seconds(setting_duration(name, text, min_=MILLISECOND))
    except ConfigurationError:  # its message quotes the text, which may be part of a password
        pass
    raise ConfigurationError(f"{name} must be a duration above zero, such as 30 (seconds) or 5m")
